package accepted

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Error says which application's intent was not accepted, or not kept.
type Error struct {
	// Application is the one that the intent names.
	Application v1alpha1.Identity
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("accept intent of %s: %v", e.Application, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Accept takes sealed intents: a seal that does not hold, a serial that was
// overtaken (intent.ErrOlder) or bears another intent (intent.ErrConflict) and a format not known reject the one envelope
// and not the others. What is accepted is on disk when Accept returns, and the loop
// works on it soon after; see Settled. A tombstone, or an intent that does not
// name what runs, is worked on even where it cannot be kept, which is told still,
// and tried again when it is sent again. Nothing is unloaded because it is absent.
//
// The error joins one for each envelope that was rejected: an *Error where
// the seal holds.
func (s *Store) Accept(envelopes ...intent.Envelope) error {
	var errs []error
	for _, e := range envelopes {
		errs = append(errs, s.accept(e))
	}
	s.opts.Wake()
	return errors.Join(errs...)
}

// Batch has the agent look at what is accepted meanwhile all at once: no
// application gains a place over another by being accepted first. Nothing else is
// done until accept returns, so that what is accepted goes to disk together, when
// Batch returns: a tombstone among many intents does not wait for a disk that takes
// long for each.
func (s *Store) Batch(accept func()) {
	s.intake.Lock()
	defer s.intake.Unlock()
	s.opts.Dir.DeferSync()
	accept()
	if err := s.opts.Dir.Flush(); err != nil {
		s.opts.Log.Error("intents may be lost where the machine stops now; they are worked on", "error", err)
	}
}

func (s *Store) accept(e intent.Envelope) error {
	o, err := s.trusted().Open(e)
	if err != nil {
		return fmt.Errorf("accept intent: %w", err)
	}
	if err := s.put(o.For(s.opts.Node), e); err != nil {
		return &Error{Application: o.Payload().Application, Err: err}
	}
	return nil
}

// put keeps an intent whose seal holds, and hands it to the next reconcile.
func (s *Store) put(o intent.Opened, e intent.Envelope) error {
	p := o.Payload()
	if err := pins.CheckName("uid", p.UID); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	app, old := newApplication(o, e), s.apps[p.UID]
	if old != nil {
		switch have := old.Newest.Payload().Serial; {
		case p.Serial < have:
			return fmt.Errorf("serial %d after %d: %w", p.Serial, have, intent.ErrOlder)
		case p.Serial == have:
			return s.acceptAgain(old, p, e)
		}
		app.inherit(old)
	}
	ends := p.Tombstone || version.Node{Name: s.opts.Node}.Withdraws(o, app.Known, app.Loaded)
	err := s.keep(p, e, ends)
	if err != nil && !ends {
		return err
	}
	// What is to run no more goes though the disk is full.
	app.unkept = err != nil
	s.apps[p.UID] = app
	s.unsettle()
	return err
}

// acceptAgain takes an intent under the serial of the newest one. It has to be the
// same: a sealer uses a serial once, so that neither of two is the newer one.
func (s *Store) acceptAgain(app *Application, p intent.Payload, e intent.Envelope) error {
	if !reflect.DeepEqual(p, app.Newest.Payload()) {
		app.Conflict = fmt.Errorf("serial %d: %w; what runs is kept: change the application, which seals a newer one", p.Serial, intent.ErrConflict)
		s.unsettle()
		return app.Conflict
	}
	if app.Conflict != nil {
		app.Conflict = nil
		s.unsettle()
	}
	if !app.unkept && bytes.Equal(e, app.envelope) {
		return nil
	}
	return s.keepAnew(app, p, e)
}

// keepAnew keeps what was accepted before under the seal that it bears now: that
// of another key, when the one before is about to count no more.
func (s *Store) keepAnew(app *Application, p intent.Payload, e intent.Envelope) error {
	ends := p.Tombstone || app.unkept
	err := s.keep(p, e, ends)
	app.unkept = err != nil && ends
	if err == nil && app.Deployed != nil && app.Deployed.Payload().Serial == p.Serial {
		err = s.opts.Dir.PutIntent(p.UID, statedir.Deployed, e)
	}
	if err == nil {
		app.envelope = e
	}
	return err
}

// keep writes an accepted intent to disk. By one that ends what may run
// until then it makes room.
func (s *Store) keep(p intent.Payload, e intent.Envelope, ends bool) error {
	if ends {
		return s.opts.Dir.PutEnding(p.UID, e)
	}
	return s.opts.Dir.PutIntent(p.UID, statedir.Newest, e)
}
