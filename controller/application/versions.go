package application

import (
	"context"
	"slices"

	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// stamp is what is sealed beside a verdict: the first step of a new version, or how far the
// same version is rolled out.
//
// A new version replaces one that was being rolled out; the previous version stays the
// previous one. A previous version comes back to all nodes at once. Other versions that
// nodes may still run keep running where they do.
func (r *Reconciler) stamp(ctx context.Context, st *state) (gate.Stamp, error) {
	stamp, live := gate.Stamp{UID: string(st.app.GetUID())}, st.sealed.Payload
	through := ""
	if live != nil && !live.Tombstone {
		if st.observed.Verdict.SameVersion(*live) {
			return r.carryOver(ctx, st), nil
		}
		if previous := live.Previous; reverts(st.observed.Verdict, live) {
			stamp.Version, stamp.Withdrawn = previous.VersionSerial(), r.withdrawn(ctx, st, previous)
			return stamp, nil
		}
		before := rollout.LastEverywhere(live)
		stamp.Withdrawn = r.withdrawn(ctx, st, before)
		switch {
		case before == nil:
			through = live.Rollout.Through
		case !r.verdicts().mayKeep(ctx, st.observed.Request, *before):
			// No version may run on the nodes that the rollout has not reached.
			return stamp, nil
		}
		stamp.Previous = before
	}
	if live == nil && st.runsName() || st.sealed.IsBehindNodes() {
		// Nodes run what this replaces, or a newer intent that was lost: steps would
		// unload that meanwhile.
		return stamp, nil
	}
	fleet, err := st.fleet(st.observed.Verdict.Version())
	if err != nil {
		return stamp, err
	}
	stamp.Rollout = fleet.Start(through, stamp.Previous != nil, r.now())
	return stamp, nil
}

// carryOver is the stamp that seals the same version under a new serial. If a newer intent
// was lost, nobody knows how far its rollout was: with a previous version, the steps go
// on and the version may run where it does. Else all nodes should run it, since the
// others would unload it.
func (r *Reconciler) carryOver(ctx context.Context, st *state) gate.Stamp {
	live := st.sealed.Payload
	stamp := gate.Stamp{UID: live.UID, Version: live.VersionSerial(), Rollout: live.Rollout, Previous: live.Previous, Withdrawn: live.Withdrawn}
	switch {
	case !st.sealed.IsBehindNodes() || live.Rollout == nil:
	case live.Previous != nil && r.verdicts().mayKeep(ctx, st.observed.Request, *live.Previous):
		stamp.Withdrawn = r.withdrawn(ctx, st, live.Previous)
	default:
		stamp.Rollout, stamp.Previous = nil, nil
	}
	return stamp
}

// reverts reports whether a verdict is about the previous version of a live intent.
func reverts(v gate.Verdict, live *intent.Payload) bool {
	return live.Previous != nil && v.SameVersion(*live.Previous)
}

// maxWithdrawn bounds the withdrawn versions of one intent, the newest first.
const maxWithdrawn = 4

// withdrawn returns the versions in the sealed intent that some node may still run, except
// some: its own, which nodes may have begun to run unreported, and those beside it that
// nodes report. If there is room, those follow of which a node may run a part.
func (r *Reconciler) withdrawn(ctx context.Context, st *state, except ...*intent.Payload) []intent.Payload {
	reported, parts := []*intent.Payload{st.sealed.Payload}, []*intent.Payload{}
	for _, v := range st.sealed.Payload.Beside() {
		switch {
		case st.sealed.Report.RunsVersion(v):
			reported = append(reported, v)
		case st.sealed.Report.Partial:
			parts = append(parts, v)
		}
	}
	var stay []intent.Payload
	for _, v := range append(reported, parts...) {
		skip := slices.ContainsFunc(except, func(other *intent.Payload) bool { return other != nil && v.SameVersion(other) })
		again := slices.ContainsFunc(stay, func(other intent.Payload) bool { return v.SameVersion(&other) })
		if !skip && !again && len(stay) < maxWithdrawn && r.verdicts().mayKeep(ctx, st.observed.Request, *v) {
			stay = append(stay, v.Alone())
		}
	}
	return stay
}

// otherVersions are the versions beside the own one of an intent that may not run on, by
// their VersionSerial.
type otherVersions struct {
	// intent is the serial of the intent.
	intent int64
	// gone may run no more. denied are unloaded by a policy to which unload protection
	// applies.
	gone   []int64
	denied []denied
	// unknown says that one could not be evaluated, own that the intent's own version may
	// run no more either.
	unknown, own bool
}

// denied is a version that policies want unloaded: one of the cluster, or those of its
// namespace alone.
type denied struct {
	serial    int64
	byCluster bool
}

// evaluateOtherVersions evaluates the versions beside what is live.
func (r *Reconciler) evaluateOtherVersions(ctx context.Context, o lifecycle.Observation) (others otherVersions, err error) {
	if !o.Runs() {
		return others, nil
	}
	others.intent = o.Live.Serial
	for _, v := range o.Live.Beside() {
		switch verdict := r.verdicts().version(ctx, o.Request, *v); {
		case verdict.Denied:
			others.denied = append(others.denied, denied{v.VersionSerial(), verdict.ByCluster})
		case !verdict.Keeps:
			others.gone = append(others.gone, v.VersionSerial())
		default:
			others.unknown = others.unknown || !verdict.Known
		}
	}
	if r.verdicts().rulesChanged(o.Live.Application.Namespace) {
		return others, errOverruled
	}
	return others, nil
}

// withdraw seals an intent without the other versions that may run no more, even if
// the definition is suspended, undone, broken or out of reach. If nodes have seen a newer
// intent, what a policy denies waits until this one is sealed over it; what a revocation
// took does not.
func (others otherVersions) withdraw(ctx context.Context, store *intents.Store, nodes nodereports.Snapshot, s intents.Intent) (intents.Intent, error) {
	gone := slices.Clone(others.gone)
	if !s.IsBehindNodes() {
		for _, v := range others.denied {
			gone = append(gone, v.serial)
		}
	}
	if len(gone) == 0 || s.Payload == nil || s.Payload.Serial != others.intent {
		return s, nil
	}
	live := *s.Payload
	// A version of the intent that may run no more itself comes to no further node.
	if !others.own {
		live = overNodes(nodes, s, live.Previous != nil && !slices.Contains(gone, live.Previous.VersionSerial()))
	}
	return store.WithdrawVersions(ctx, s, live, gone)
}

// overNodes is a live intent, whose own version may run, as it is sealed over a newer one that nodes have seen and that was lost. Where the
// version before stays, no node brings the own one to others by saying what it has seen: those that its rollout has not come to get the version
// before, as by carryOver, and go on with what they run until they have it. Where it does not, they would unload what they run, and the own
// version comes to each node that may run it.
func overNodes(nodes nodereports.Snapshot, s intents.Intent, stays bool) intent.Payload {
	live := *s.Payload
	switch {
	case !s.IsBehindNodes() || live.Rollout == nil:
		return live
	case !stays:
		live.Rollout = &intent.Rollout{Step: live.Rollout.Step, Through: max(live.Rollout.Through, nodes.Furthest(live)), Since: live.Rollout.Since}
		return live
	}
	named := live
	named.Withdrawn = append([]intent.Payload{live.Alone()}, live.Withdrawn...)
	isNamed := slices.ContainsFunc(live.Withdrawn, func(v intent.Payload) bool { return v.SameVersion(s.Payload) })
	// What is withdrawn waits for no smaller version.
	if n, err := named.Size(); err != nil || n > intent.MaxPayloadBytes-spareBytes || isNamed || len(named.Withdrawn) > maxWithdrawn {
		return live
	}
	return named
}

// spareBytes are left for what an intent that is sealed again says besides, such as another serial.
const spareBytes = 1 << 10
