// Package prepare makes versions of applications ready to run: their revision is in the kernel
// and pinned, and their targets are found. It asks for the fetches and loads that this needs, and
// fails with an error that decide.IsPending until they ended. It chooses nothing, and ends no link; a
// broken revision gives way to the same one that is whole.
package prepare

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// Versions makes versions ready in one reconcile. All fields but Profile are required.
type Versions struct {
	Log  *slog.Logger
	Now  time.Time
	Node version.Node
	// Profile is what the node's kernel can do; nil where that is not known.
	Profile *v1alpha1.KernelProfile
	// Pin pins a revision that was loaded.
	Pin  func(*loader.Revision) error
	Look *live.Look
	// Sharing says whose maps a version may use in place of its own.
	Sharing *sharing.Applications
	// Memory says what has no room, and Measured is told what a loaded revision takes.
	Memory   *admission.Memory
	Measured *admission.Profiles
	// ObjectRound, LoadRound and LookupRound are what the reconcile asks for.
	ObjectRound *objects.Round
	LoadRound   *build.Round
	LookupRound *targets.Round

	// SharedTargets bounds what namespaces have at targets that they share, and Granted is what applications have beyond.
	SharedTargets quota.Limits
	Granted       map[string]intent.Grant

	// placed are the places that applications have, ledger what they have at shared targets, and hasCounted tells that
	// what runs was counted.
	placed     placed
	ledger     *quota.Ledger
	hasCounted bool
}

// New returns what prepares the versions of one reconcile, whose applications come in one order
// each time: who comes first has the places that are left.
func New(v Versions) *Versions {
	v.placed, v.ledger = placed{}, quota.New(v.SharedTargets, v.Granted)
	return &v
}

// Prepare returns a version as it is to run, once it is in the kernel. What is missing or on
// its way beside that is noted in the outcome.
func (v *Versions) Prepare(app *decide.Application, o intent.Opened, out *report.Outcome) (plan.Application, error) {
	if err := v.ensureLoaded(app, o, out); err != nil {
		return plan.Application{}, err
	}
	if err := v.setScopes(o, out); err != nil {
		return plan.Application{}, err
	}
	return v.resolveAttachments(o, out)
}

// ensureLoaded makes sure that the intent's revision is in the kernel, whole. One that was
// found pinned is relied on until it is checked.
func (v *Versions) ensureLoaded(app *decide.Application, o intent.Opened, out *report.Outcome) error {
	uid, revision := o.Payload().UID, o.Revision()
	loaded := v.Look.Revision(uid, revision)
	if err := v.fits(app, o); err != nil {
		return err
	}
	if err := app.Rejected[o.Payload().Serial]; err != nil && v.Now.Before(app.RetryAt) && !v.isOutdated(err) {
		return &decide.BackingOffError{Err: err}
	}
	whole := loaded != nil && app.Checked[revision]
	if loaded != nil && !whole {
		var err error
		if whole, err = v.isWhole(o, loaded); errors.Is(err, build.ErrLoading) {
			out.Leave(report.Answer{})
			return nil
		} else if err != nil {
			return err
		}
	}
	if whole {
		v.followOwners(app, o, loaded, out)
	} else if err := v.loadAnew(app, o, out); err != nil {
		return err
	}
	app.NoteWhole(revision)
	return nil
}

// loadAnew loads a revision that is not in the kernel, or not whole.
func (v *Versions) loadAnew(app *decide.Application, o intent.Opened, out *report.Outcome) error {
	payload := o.Payload()
	lent, err := v.lentTo(payload)
	if err != nil {
		return err
	}
	if err := v.load(app, o, lent); err != nil {
		return v.explain(payload, err)
	}
	v.noteTaken(payload, nil, out)
	return nil
}

// explain says which hook of the intent the kernel lacks, or which function or tracepoint,
// where it rejected to load a program for that. A program that ran and failed was loaded.
func (v *Versions) explain(payload intent.Payload, err error) error {
	if refused := new(loader.LoadError); !errors.As(err, &refused) || refused.Log != "" || errors.As(err, new(*loader.RunError)) {
		return err
	}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			h, ok := hook.Lookup(at.Hook)
			if missing := v.LookupRound.ExplainLoad(h, at, err); errors.Is(missing, attach.ErrTarget) {
				return fmt.Errorf("load program %s of %s: %w", program.Name, payload.Application, missing)
			}
			if lacks := new(attach.LackingError); ok && errors.As(attach.Explain(h, err), &lacks) {
				return fmt.Errorf("load program %s of %s: %w", program.Name, payload.Application, lacks)
			}
		}
	}
	return err
}

// fits reports whether this node's kernel can hold the intent, as far as the intent
// says and its object was found to: else the error is an *build.UnfitError.
func (v *Versions) fits(app *decide.Application, o intent.Opened) error {
	if v.Profile == nil {
		return nil
	}
	lacks := placement.Of(o.Payload(), nil).Missing(*v.Profile)
	if lacks == "" {
		lacks = app.Lacks[o.Revision()]
	}
	if lacks != "" {
		return &build.UnfitError{Lacks: lacks}
	}
	return nil
}
