package decide

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/intent"
)

// GoneByIntent returns the UIDs of what is to leave nothing behind where the newest intent alone says so. It waits
// for nothing, not even for a look at the kernel.
func (d *Decisions) GoneByIntent() []string {
	var uids []string
	for _, app := range d.Applications {
		if gone, err := d.isGoneByIntent(app); gone && err == nil {
			uids = append(uids, app.Newest.Payload().UID)
		}
	}
	return uids
}

// isGoneByIntent fails where it cannot be determined whether the application is for this node.
func (d *Decisions) isGoneByIntent(app *Application) (bool, error) {
	payload := app.Newest.Payload()
	selected, err := d.Node.Selects(payload)
	return payload.Tombstone || len(payload.Programs) == 0 || !selected, err
}

// ChooseGone chooses what GoneByIntent says, and what is left as it is because the node cannot be determined for it, or
// because no intent of it is known.
func (d *Decisions) ChooseGone() {
	for _, app := range d.Applications {
		payload := app.Newest.Payload()
		out := &report.Outcome{}
		d.Outcomes[payload.UID] = out
		gone, err := d.isGoneByIntent(app)
		switch {
		case err != nil:
			// It is not known whether it is for this node.
			out.Errs = append(out.Errs, err)
			d.become(payload.UID, report.Staying{Why: report.Refused{}})
		case gone:
			d.become(payload.UID, report.Unloading{})
		default:
			d.toRun = append(d.toRun, app)
		}
	}
	for uid := range d.Look.State().Revisions {
		if d.byUID[uid] == nil {
			d.Want.Frozen = append(d.Want.Frozen, uid)
		}
	}
	slices.Sort(d.Want.Frozen)
}

// Choose chooses for each other application what is to be live: the newest intent's
// version, else what fallBack says. The oldest comes first, and has what there is not enough of; only
// one whose maps it takes comes before it.
func (d *Decisions) Choose() {
	created := map[*Application]int64{}
	for _, app := range d.toRun {
		payload := app.Newest.Payload()
		created[app] = payload.CreatedAt()
	}
	slices.SortStableFunc(d.toRun, func(x, y *Application) int { return cmp.Compare(created[x], created[y]) })
	known := make([]version.Known, len(d.toRun))
	for i, app := range d.toRun {
		known[i] = app.Known
	}
	for _, i := range sharing.OwnersFirst(known) {
		d.chooseVersion(d.toRun[i])
	}
	slices.Sort(d.Want.Frozen)
}

// chooseVersion chooses for one application.
func (d *Decisions) chooseVersion(app *Application) {
	err := d.run(app, &app.Newest, report.Running{Version: &app.Newest})
	if err == nil {
		return
	}
	why := hindranceOf(err)
	d.noteUnavailable(app, app.Newest, why, err)
	d.fallBack(app, why)
}

// run has a version of an application run, which is decided where it can be had.
func (d *Decisions) run(app *Application, o *intent.Opened, decided report.State) error {
	uid := app.Newest.Payload().UID
	wanted, err := d.Prepare(app, *o, d.Outcomes[uid])
	if err != nil {
		return err
	}
	d.indexes[wanted.UID] = len(d.Want.Applications)
	d.Want.Applications = append(d.Want.Applications, wanted)
	d.become(uid, decided)
	return nil
}

// fallBack goes on without the newest intent's version: with another, with what
// runs as it is, or with nothing. why is what keeps that one from running.
func (d *Decisions) fallBack(app *Application, why report.Hindrance) {
	uid := app.Newest.Payload().UID
	other, stays := d.Node.Fallback(app.Known, d.Look.RevisionName(uid), isPending(why))
	if other == nil && stays && isPending(why) {
		other = d.runsWhole(app)
	}
	if other != nil {
		err := d.run(app, other, report.FallingBack{To: other, Why: why})
		if err == nil {
			return
		}
		if IsPending(err) {
			d.Outcomes[uid].Leave(report.Answer{})
		}
		d.noteUnavailable(app, *other, why, err)
		stays = d.Node.StaysWithout(other, d.Look.RevisionName(uid)) || IsPending(err)
	}
	d.become(uid, without(stays, why))
}

// runsWhole returns the intent of what runs, where that is one version, whole and for this node.
// Pods and devices come and go for it while another one is loaded, which may take long. Nothing of it
// is loaded: the newest intent may not name it any more.
func (d *Decisions) runsWhole(app *Application) *intent.Opened {
	uid := app.Newest.Payload().UID
	runs, last := d.Look.RevisionName(uid), app.Deployed
	if last == nil || last.Revision() != runs || !app.Checked[runs] || !d.Node.MayHave(*last) || d.Look.RunsBeside(uid, runs) {
		return nil
	}
	return last
}

// without is the state of an application without a version that is to run, whose newest one why keeps from that.
func without(stays bool, why report.Hindrance) report.State {
	if stays {
		return report.Staying{Why: why}
	}
	return report.Unloading{Why: why}
}

// become decides for an application.
func (d *Decisions) become(uid string, decided report.State) {
	switch decided.(type) {
	case report.Staying:
		if !d.IsFrozen(uid) {
			d.Want.Frozen = append(d.Want.Frozen, uid)
		}
	case report.Unloading:
		if !d.IsGone(uid) {
			d.Want.Gone = append(d.Want.Gone, uid)
		}
	case report.Running, report.FallingBack:
	}
	d.Outcomes[uid].State = decided
}

// noteUnavailable notes why a version cannot be had: the newest intent's, which why keeps from running, or one that
// would have taken its place. What is no matter of the kernel's profile, of the memory for
// maps or of a map of another application is not tried again before a while.
func (d *Decisions) noteUnavailable(app *Application, o intent.Opened, why report.Hindrance, err error) {
	newest := o.Payload().Serial == app.Newest.Payload().Serial
	out := d.Outcomes[app.Newest.Payload().UID]
	unfit, late, noMemory := new(build.UnfitError), new(BackingOffError), new(NoMemoryError)
	awaited, denied := new(sharing.WaitError), new(sharing.DeniedError)
	switch {
	case IsPending(err) || newest && errors.As(err, &awaited):
		return
	case errors.As(err, &noMemory) || errors.As(err, &awaited) || errors.As(err, &denied):
	case errors.As(err, &late):
		err = late.Err
	case errors.As(err, &unfit):
		d.logUnfit(app, unfit)
	default:
		d.fail(app, o, err)
	}
	switch {
	case newest:
		out.Errs = append(out.Errs, err)
	case !isPending(why):
		// Its words alone: what it lacks is not what the newest version lacks.
		out.Errs = append(out.Errs, errors.New("go on with the version before: "+err.Error()))
	}
}

// logUnfit logs once that a version is not for this node's kernel.
func (d *Decisions) logUnfit(app *Application, err *build.UnfitError) {
	if !strings.Contains(app.Status.Error, err.Lacks) {
		d.Log.Warn("this node cannot hold it", "application", app.Newest.Payload().Application.String(), "error", err.Lacks)
	}
}

// fail notes what was tried in vain.
func (d *Decisions) fail(app *Application, o intent.Opened, err error) {
	payload := o.Payload()
	d.Outcomes[payload.UID].Leave(report.Retry{})
	app.Rejected, app.FailedBefore = with(app.Rejected, payload.Serial, err), true
	if payload.Serial == app.Newest.Payload().Serial || app.VerifierLog == "" {
		app.VerifierLog = loader.LogOf(err)
		if joint := new(chain.Rejection); app.VerifierLog != "" && errors.As(err, &joint) {
			app.VerifierLog = report.JointLog + "\n" + app.VerifierLog
		}
	}
	d.Log.Error("load", "application", payload.Application.String(), "serial", payload.Serial, "error", whole(err))
}
