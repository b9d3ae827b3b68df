package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
)

// goOnWithout makes the reconcile go on where one member cannot be had. It stays as long
// as the chain can stay as it is: who is new then waits. What is to be unloaded
// does not wait for others, so that a member that cannot be had goes, too.
func (rec *reconcile) goOnWithout(want plan.Chain, running []plan.Member, lost *build.MemberError) unfitChain {
	if errors.Is(lost, objects.ErrFetching) {
		return func() { rec.await(want, running, false) }
	}
	runs := slices.ContainsFunc(running, func(m plan.Member) bool { return m.UID == lost.UID })
	leaves := slices.ContainsFunc(running, func(m plan.Member) bool { return slices.Contains(rec.want.Gone, m.UID) })
	if !runs && rec.canFallBack(lost.UID) {
		return func() { rec.reject(lost.UID, lost) }
	}
	if !runs || leaves {
		return func() { rec.takeOut(want, lost) }
	}
	if newcomers := plan.Newcomers(want.Members, running); len(newcomers) > 0 {
		if rec.isOnItsWay(lost.UID) {
			return func() {
				rec.postpone(newcomers[0], fmt.Sprintf("it waits for a version that is on its way and changes the chain of %s: %v", want.Interface, lost))
			}
		}
		return func() { rec.reject(newcomers[0], lost) }
	}
	return func() { rec.leave(want, running, lost) }
}

// isOnItsWay reports whether a version of the application is about to replace what
// runs of it.
func (rec *reconcile) isOnItsWay(uid string) bool {
	app, out := rec.applicationOf(uid), rec.outcomes[uid]
	return app != nil && out != nil && out.Pending && !app.failedBefore
}

// canFallBack reports whether a version may take the place of the application's
// newest one.
func (rec *reconcile) canFallBack(uid string) bool {
	app, out := rec.applicationOf(uid), rec.outcomes[uid]
	if app == nil || out == nil || out.Live != &app.Newest {
		return false
	}
	other, _ := rec.node.Fallback(app.Known, rec.look.RevisionName(uid), out.Pending)
	return other != nil
}

func (rec *reconcile) applicationOf(uid string) *application {
	for _, app := range rec.apps {
		if app.Newest.Payload().UID == uid {
			return app
		}
	}
	return nil
}

// takeOut leaves a member out of a chain that cannot be made with it.
func (rec *reconcile) takeOut(c plan.Chain, lost *build.MemberError) {
	if rec.want.Out == nil {
		rec.want.Out = map[int][]string{}
	}
	rec.want.Out[c.Ifindex] = append(rec.want.Out[c.Ifindex], lost.UID)
	rec.blame(lost.UID, c, lost, fmt.Errorf("run in the chain of %s: it is left out, since the chain is to change and cannot be made with it: %w", c.Interface, lost.Err))
}

// leave keeps a chain as it is, and says so to the member that cannot be had,
// else to those that were to change places, and to those that were to go.
func (rec *reconcile) leave(c plan.Chain, running []plan.Member, err error) {
	rec.want.Left = append(rec.want.Left, c.Ifindex)
	lost := new(build.MemberError)
	blamed := plan.UIDsOf(slices.DeleteFunc(slices.Clone(c.Members), func(m plan.Member) bool { return slices.Contains(running, m) }))
	if errors.As(err, &lost) {
		blamed = []string{lost.UID}
	}
	for _, uid := range blamed {
		rec.blame(uid, c, err, fmt.Errorf("change the chain of %s: it stays as it is: %w", c.Interface, err))
	}
	for _, uid := range plan.Leavers(c.Members, running) {
		rec.blame(uid, c, err, fmt.Errorf("leave the chain of %s: it runs there still: %w", c.Interface, err))
	}
}

// await keeps a chain as it is until an object has come, or a load ended.
func (rec *reconcile) await(c plan.Chain, running []plan.Member, loading bool) {
	rec.want.Left = append(rec.want.Left, c.Ifindex)
	for _, uid := range append(plan.Changed(c.Members, running), plan.Leavers(c.Members, running)...) {
		if out := rec.outcomes[uid]; out != nil {
			out.Pending, out.Refused, out.Loading = true, true, loading
		}
	}
}

// blame tells an application that it is not in a chain as it is to be. The
// cause is tried again after a while.
func (rec *reconcile) blame(uid string, c plan.Chain, cause, err error) {
	out := rec.outcomes[uid]
	if out == nil {
		out = &report.Outcome{}
		rec.outcomes[uid] = out
	}
	out.Fail(uid, plan.Action{Verb: plan.SetChain, Interface: c.Interface, Members: c.Members}, err)
	if rec.isLate(cause) {
		return
	}
	out.Tried = true
	rec.opts.Log.Error("make chain", "application", rec.accepted.nameOf(uid), "interface", c.Interface, "error", err)
	if app := rec.applicationOf(uid); app != nil {
		app.failed = maps.Clone(app.failed)
		if app.failed == nil {
			app.failed = map[string]error{}
		}
		app.failed[lostMember] = cause
	}
}

// isLate reports whether what a chain cannot be made for was found a short while ago.
func (rec *reconcile) isLate(cause error) bool {
	late, lost := new(backingOffError), new(build.MemberError)
	return errors.As(cause, &late) || errors.As(cause, &lost) && rec.lostLately(lost.UID) != nil
}

// lostMember is what failed where a member cannot be had.
const lostMember = "link"

// lostLately returns the error of an object that could not be had a short while
// ago.
func (rec *reconcile) lostLately(uid string) error {
	app := rec.applicationOf(uid)
	if app == nil || !rec.now.Before(app.retryAt) {
		return nil
	}
	if lost := new(build.MemberError); errors.As(app.failed[lostMember], &lost) && lost.UID == uid {
		return lost.Err
	}
	return nil
}
