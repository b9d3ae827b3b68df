package agent

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// application is one application and what became of it. Accept has the one, and a reconcile
// has a copy, until finish replaces the one by it.
type application struct {
	decide.Application
	// envelope is the newest intent as it was sealed, and unkept tells that it
	// is worked on and not on disk.
	envelope intent.Envelope
	unkept   bool
	// loaded are the revisions that were in the kernel after the last reconcile.
	loaded []string
	// exhausted tells that it is a tombstone and that nothing is left of what it is of.
	exhausted bool
	// conflict says that another intent was sent under the newest one's serial, and
	// nothing since that settles which of them holds.
	conflict error
}

// AcceptError says which application's intent was not accepted, or not kept.
type AcceptError struct {
	// Application is the one that the intent names.
	Application v1alpha1.Identity
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *AcceptError) Error() string {
	return fmt.Sprintf("accept intent of %s: %v", e.Application, e.Err)
}

// Unwrap returns the cause.
func (e *AcceptError) Unwrap() error { return e.Err }

// Accept takes sealed intents: a seal that does not hold, a serial that was
// overtaken (intent.ErrOlder) or bears another intent (intent.ErrConflict) and a format not known reject the one envelope
// and not the others. What is accepted is on disk when Accept returns, and Run
// works on it soon after; see Settled. A tombstone, or an intent that does not
// name what runs, is worked on even where it cannot be kept, which is told still,
// and tried again when it is sent again. Nothing is unloaded because it is absent.
//
// The error joins one for each envelope that was rejected: an *AcceptError where
// the seal holds.
func (a *Agent) Accept(envelopes ...intent.Envelope) error {
	var errs []error
	for _, e := range envelopes {
		errs = append(errs, a.accept(e))
	}
	a.wakeUp()
	return errors.Join(errs...)
}

// Batch has the agent look at what is accepted meanwhile all at once: no
// application gains a place over another by being accepted first. Nothing else is
// done until accept returns, so that what is accepted goes to disk together, when
// Batch returns: a tombstone among many intents does not wait for a disk that takes
// long for each.
func (a *Agent) Batch(accept func()) {
	a.intake.Lock()
	defer a.intake.Unlock()
	a.dir.DeferSync()
	accept()
	if err := a.dir.Flush(); err != nil {
		a.opts.Log.Error("intents may be lost where the machine stops now; they are worked on", "error", err)
	}
}

func (a *Agent) accept(e intent.Envelope) error {
	o, err := a.accepted.trusted().Open(e)
	if err != nil {
		return fmt.Errorf("accept intent: %w", err)
	}
	if err := a.storeAccepted(o.For(a.opts.Node), e); err != nil {
		return &AcceptError{Application: o.Payload().Application, Err: err}
	}
	return nil
}

// storeAccepted keeps an intent whose seal holds, and hands it to Run.
func (a *Agent) storeAccepted(o intent.Opened, e intent.Envelope) error {
	p := o.Payload()
	if err := pins.CheckName("uid", p.UID); err != nil {
		return err
	}
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	app, old := &application{Application: decide.Application{Known: version.Known{Newest: o}}, envelope: e}, a.accepted.apps[p.UID]
	if old != nil {
		switch have := old.Newest.Payload().Serial; {
		case p.Serial < have:
			return fmt.Errorf("serial %d after %d: %w", p.Serial, have, intent.ErrOlder)
		case p.Serial == have:
			return a.acceptAgain(old, p, e)
		}
		app.inherit(old)
	}
	ends := p.Tombstone || version.Node{Name: a.opts.Node}.Withdraws(o, app.Known, app.loaded)
	err := a.keepAccepted(p, e, ends)
	if err != nil && !ends {
		return err
	}
	// What is to run no more goes though the disk is full.
	app.unkept = err != nil
	a.accepted.apps[p.UID] = app
	a.accepted.unsettle()
	return err
}

// acceptAgain takes an intent under the serial of the newest one. It has to be the
// same: a sealer uses a serial once, so that neither of two is the newer one.
func (a *Agent) acceptAgain(app *application, p intent.Payload, e intent.Envelope) error {
	if !reflect.DeepEqual(p, app.Newest.Payload()) {
		app.conflict = fmt.Errorf("serial %d: %w; what runs is kept: change the application, which seals a newer one", p.Serial, intent.ErrConflict)
		a.accepted.unsettle()
		return app.conflict
	}
	if app.conflict != nil {
		app.conflict = nil
		a.accepted.unsettle()
	}
	if !app.unkept && bytes.Equal(e, app.envelope) {
		return nil
	}
	return a.keepAnew(app, p, e)
}

// keepAnew keeps what was accepted before under the seal that it bears now: that
// of another key, when the one before is about to count no more.
func (a *Agent) keepAnew(app *application, p intent.Payload, e intent.Envelope) error {
	ends := p.Tombstone || app.unkept
	err := a.keepAccepted(p, e, ends)
	app.unkept = err != nil && ends
	if err == nil && app.Deployed != nil && app.Deployed.Payload().Serial == p.Serial {
		err = a.dir.PutIntent(p.UID, statedir.Deployed, e)
	}
	if err == nil {
		app.envelope = e
	}
	return err
}

// Forget drops the tombstones that were worked off and left nothing, but for
// those that somebody has still. There tells of a UID whether the application
// has an intent where intents come from, which is to know all of them: an older
// one that came back from there would be as good as new.
func (a *Agent) Forget(there func(uid string) bool) {
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	for uid, app := range a.accepted.apps {
		if !app.exhausted || there(uid) {
			continue
		}
		if err := a.dir.DropIntent(uid, statedir.Newest); err != nil {
			a.opts.Log.Error("forget a tombstone", "application", app.Newest.Payload().Application.String(), "error", err)
			continue
		}
		delete(a.accepted.apps, uid)
	}
}

// inherit takes over what was found out about the application while an older
// intent of its was the newest.
func (app *application) inherit(old *application) {
	app.Deployed, app.Checked, app.Lacks, app.Maps, app.Status = old.Deployed, old.Checked, old.Lacks, old.Maps, old.Status
	app.loaded, app.FailedBefore = old.loaded, old.FailedBefore
}

// keepAccepted writes an accepted intent to disk. By one that ends what may run
// until then it makes room.
func (a *Agent) keepAccepted(p intent.Payload, e intent.Envelope, ends bool) error {
	if ends {
		return a.dir.PutEnding(p.UID, e)
	}
	return a.dir.PutIntent(p.UID, statedir.Newest, e)
}

// restore reads what is cached. An envelope whose seal does not hold any more
// is left where it is and reported: what runs by it is kept. So is one that
// bears another application's name, since it replaces nothing there.
func (a *Agent) restore() error {
	all, err := a.dir.Intents()
	if err != nil {
		return err
	}
	for _, k := range all {
		o, err := a.accepted.trusted().Open(k.Envelope)
		if err != nil {
			a.opts.Log.Error("kept intent does not open; what runs by it is kept", "path", k.Path, "error", err)
			continue
		}
		o = o.For(a.opts.Node)
		uid := o.Payload().UID
		if !k.IsNamedFor(uid) {
			a.opts.Log.Error("kept intent is another application's than its file's name says; it is passed over",
				"application", o.Payload().Application.String(), "path", k.Path)
			continue
		}
		app := a.accepted.apps[uid]
		if app == nil {
			app = &application{Application: decide.Application{Known: version.Known{Newest: o}}, envelope: k.Envelope}
			a.accepted.apps[uid] = app
		}
		if k.Kind == statedir.Deployed {
			app.Deployed = &o
		}
		if o.Payload().Serial > app.Newest.Payload().Serial {
			app.Newest, app.envelope = o, k.Envelope
		}
	}
	return nil
}

// unsettle makes Settled wait again, and hurries the reconcile under way. The caller holds mu.
func (a *accepted) unsettle() {
	a.arrived = true
	select {
	case <-a.settled:
		a.settled = make(chan struct{})
	default:
	}
}
