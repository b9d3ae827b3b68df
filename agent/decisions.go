package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/live"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/agent/version"
	"github.com/skep-dev/skep/intent"
)

// Application is what a node knows of an application, from one reconcile to the next. What is
// decided for it changes copies: a map in it is replaced, and never written.
type Application struct {
	version.Known
	// checked are the revisions whose pins were found whole, and lacks says of
	// others what this node's kernel lacks for their object.
	checked map[string]bool
	lacks   map[string]string
	// maps tell what became of the maps at the last change of revision.
	maps []kernel.MapReport

	// failures counts those in a row, and retryAt is when it is tried again.
	failures int
	retryAt  time.Time
	// failedBefore tells that a version of it could not be had, and none was whole since:
	// nobody waits for it.
	failedBefore bool
	// rejected says, by serial, why a version could not be had; failed are the
	// actions that failed. Neither is tried again before retryAt.
	rejected map[int64]error
	failed   map[string]error
	// leftOut says why it is left out of a place, also until retryAt.
	leftOut map[plan.Place]error
	// log is what the verifier said at the last rejection.
	log string
	// status is that of the last reconcile.
	status ApplicationStatus
}

// decisions are what one reconcile decides for applications. want is what plan.Make plans
// for, and outcomes are what status and back-off follow from. The verbs change both:
//
//	verb       want                                    outcome
//	choose     a version to run, or Frozen, or Gone    the error of one that cannot be had
//	reject     the version that is to run leaves;      Refused and the error, or Pending
//	           another, or Frozen, or Gone
//	postpone   as reject                               Pending, and Waits says why
//	leaveOut   the attachments of one place leave      their links fail, with the error
//	takeOut    Out of one chain                        blame
//	leave      one chain is Left                       blame of all that it was to change
//	await      one chain is Left                       Pending of all that it is to change
//	runInterim the Interim members of one chain        Pending of all that it is to change
//	blame                                              the links in one chain fail; Tried
//
// All that fails is tried again after a while; see failedLately.
type decisions struct {
	log *slog.Logger
	now time.Time
	// node has the labels that it had when the reconcile began.
	node version.Node
	// look is the kernel's state. It is only read.
	look *live.Look
	// prepare brings a version into the kernel and finds its targets; see versions.
	prepare func(app *Application, o intent.Opened, out *report.Outcome) (plan.Application, error)
	// applications are copies, ordered by name.
	applications []*Application
	byUID        map[string]*Application

	want     plan.Want
	outcomes map[string]*report.Outcome
	// awaited are the revisions, by uid, that only wait for the load of a chain.
	awaited map[[2]string]bool
	// again means that something was put off that the next reconcile can do at once.
	again bool
}

// newDecisions begins the decisions of a reconcile: nothing is wanted.
func newDecisions(d decisions) *decisions {
	d.byUID, d.outcomes, d.awaited = map[string]*Application{}, map[string]*report.Outcome{}, map[[2]string]bool{}
	for _, app := range d.applications {
		d.byUID[app.Newest.Payload().UID] = app
	}
	return &d
}

// application returns the copy of an application, or nil where no intent of it is known.
func (d *decisions) application(uid string) *Application { return d.byUID[uid] }

// intentOf finds the intent with the revision; nil where none is known.
func (d *decisions) intentOf(uid, revision string) *intent.Opened {
	if app := d.byUID[uid]; app != nil {
		return app.Intent(revision)
	}
	return nil
}

// nameOf returns an application's name for the log, or its UID where no intent of it is
// known.
func (d *decisions) nameOf(uid string) string {
	if app := d.byUID[uid]; app != nil {
		return app.Newest.Payload().Application.String()
	}
	return uid
}

// outcome returns the outcome of an application, which it may begin.
func (d *decisions) outcome(uid string) *report.Outcome {
	if d.outcomes[uid] == nil {
		d.outcomes[uid] = &report.Outcome{}
	}
	return d.outcomes[uid]
}

// wanted returns the index in want of the application; -1 where it is not to run.
func (d *decisions) wanted(uid string) int {
	return slices.IndexFunc(d.want.Applications, func(a plan.Application) bool { return a.UID == uid })
}

// isGone reports whether an application is to be unloaded.
func (d *decisions) isGone(uid string) bool { return slices.Contains(d.want.Gone, uid) }

// withdrew reports whether a revision may not run any more beside the newest intent
// of its application.
func (d *decisions) withdrew(uid, revision string) bool {
	app := d.byUID[uid]
	return app != nil && d.node.Withdrew(app.Known, revision)
}

// isOnItsWay reports whether a version of the application is fetched or loaded for the first
// time: what failed before may fail for ever.
func (d *decisions) isOnItsWay(uid string) bool {
	app, out := d.byUID[uid], d.outcomes[uid]
	return app != nil && out != nil && out.Pending && !app.failedBefore
}

// canFallBack reports whether a version may take the place of the application's
// newest one.
func (d *decisions) canFallBack(uid string) bool {
	app, out := d.byUID[uid], d.outcomes[uid]
	if app == nil || out == nil || out.Live != &app.Newest {
		return false
	}
	other, _ := d.node.Fallback(app.Known, d.look.RevisionName(uid), out.Pending)
	return other != nil
}

// unproven reports whether the newest version is to run, and was never whole here
// while another one was.
func (d *decisions) unproven(uid string) bool {
	app, out := d.byUID[uid], d.outcomes[uid]
	return app != nil && out != nil && out.Live == &app.Newest && app.IsUpdate()
}

// choose chooses for each application what is to be live: the newest intent's
// version, else what fallBack says.
func (d *decisions) choose() {
	for _, app := range d.applications {
		d.outcomes[app.Newest.Payload().UID] = &report.Outcome{}
		d.chooseVersion(app)
	}
	for uid := range d.look.State.Revisions {
		if d.byUID[uid] == nil {
			d.want.Frozen = append(d.want.Frozen, uid)
		}
	}
	for uid := range d.look.Set.Links {
		if d.byUID[uid] == nil && !slices.Contains(d.want.Frozen, uid) {
			d.want.Frozen = append(d.want.Frozen, uid)
		}
	}
	slices.Sort(d.want.Frozen)
}

// chooseVersion chooses for one application.
func (d *decisions) chooseVersion(app *Application) {
	payload := app.Newest.Payload()
	out := d.outcomes[payload.UID]
	selected, err := d.node.Selects(payload)
	if err != nil {
		// Nobody can report whether it is for this node.
		out.Errs, out.Refused = append(out.Errs, err), true
		d.want.Frozen = append(d.want.Frozen, payload.UID)
		return
	}
	if payload.Tombstone || len(payload.Programs) == 0 || !selected {
		d.want.Gone = append(d.want.Gone, payload.UID)
		return
	}
	if err = d.run(app, &app.Newest, out); err == nil {
		return
	}
	out.Pending, out.Loading = isPending(err), errors.Is(err, loads.ErrLoading)
	d.noteUnavailable(app, app.Newest, err)
	out.Refused = true
	d.fallBack(app)
}

// run wants a version of an application to run, where it can be had.
func (d *decisions) run(app *Application, o *intent.Opened, out *report.Outcome) error {
	wanted, err := d.prepare(app, *o, out)
	if err != nil {
		return err
	}
	d.want.Applications, out.Live = append(d.want.Applications, wanted), o
	return nil
}

// fallBack goes on without the newest intent's version: with another, with what
// runs as it is, or with nothing.
func (d *decisions) fallBack(app *Application) {
	uid := app.Newest.Payload().UID
	out := d.outcomes[uid]
	other, stays := d.node.Fallback(app.Known, d.look.RevisionName(uid), out.Pending)
	if other != nil {
		err := d.run(app, other, out)
		if err == nil {
			return
		}
		out.Unsettled = isPending(err)
		d.noteUnavailable(app, *other, err)
		stays = d.node.StaysWithout(other, d.look.RevisionName(uid)) || isPending(err)
	}
	d.keepOrUnload(uid, stays)
}

// keepOrUnload leaves what runs of an application as it is, or has it go.
func (d *decisions) keepOrUnload(uid string, stays bool) {
	if stays {
		d.want.Frozen = append(d.want.Frozen, uid)
		return
	}
	d.want.Gone = append(d.want.Gone, uid)
}

// noteUnavailable notes why a version cannot be had: the newest intent's, or one that
// would have taken its place. What is no matter of the kernel's profile or of the memory
// for maps is not tried again before a while.
func (d *decisions) noteUnavailable(app *Application, o intent.Opened, err error) {
	newest := o.Payload().Serial == app.Newest.Payload().Serial
	out := d.outcomes[app.Newest.Payload().UID]
	unfit, late, noMemory := new(build.UnfitError), new(backingOffError), new(noMemoryError)
	switch {
	case isPending(err):
		return
	case errors.As(err, &noMemory):
	case errors.As(err, &late):
		err = late.err
	case errors.As(err, &unfit):
		d.logUnfit(app, unfit)
	default:
		d.fail(app, o, err)
	}
	switch {
	case newest:
		out.Errs = append(out.Errs, err)
	case !out.Pending:
		// Its words alone: what it lacks is not what the newest version lacks.
		out.Errs = append(out.Errs, errors.New("go on with the version before: "+err.Error()))
	}
}

// logUnfit logs once that a version is not for this node's kernel.
func (d *decisions) logUnfit(app *Application, err *build.UnfitError) {
	if !strings.Contains(app.status.Error, err.Lacks) {
		d.log.Warn("this node cannot hold it", "application", app.Newest.Payload().Application.String(), "error", err.Lacks)
	}
}

// fail notes what was tried in vain.
func (d *decisions) fail(app *Application, o intent.Opened, err error) {
	payload := o.Payload()
	d.outcomes[payload.UID].Tried = true
	app.rejected, app.failedBefore = with(app.rejected, payload.Serial, err), true
	if payload.Serial == app.Newest.Payload().Serial || app.log == "" {
		app.log = kernel.LogOf(err)
	}
	d.log.Error("load", "application", payload.Application.String(), "serial", payload.Serial, "error", err)
}

// reject takes the version of an application that is to run out of this reconcile.
func (d *decisions) reject(uid string, err error) {
	d.want.Applications = slices.DeleteFunc(d.want.Applications, func(a plan.Application) bool { return a.UID == uid })
	app, was := d.byUID[uid], d.outcomes[uid]
	if app == nil {
		return
	}
	if isPending(err) && was.Live != nil {
		d.awaited[[2]string{uid, was.Live.Revision()}] = true
	}
	newest := was.Live == nil || was.Live == &app.Newest
	d.outcomes[uid] = &report.Outcome{Errs: was.Errs, Refused: true, Tried: was.Tried,
		Pending: was.Pending || newest && isPending(err), Loading: was.Loading || newest && errors.Is(err, loads.ErrLoading),
		Unsettled: isPending(err)}
	d.noteUnavailable(app, *cmp.Or(was.Live, &app.Newest), err)
	if was.Live == &app.Newest {
		d.fallBack(app)
		return
	}
	d.keepOrUnload(uid, was.Live == nil || d.node.StaysWithout(was.Live, d.look.RevisionName(uid)) || isPending(err))
}

// postpone leaves the version of an application that is to run for a later reconcile.
// What runs goes on meanwhile.
func (d *decisions) postpone(uid, why string) {
	d.reject(uid, errQueued)
	if out := d.outcomes[uid]; out != nil {
		out.Waits = why
	}
}

// leaveOut goes on with an application at its other places.
func (d *decisions) leaveOut(place plan.Place, uid string, err error) {
	i := d.wanted(uid)
	app, out := d.byUID[uid], d.outcomes[uid]
	if i < 0 || app == nil || out == nil {
		return
	}
	isThere := func(a plan.Attachment) bool { return a.Hook == place.Hook && a.Ifindex == place.Ifindex }
	attachments := d.want.Applications[i].Attachments
	for _, a := range attachments {
		if isThere(a) {
			out.Links = append(out.Links, report.Unmade{Program: a.Program, Status: LinkStatus{Hook: a.Hook, Target: a.Interface, State: Failed, Error: err.Error()}})
		}
	}
	d.want.Applications[i].Attachments = slices.DeleteFunc(slices.Clone(attachments), isThere)
	out.Errs = append(out.Errs, err)
	if d.now.Before(app.retryAt) && app.leftOut[place] != nil {
		return
	}
	out.Tried, app.leftOut = true, with(app.leftOut, place, err)
	d.log.Error("leave out", "application", app.Newest.Payload().Application.String(), "place", place.String(), "error", err)
}

// takeOut leaves a member out of a chain that cannot be made with it.
func (d *decisions) takeOut(c plan.Chain, lost *build.MemberError) {
	if d.want.Out == nil {
		d.want.Out = map[int][]string{}
	}
	d.want.Out[c.Ifindex] = append(d.want.Out[c.Ifindex], lost.UID)
	d.blame(lost.UID, c, lost, fmt.Errorf("run in the chain of %s: it is left out, since the chain is to change and cannot be made with it: %w", c.Interface, lost.Err))
}

// leave keeps a chain as it is, and says so to the member that cannot be had,
// else to those that were to change places, and to those that were to go.
func (d *decisions) leave(c plan.Chain, running []plan.Member, err error) {
	d.want.Left = append(d.want.Left, c.Ifindex)
	lost := new(build.MemberError)
	blamed := plan.Changed(c.Members, running)
	if errors.As(err, &lost) {
		blamed = []string{lost.UID}
	}
	for _, uid := range blamed {
		d.blame(uid, c, err, fmt.Errorf("change the chain of %s: it stays as it is: %w", c.Interface, err))
	}
	for _, uid := range plan.Leavers(c.Members, running) {
		d.blame(uid, c, err, fmt.Errorf("leave the chain of %s: it runs there still: %w", c.Interface, err))
	}
}

// await keeps a chain as it is until an object has come, or a load ended.
func (d *decisions) await(c plan.Chain, running []plan.Member, err error) {
	d.want.Left = append(d.want.Left, c.Ifindex)
	for _, uid := range append(plan.Changed(c.Members, running), plan.Leavers(c.Members, running)...) {
		d.notePending(uid, err)
	}
}

// notePending notes that an application cannot have its newest version before what is pending
// ended. What it has of that version goes on.
func (d *decisions) notePending(uid string, err error) {
	if out := d.outcomes[uid]; out != nil {
		out.Pending, out.Refused, out.Loading = true, true, errors.Is(err, loads.ErrLoading)
	}
}

// runInterim has a chain run that was loaded, until the wanted one is. The applications that
// are in the two otherwise wait for the wanted one.
func (d *decisions) runInterim(c plan.Chain, wanted []plan.Member) {
	d.want.Interim = with(d.want.Interim, c.Ifindex, c.Members)
	for _, uid := range plan.UIDsOf(slices.Concat(wanted, c.Members)) {
		of := func(members []plan.Member) []plan.Member {
			return slices.DeleteFunc(slices.Clone(members), func(m plan.Member) bool { return m.UID != uid })
		}
		is, runs := of(wanted), of(c.Members)
		switch {
		case slices.Equal(is, runs):
		case len(plan.Newcomers(is, runs))+len(plan.Newcomers(runs, is)) > 0:
			d.reject(uid, loads.ErrLoading)
		default:
			// Only its place in the chain is another. All else of it goes on.
			d.notePending(uid, loads.ErrLoading)
		}
	}
}

// blame tells an application that it is not in a chain as it is to be. The
// cause is tried again after a while.
func (d *decisions) blame(uid string, c plan.Chain, cause, err error) {
	out := d.outcome(uid)
	out.Fail(uid, plan.Action{Verb: plan.SetChain, Interface: c.Interface, Members: c.Members}, err)
	if d.isLate(cause) {
		return
	}
	out.Tried = true
	d.log.Error("make chain", "application", d.nameOf(uid), "interface", c.Interface, "error", err)
	if app := d.byUID[uid]; app != nil {
		app.failed = with(app.failed, lostMember, cause)
	}
}

// isLate reports whether what a chain cannot be made for was found a short while ago.
func (d *decisions) isLate(cause error) bool {
	late, lost := new(backingOffError), new(build.MemberError)
	return errors.As(cause, &late) || errors.As(cause, &lost) && d.lostLately(lost.UID) != nil
}

// lostMember is what failed where a member cannot be had.
const lostMember = "link"

// lostLately returns the error of an object that could not be had a short while
// ago.
func (d *decisions) lostLately(uid string) error {
	if lost := new(build.MemberError); errors.As(d.failedLately(uid, lostMember), &lost) && lost.UID == uid {
		return lost.Err
	}
	return nil
}

// failedLately returns the error of an application's action that is not to be tried again yet.
func (d *decisions) failedLately(uid, action string) error {
	if app := d.byUID[uid]; app != nil && d.now.Before(app.retryAt) {
		return app.failed[action]
	}
	return nil
}

// noteAction remembers that an action on an application failed, or went well.
func (d *decisions) noteAction(uid, action string, err error) {
	if app := d.byUID[uid]; app != nil {
		app.failed = with(app.failed, action, err)
	}
}

// with returns a copy of a map with one entry more or another. The original is shared with
// the application that was copied.
func with[K comparable, V any](m map[K]V, key K, value V) map[K]V {
	changed := make(map[K]V, len(m)+1)
	maps.Copy(changed, m)
	changed[key] = value
	return changed
}

// errQueued: it waits for another application.
var errQueued = errors.New("it waits for another application")

// isPending reports whether an error only says that something is on its way, or
// has to wait for what is.
func isPending(err error) bool {
	return errors.Is(err, objects.ErrFetching) || errors.Is(err, loads.ErrLoading) || errors.Is(err, errQueued)
}

// backingOffError: the version could not be had a short while ago, for err.
type backingOffError struct{ err error }

// Error implements error.
func (b *backingOffError) Error() string { return b.err.Error() }

// Unwrap returns why.
func (b *backingOffError) Unwrap() error { return b.err }
