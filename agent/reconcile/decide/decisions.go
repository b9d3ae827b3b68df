// Package decide holds what one reconcile decides for applications: the copies of them, which
// version of each is to run and where, and how each came off. It changes nothing in the kernel,
// and queues nothing: what makes a version ready to run is given to it.
package decide

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/intent"
)

// Decisions are what one reconcile decides for applications. Want is what plan.Make plans
// for, and Outcomes are what status and back-off follow from. The verbs change both:
//
//	verb       want                                    outcome
//	ChooseGone Gone, or Frozen                         Unloading, or Staying with the error of who cannot be asked
//	Choose     a version to run, or Frozen, or Gone    Running; FallingBack, Staying or Unloading, with the error of one that
//	                                                   cannot be had
//	Reject     the version that is to run leaves;      FallingBack, Staying or Unloading, with the error
//	           another, or Frozen, or Gone
//	Postpone   as Reject                               as Reject, Queued, which says why
//	LeaveOut   the attachments of some places leave    their links fail, with the errors; Retry
//	TakeOut    Out of one chain                        blame
//	KeepOut    Out of one chain                        the error
//	Overrule   Out of one chain, unless TakeBack       the error; links fail, Retry
//	Leave      one chain is Left                       blame of all that it was to change
//	Await      one chain is Left                       all that it is to change Await it
//	RunInterim the Interim members of one chain        all that it is to change Await it, or are rejected
//	blame                                              the links in one chain fail; Retry
//
// All that fails is tried again after a while; see FailedLately.
type Decisions struct {
	Options
	byUID map[string]*Application
	// toRun are the applications that ChooseGone left to Choose.
	toRun []*Application
	// indexes are those of Want.Applications by uid.
	indexes map[string]int
	// copied are the applications whose FailedActions are a map of this reconcile's own.
	copied copied

	Want     plan.Want
	Outcomes map[string]*report.Outcome
	// Leaving are the members of chains that are Left, by device, which are to run there no more: they are switched off.
	Leaving map[plan.Device][]plan.Member
	// Overruled says by device and uid why applications that run there are kept out of the chain for one of the cluster's.
	Overruled map[plan.Device]map[string]error
	// Awaited are the revisions, by uid, that only wait for the load of a chain.
	Awaited map[[2]string]bool
	// Changed are the applications that were rejected, or left out of places, since they were taken from here last.
	Changed []string
	// Again means that something was put off that the next reconcile can do at once.
	Again bool
}

// Options are what a reconcile decides with. All are required.
type Options struct {
	Log *slog.Logger
	Now time.Time
	// Node has the labels that it had when the reconcile began.
	Node version.Node
	// Look is the kernel's state. It is only read.
	Look *live.Look
	// Prepare returns a version as it is to run, once it is in the kernel. It fails with an
	// error that IsPending until then.
	Prepare func(app *Application, o intent.Opened, out *report.Outcome) (plan.Application, error)
	// Applications are copies, ordered by name.
	Applications []*Application
}

// New begins the decisions of a reconcile: nothing is wanted.
func New(o Options) *Decisions {
	d := &Decisions{Options: o, byUID: map[string]*Application{}, indexes: map[string]int{}, copied: copied{},
		Outcomes: map[string]*report.Outcome{}, Awaited: map[[2]string]bool{}, Leaving: map[plan.Device][]plan.Member{},
		Overruled: map[plan.Device]map[string]error{}}
	d.Want.Out, d.Want.Left, d.Want.Interim = map[plan.Device][]string{}, map[plan.Device]bool{}, map[plan.Device][]plan.Member{}
	for _, app := range o.Applications {
		d.byUID[app.Newest.Payload().UID] = app
	}
	return d
}

// Application returns the copy of an application, or nil where no intent of it is known.
func (d *Decisions) Application(uid string) *Application { return d.byUID[uid] }

// IntentOf finds the intent with the revision; nil where none is known.
func (d *Decisions) IntentOf(uid, revision string) *intent.Opened {
	if app := d.byUID[uid]; app != nil {
		return app.Intent(revision)
	}
	return nil
}

// NameOf returns an application's name for the log, or its UID where no intent of it is
// known.
func (d *Decisions) NameOf(uid string) string {
	if app := d.byUID[uid]; app != nil {
		return app.Newest.Payload().Application.String()
	}
	return uid
}

// Outcome returns the outcome of an application, which it may begin.
func (d *Decisions) Outcome(uid string) *report.Outcome {
	if d.Outcomes[uid] == nil {
		d.Outcomes[uid] = &report.Outcome{}
	}
	return d.Outcomes[uid]
}

// IndexOf returns the index in want of the application; -1 where it is not to run.
func (d *Decisions) IndexOf(uid string) int {
	if i, ok := d.indexes[uid]; ok {
		return i
	}
	return -1
}

// IsGone reports whether an application is to be unloaded.
func (d *Decisions) IsGone(uid string) bool { return is[report.Unloading](d, uid) }

// IsFrozen reports whether what runs of an application is left as it is, also of one whose intent is not known.
func (d *Decisions) IsFrozen(uid string) bool {
	if d.byUID[uid] == nil {
		_, has := d.Look.State().Revisions[uid]
		return has
	}
	return is[report.Staying](d, uid)
}

// is reports whether that was decided for an application.
func is[S report.State](d *Decisions, uid string) bool {
	out := d.Outcomes[uid]
	if out == nil {
		return false
	}
	_, is := out.State.(S)
	return is
}

// Withdrew reports whether a revision may not run any more beside the newest intent
// of its application.
func (d *Decisions) Withdrew(uid, revision string) bool {
	app := d.byUID[uid]
	return app != nil && d.Node.Withdrew(app.Known, revision)
}

// IsOnItsWay reports whether a version of the application is fetched or loaded for the first
// time: what failed before may fail for ever.
func (d *Decisions) IsOnItsWay(uid string) bool {
	app, out := d.byUID[uid], d.Outcomes[uid]
	return app != nil && out != nil && out.IsPending() && !app.FailedBefore
}

// CanFallBack reports whether a version may take the place of the application's
// newest one.
func (d *Decisions) CanFallBack(uid string) bool {
	if !is[report.Running](d, uid) {
		return false
	}
	other, _ := d.Node.Fallback(d.byUID[uid].Known, d.Look.RevisionName(uid), d.Outcomes[uid].IsPending())
	return other != nil
}

// IsUnproven reports whether the newest version is to run, and was never whole here
// while another one was.
func (d *Decisions) IsUnproven(uid string) bool {
	return is[report.Running](d, uid) && d.byUID[uid].IsUpdate()
}

// Reject takes the version of an application that is to run out of this reconcile.
func (d *Decisions) Reject(uid string, err error) {
	drop(&d.Want, d.indexes, uid)
	d.Changed = append(d.Changed, uid)
	app, was := d.byUID[uid], d.Outcomes[uid]
	if app == nil {
		return
	}
	out := &report.Outcome{State: was.State, Errs: was.Errs}
	if was.HasLeft(report.Retry{}) {
		out.Leave(report.Retry{})
	}
	if IsPending(err) {
		out.Leave(report.Answer{})
		if runs := was.Version(); runs != nil {
			d.Awaited[[2]string{uid, runs.Revision()}] = true
		}
	}
	d.Outcomes[uid] = out
	rejected, why := &app.Newest, was.Hindrance()
	if back, is := was.State.(report.FallingBack); is {
		rejected = back.To
	} else if !isPending(why) {
		why = hindranceOf(err)
	}
	d.noteUnavailable(app, *rejected, why, err)
	switch was.State.(type) {
	case report.Running:
		d.fallBack(app, why)
	case report.FallingBack:
		d.become(uid, without(d.Node.StaysWithout(rejected, d.Look.RevisionName(uid)) || IsPending(err), why))
	case report.Staying, nil:
		d.become(uid, report.Staying{Why: why})
	case report.Unloading:
		// What may not run any more does not stay, whatever else it waits for.
		d.become(uid, report.Unloading{Why: why})
	}
}

// drop takes an application out of what is to run, where it is. The last one takes its place: they have no order.
func drop(want *plan.Want, indexes map[string]int, uid string) {
	i, ok := indexes[uid]
	if !ok {
		return
	}
	last := len(want.Applications) - 1
	want.Applications[i] = want.Applications[last]
	indexes[want.Applications[i].UID] = i
	delete(indexes, uid)
	want.Applications = slices.Delete(want.Applications, last, last+1)
}

// Postpone leaves the version of an application that is to run for a later reconcile.
// What runs goes on meanwhile.
func (d *Decisions) Postpone(uid, why string) {
	d.Reject(uid, &QueuedError{why})
}

// LeaveOut goes on with an application at its other places, and says of each place why it is left
// out there.
func (d *Decisions) LeaveOut(uid string, why map[plan.Place]error) {
	i := d.IndexOf(uid)
	app, out := d.byUID[uid], d.Outcomes[uid]
	if i < 0 || app == nil || out == nil {
		return
	}
	d.Changed = append(d.Changed, uid)
	places := map[plan.Place]plan.Place{}
	for place := range why {
		places[unnamed(place)] = place
	}
	attachments, left := d.Want.Applications[i].Attachments, map[plan.Place]bool{}
	d.Want.Applications[i].Attachments = make([]plan.Attachment, 0, len(attachments))
	for _, a := range attachments {
		place, leaves := places[unnamed(plan.PlaceOf(a))]
		if !leaves {
			d.Want.Applications[i].Attachments = append(d.Want.Applications[i].Attachments, a)
			continue
		}
		left[place] = true
		out.Links = append(out.Links, report.Unmade{
			Program: a.Program, Status: report.LinkStatus{Hook: a.Hook, Target: a.Target.String(), State: report.Failed, Error: why[place].Error()},
		})
	}
	isLate, before := d.Now.Before(app.RetryAt), app.LeftOut
	app.LeftOut = make(map[plan.Place]error, len(before)+len(left))
	maps.Copy(app.LeftOut, before)
	for _, place := range slices.SortedFunc(maps.Keys(left), plan.Place.Compare) {
		err := why[place]
		out.Errs = append(out.Errs, err)
		if isLate && before[place] != nil {
			continue
		}
		out.Leave(report.Retry{})
		app.LeftOut[place] = err
		d.Log.Error("leave out", "application", app.Newest.Payload().Application.String(), "place", place.String(), "error", whole(err))
	}
}

// unnamed is a place whatever its interface is called.
func unnamed(p plan.Place) plan.Place {
	p.Interface = ""
	return p
}

// TakeOut leaves a member out of a chain that cannot be made with it. Of the chain's members only its own are read.
func (d *Decisions) TakeOut(c plan.Chain, lost *build.MemberError) {
	d.Want.Out[c.Device] = append(d.Want.Out[c.Device], lost.UID)
	d.blame(lost.UID, c, lost, func(err error) error { return &takenOutError{on: c.Interface, err: err} })
}

// KeepOut leaves an application that stays as it is out of the chain of a device.
func (d *Decisions) KeepOut(on plan.Device, uid string, why error) {
	d.Want.Out[on] = append(d.Want.Out[on], uid)
	out := d.Outcome(uid)
	out.Errs = append(out.Errs, why)
}

// Leave keeps a chain as it is, and says so to the member that cannot be had, to those that should change
// there, and to those that should leave it.
func (d *Decisions) Leave(c plan.Chain, running []plan.Member, err error) {
	d.Want.Left[c.Device] = true
	lost := new(build.MemberError)
	blamed := plan.Changed(c.Members, running)
	if errors.As(err, &lost) && !slices.Contains(blamed, lost.UID) {
		blamed = append(blamed, lost.UID)
	}
	for _, uid := range blamed {
		d.blame(uid, c, err, func(err error) error {
			return fmt.Errorf("change the chain of %s: it stays as it is: %w", c.Interface, err)
		})
	}
	d.Leaving[c.Device] = LeavingOf(d, c.Device, c.Members, running)
	for _, uid := range plan.Leavers(c.Members, running) {
		d.blame(uid, c, err, func(err error) error { return &leaveError{d: d, on: c, uid: uid, err: err} })
	}
}

// LeavingOf returns the members that run in the chain of a device, and are to run there no more, whether or not the chain of
// members can be had: also of a revision that may not run beside the newest intent.
func LeavingOf(d *Decisions, device plan.Device, members, running []plan.Member) []plan.Member {
	leaving := plan.Without(plan.Leaving(members, running), d.Want.Out[device])
	for _, m := range running {
		if d.Withdrew(m.UID, m.Revision) && !d.IsFrozen(m.UID) && !slices.Contains(leaving, m) {
			leaving = append(leaving, m)
		}
	}
	return leaving
}

// Await keeps a chain as it is until an object has come, or a load ended.
func (d *Decisions) Await(c plan.Chain, running []plan.Member, err error) {
	d.Want.Left[c.Device] = true
	for _, uid := range append(plan.Changed(c.Members, running), plan.Leavers(c.Members, running)...) {
		d.NotePending(uid, err)
	}
}

// NotePending notes that an application cannot have its newest version before what is pending
// ended. What it has of that version goes on.
func (d *Decisions) NotePending(uid string, err error) {
	pending, is := hindranceOf(err).(report.Pending)
	if out := d.Outcomes[uid]; is && out != nil {
		out.Await(pending)
	}
}

// RunInterim has a chain run that was loaded, until the wanted one is. The applications that
// are in the two otherwise wait for the wanted one.
func (d *Decisions) RunInterim(c plan.Chain, wanted []plan.Member) {
	d.Want.Interim[c.Device] = c.Members
	for _, uid := range plan.UIDsOf(slices.Concat(wanted, c.Members)) {
		of := func(members []plan.Member) []plan.Member {
			return slices.DeleteFunc(slices.Clone(members), func(m plan.Member) bool { return m.UID != uid })
		}
		is, runs := of(wanted), of(c.Members)
		switch {
		case slices.Equal(is, runs):
		case len(plan.Newcomers(is, runs))+len(plan.Newcomers(runs, is)) > 0:
			d.Reject(uid, build.ErrLoading)
		default:
			// Only its place in the chain is another. All else of it goes on.
			d.NotePending(uid, build.ErrLoading)
		}
	}
}

// ReportUnseen keeps the outcomes of what is gone alone, with the error of a look at the node that failed: nothing was
// found out about the others.
func (d *Decisions) ReportUnseen(err error) {
	maps.DeleteFunc(d.Outcomes, func(uid string, _ *report.Outcome) bool { return !d.IsGone(uid) })
	for _, out := range d.Outcomes {
		out.Errs = append(out.Errs, err)
	}
}

// blame tells an application that it is not in a chain as it is to be, in words around the cause. The
// cause is tried again after a while.
func (d *Decisions) blame(uid string, c plan.Chain, cause error, words func(error) error) {
	out := d.Outcome(uid)
	out.Fail(uid, plan.Action{Verb: plan.SetChain, Interface: c.Interface, Members: c.Members}, words(Told(d, uid, cause)))
	if d.isLate(cause) {
		return
	}
	out.Leave(report.Retry{})
	d.Log.Error("make chain", "application", d.NameOf(uid), "interface", c.Interface, "error", words(cause))
	if app := d.byUID[uid]; app != nil {
		d.copied.note(app, lostMember, cause)
	}
}

// isLate reports whether what a chain cannot be made for was found a short while ago.
func (d *Decisions) isLate(cause error) bool {
	if _, isLate := errors.AsType[*BackingOffError](cause); isLate {
		return true
	}
	lost, is := errors.AsType[*build.MemberError](cause)
	return is && d.LostLately(lost.UID) != nil
}

// lostMember is what failed where a member cannot be had.
const lostMember = "link"

// LostLately returns the error of an object that could not be had a short while
// ago.
func (d *Decisions) LostLately(uid string) error {
	return lostOf(uid, d.FailedLately(uid, lostMember))
}

// LostBefore reports whether an object could not be had when that was tried last.
func (d *Decisions) LostBefore(uid string) bool {
	return lostOf(uid, d.FailedBefore(uid, lostMember)) != nil
}

func lostOf(uid string, failure error) error {
	if lost, is := errors.AsType[*build.MemberError](failure); is && lost.UID == uid {
		return lost.Err
	}
	return nil
}

// FailedLately returns the error of an application's action that is not to be tried again yet.
func (d *Decisions) FailedLately(uid, action string) error {
	if app := d.byUID[uid]; app != nil && d.Now.Before(app.RetryAt) {
		return app.FailedActions[action]
	}
	return nil
}

// FailedBefore returns the error of an application's action when it was tried last; nil where it
// went well, or was not tried.
func (d *Decisions) FailedBefore(uid, action string) error {
	if app := d.byUID[uid]; app != nil {
		return app.FailedActions[action]
	}
	return nil
}

// NoteAction remembers that an action on an application failed, or went well.
func (d *Decisions) NoteAction(uid, action string, err error) {
	if app := d.byUID[uid]; app != nil {
		d.copied.note(app, action, err)
	}
}

// copied are applications with a map of FailedActions of their own.
type copied map[*Application]bool

// note notes an action of an application in a map that it copies once: there may be thousands.
func (c copied) note(app *Application, action string, err error) {
	if !c[app] {
		app.FailedActions, c[app] = maps.Clone(app.FailedActions), true
	}
	if err == nil {
		delete(app.FailedActions, action)
		return
	}
	if app.FailedActions == nil {
		app.FailedActions = map[string]error{}
	}
	app.FailedActions[action] = err
}
