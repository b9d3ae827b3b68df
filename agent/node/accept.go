package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/intent"
)

// application is one application and what became of it.
type application struct {
	newest   intent.Opened
	deployed *intent.Opened
	// tried is the serial of the newest intent that was worked on once.
	tried int64
	// checked are the revisions whose pins were found whole.
	checked map[string]bool
	// maps tell what became of the maps at the last change of revision.
	maps []kernel.MapReport

	failures int
	retryAt  time.Time
	// refused is the serial of an intent that could not be had; failed are the
	// actions that failed. Neither is tried again before retryAt.
	refused int64
	failed  map[string]error
	// log is what the verifier said at the last refusal.
	log string
	// status is what Status tells.
	status ApplicationStatus
}

// Accept takes sealed intents: a seal that does not hold, a serial that was
// overtaken (intent.ErrOlder) and a format not known refuse the one envelope
// and not the others. What is accepted is on disk when Accept returns, and Run
// works on it soon after; see Settled. Nothing is unloaded because it is absent.
func (a *Agent) Accept(envelopes ...intent.Envelope) error {
	var errs []error
	for _, e := range envelopes {
		errs = append(errs, a.accept(e))
	}
	a.poke()
	return errors.Join(errs...)
}

func (a *Agent) accept(e intent.Envelope) error {
	o, err := a.opts.Trust.Open(e)
	if err != nil {
		return fmt.Errorf("accept intent: %w", err)
	}
	p := o.Payload()
	if err := kernel.CheckName("uid", p.UID); err != nil {
		return fmt.Errorf("accept intent of %s: %w", p.Application, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	app := &application{}
	if old := a.apps[p.UID]; old != nil {
		switch have := old.newest.Payload().Serial; {
		case p.Serial < have:
			return fmt.Errorf("accept intent of %s: serial %d after %d: %w", p.Application, p.Serial, have, intent.ErrOlder)
		case p.Serial == have:
			return nil
		}
		app.deployed, app.checked, app.maps, app.status = old.deployed, old.checked, old.maps, old.status
	}
	if err := a.cache.putIntent(p.UID, e); err != nil {
		return fmt.Errorf("accept intent of %s: %w", p.Application, err)
	}
	app.newest = o
	a.apps[p.UID] = app
	a.unsettle()
	return nil
}

// restore reads what is cached. An envelope whose seal does not hold any more
// is left where it is and reported: what runs by it is kept.
func (a *Agent) restore() error {
	all, err := a.cache.intents()
	if err != nil {
		return err
	}
	for _, k := range all {
		o, err := a.opts.Trust.Open(k.envelope)
		if err != nil {
			a.opts.Log.Error("kept intent does not open; what runs by it is kept", "path", k.path, "error", err)
			continue
		}
		uid := o.Payload().UID
		app := a.apps[uid]
		if app == nil {
			app = &application{}
			a.apps[uid] = app
		}
		if k.kind == deployed {
			app.deployed = &o
			if app.newest.Payload().UID == "" {
				app.newest = o
			}
			continue
		}
		app.newest = o
	}
	return nil
}

// poke wakes Run.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// unsettle makes Settled wait again. The caller holds mu.
func (a *Agent) unsettle() {
	select {
	case <-a.settled:
		a.settled = make(chan struct{})
	default:
	}
}
