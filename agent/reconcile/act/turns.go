package act

import (
	"fmt"
	"time"

	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// actSlice is how long actions of one kind follow each other before the node is looked at
// again. Thousands of links take minutes. hurriedSlice is how long they do while something waits
// for the next look: a container before it starts, or an intent, which may be a revocation. To
// detach a program from TCX takes the kernel 10 ms.
const actSlice, hurriedSlice = time.Second, 50 * time.Millisecond

func (act *Actor) slice() time.Duration {
	if act.IsHurried() {
		return hurriedSlice
	}
	return actSlice
}

// spend does actions for a bounded time, one at least, and puts the others off.
func (act *Actor) spend(actions []plan.Action) {
	began, left := act.Clock(), 0
	for i, a := range inTurn(actions, act.turnOf) {
		switch {
		case i > 0 && act.Clock().Sub(began) >= act.slice():
			left++
			act.putOff(a, "it has many links, and the next ones are made or ended soon")
		case !act.canEndBefore(a):
			// The end of those that are being closed wakes the loop.
			act.putOff(a, fmt.Sprintf("it has links that the kernel ends slowly, one after the other: %d are being closed, and the next ones follow",
				act.Look.Set.Remnants.Closing(a.UID, a.Attachment.Application)))
		case a.Verb == plan.Drop && !act.Look.Set.MayDrop(a.UID, a.Revision, act.Clock()):
			act.freeLater(a)
		default:
			act.one(a)
		}
	}
	if left > 0 {
		act.Decisions.Again = true
		act.Log.Info("go on in the next reconcile", "actions", len(actions), "left", left)
	}
}

// putOff leaves an action to a later reconcile.
func (act *Actor) putOff(a plan.Action, why string) {
	owners := act.owners(a)
	act.stick(owners, a)
	act.LookupRound.Keep(a.Attachment)
	act.links.making(a)
	for _, uid := range owners {
		act.Decisions.NotePending(uid, &decide.QueuedError{Why: why})
		act.Decisions.Outcome(uid).Leave(report.Turn{})
	}
}

// freeLater leaves a revision that nothing runs any more to a later reconcile. What its application runs now is whole.
func (act *Actor) freeLater(a plan.Action) {
	act.freeing, act.stuck[a.UID] = true, true
	if act.Decisions.IsGone(a.UID) {
		act.Decisions.Outcome(a.UID).Leave(report.Ending{Why: "the kernel frees programs one after the other, and frees those of others now"})
	}
}

// canEndBefore reports whether there is room to close the link that an action ends. An update ends
// none.
func (act *Actor) canEndBefore(a plan.Action) bool {
	if a.Verb == plan.Update {
		return true
	}
	for _, key := range []string{a.Attachment.Key(), a.Replaces} {
		if l := act.Look.Link(a.UID, key); l != nil && !act.Look.Set.Remnants.HasRoom(l, act.Look.Facts(l), a.Verb != plan.Detach) {
			return false
		}
	}
	return true
}

// turnOf is whose turn an action takes: that of the application's owner, or that of a chain. Chains
// keep their order, since the kernel takes no XDP program on a member of a device that has one.
func (o *Options) turnOf(a plan.Action) string {
	if a.Verb == plan.SetChain {
		return lineOf(a)
	}
	of := a.Attachment.Application
	if app := o.Decisions.Application(a.UID); app != nil {
		of = app.Newest.Payload().Application
	}
	return queue.OwnerOf(a.UID, of)
}

// lineOf is what keeps the order of its actions: an application, or a chain.
func lineOf(a plan.Action) string {
	if a.Verb == plan.SetChain {
		return "chain " + a.Device.String()
	}
	return a.UID
}

// inTurn has owners and chains take turns, and of each owner its applications, so that none has more
// turns for having more of these. Of each application and chain, the order stays.
func inTurn(actions []plan.Action, turnOf func(plan.Action) string) []plan.Action {
	return rotate(rotate(actions, lineOf), turnOf)
}

// rotate has those of a name follow each other, each after one of all other names.
func rotate(actions []plan.Action, nameOf func(plan.Action) string) []plan.Action {
	var names []string
	queues := map[string][]plan.Action{}
	for _, a := range actions {
		name := nameOf(a)
		if queues[name] == nil {
			names = append(names, name)
		}
		queues[name] = append(queues[name], a)
	}
	all := make([]plan.Action, 0, len(actions))
	for turn := 0; len(all) < len(actions); turn++ {
		for _, name := range names {
			if turn < len(queues[name]) {
				all = append(all, queues[name][turn])
			}
		}
	}
	return all
}

// split divides actions, in their order, by whether they are of a kind.
func split(actions []plan.Action, is func(plan.Action) bool) (those, others []plan.Action) {
	for _, a := range actions {
		if is(a) {
			those = append(those, a)
		} else {
			others = append(others, a)
		}
	}
	return those, others
}
