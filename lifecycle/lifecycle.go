// Package lifecycle decides what becomes of an application: a new intent is sealed, what
// runs is kept, or it is unloaded. Node mode and the controller both decide by it.
//
// It is pure. Its callers observe: the definition, the verdicts of package gate, and the
// intent that agents have. It decides on that, and says why. It never seals: only
// package gate does, and only what a verdict allows.
package lifecycle

import (
	"errors"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
)

// Action is what becomes of one application.
type Action string

// The actions.
const (
	// Keep leaves what runs as it is.
	Keep Action = "keep"
	// Seal hands agents a new intent.
	Seal Action = "seal"
	// Unload hands agents a tombstone.
	Unload Action = "unload"
)

// Observation is one application at one time: its definition, the verdicts about it, and
// the intent that agents have.
type Observation struct {
	// Request is the definition as it was evaluated. Its Application is nil if there is
	// no definition.
	Request gate.Request
	// Verdict is the gate's verdict on the definition, and Err why there is none.
	Verdict gate.Verdict
	Err     error
	// Live is the intent that agents have; nil if they never had one.
	Live *intent.Payload
	// Hidden says that the definition may be in a place that could not be read: its
	// absence says nothing.
	Hidden bool
	// Undone says that people undid the definition: the version before it runs.
	Undone bool
	// Frozen says that the definition is not rolled out for now: what runs stays.
	Frozen bool
	// Running is the gate's verdict on RunningToEvaluate, if that was evaluated.
	Running gate.RunningVerdict
}

// Runs reports whether agents have an intent that is no tombstone.
func (o Observation) Runs() bool { return o.Live != nil && !o.Live.Tombstone }

func (o Observation) defined() bool { return o.Request.Application != nil }

// allowed reports whether the definition may be loaded.
func (o Observation) allowed() bool { return o.defined() && o.Err == nil && o.Verdict.Allowed() }

// replaces reports whether the definition is allowed and replaces what runs.
func (o Observation) replaces() bool {
	return o.allowed() && !o.Undone && !o.Frozen && !o.Request.Application.Body().Suspend
}

// RunningToEvaluate is what runs, if it is to be evaluated by itself (Running): the
// definition does not replace it, and is not missing for good. Else it is nil.
func (o Observation) RunningToEvaluate() *intent.Payload {
	if o.replaces() || !o.defined() && !o.Hidden {
		return nil
	}
	return o.Live
}

// Unloads reports whether a policy unloads what runs: by the verdict on its definition,
// or, if that says something else by now, by the verdict on what runs.
func (o Observation) Unloads() bool {
	return o.Runs() && (o.Running.Unloads || o.deniesLive() && o.Verdict.Decision().Unload)
}

// deniesLive reports whether the verdict on the definition denies what runs.
func (o Observation) deniesLive() bool {
	if !o.defined() || o.Undone || o.Err != nil || o.Verdict.Allowed() {
		return false
	}
	generation, err := gate.Generation(o.Request.Application)
	return err == nil && generation == o.Live.Generation
}

// UnloadsByCluster reports whether a policy of the cluster is among those of Unloads, and
// not only policies of the namespace.
func (o Observation) UnloadsByCluster() bool {
	return o.Running.Unloads && o.Running.UnloadsByCluster || o.Runs() && o.deniesLive() && o.Verdict.Decision().UnloadByCluster
}

// Pending reports whether an evaluation is under way that may deny what runs.
func (o Observation) Pending() bool {
	return o.Runs() && (o.Running.Pending != nil || errors.Is(o.Err, gate.ErrPending) && !o.Running.Evaluated)
}

// Undecided reports whether the decision about what runs may change without an event: some
// policies failed, were late, or could not see everything while a registry is away.
func (o Observation) Undecided() bool {
	return o.Running.Undetermined || o.Running.Partial || o.defined() && o.Err == nil && !o.Verdict.Decision().Known()
}

// UnloadedByPolicy is the sealed reason of an unload that unload protection counts.
const UnloadedByPolicy = "a policy that says running: Unload denies it"

// UnloadedAgain is the reason to seal in a tombstone that replaces one with that reason.
// Unload protection does not count the same unload twice.
func UnloadedAgain(reason string) string {
	if reason == UnloadedByPolicy {
		return "a policy that says running: Unload denied it"
	}
	return reason
}

// Decide returns what to do with one application, and why. revoked are the signers whose
// trust was taken away, wholly or from a time on. protected says that unload protection
// applies until a human confirms the change.
func (o Observation) Decide(revoked signing.Revocations, protected bool) (Action, string) {
	if action, why := o.decideRevoked(revoked); action != "" {
		return action, why
	}
	switch {
	case o.Unloads() && protected:
		return Keep, "unload protection holds it until the change is confirmed"
	case o.Unloads():
		return Unload, UnloadedByPolicy
	case !o.defined() && o.Hidden:
		return Keep, "its file cannot be read"
	case !o.defined() && o.Runs():
		return Unload, "it is no longer defined in the source"
	case !o.defined():
		return Keep, ""
	case o.Request.Application.Body().Suspend:
		return Keep, "it is suspended"
	case o.Undone:
		return Keep, "it was rolled back to the version before"
	case o.Err != nil:
		return Keep, "it could not be evaluated; what runs is kept"
	case o.allowed() && o.Live != nil && o.Verdict.Same(*o.Live):
		return Keep, ""
	case o.allowed():
		return Seal, ""
	case !o.Runs():
		return Keep, ""
	}
	return Keep, "it is denied; what runs is kept and frozen"
}

// decideRevoked decides about what runs if a sealed signer is revoked: it is unloaded if
// it is denied now, by any evidence. Nobody who may push to the registry adds a
// sealed signer or removes one. The action is empty if no revocation decides.
func (o Observation) decideRevoked(revoked signing.Revocations) (Action, string) {
	if !o.Runs() || o.replaces() {
		return "", ""
	}
	names := gate.RevokedSigners(o.Live, revoked)
	switch {
	case len(names) == 0 || o.Running.Allowed:
		return "", ""
	case o.Running.Pending != nil:
		return Keep, o.Running.Pending.Error()
	case LostAllSigners(o.Live, revoked):
		return Unload, RevocationReason(o.Live, revoked)
	case o.Running.Undetermined:
		return Keep, "a signer it was admitted by is revoked (" + describeRevoked(names, revoked) +
			"), and the policies could not be evaluated to the end; what runs is kept until they are"
	case o.Running.Evaluated || o.Running.DeniedByRecord:
		return Unload, RevocationReason(o.Live, revoked)
	}
	return "", ""
}
