package decide

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/state/objects"
)

// QueuedError is the error of what waits until something else is done, as Why says.
type QueuedError struct{ Why string }

// Error implements error.
func (q *QueuedError) Error() string { return q.Why }

// IsPending reports whether an error only says that something is on its way, or
// has to wait for what is.
func IsPending(err error) bool {
	return err != nil && isPending(hindranceOf(err))
}

func isPending(why report.Hindrance) bool {
	_, is := why.(report.Pending)
	return is
}

// hindranceOf returns what an error keeps a version from.
func hindranceOf(err error) report.Hindrance {
	queued, awaited := new(QueuedError), new(sharing.WaitError)
	switch {
	case errors.As(err, &queued):
		return report.Queued{Why: queued.Why}
	case errors.Is(err, build.ErrLoading):
		return report.Loading{}
	case errors.Is(err, objects.ErrFetching):
		return report.Fetching{}
	case errors.Is(err, functions.ErrLater):
		return report.Queued{Why: functions.ErrLater.Error()}
	case errors.As(err, &awaited):
		return report.AwaitingMap{Why: awaited.Error()}
	}
	return report.Refused{}
}

// BackingOffError is the error of a version or a chain that could not be had a short while ago.
type BackingOffError struct{ Err error }

// Error implements error.
func (b *BackingOffError) Error() string { return b.Err.Error() }

// Unwrap returns the cause.
func (b *BackingOffError) Unwrap() error { return b.Err }

// NoMemoryError is the error of a version whose maps do not fit, or wait for older ones, in the
// memory that this node has for maps. Every reconcile looks again, since that takes no attempt.
type NoMemoryError struct{ Err error }

// Error implements error.
func (n *NoMemoryError) Error() string { return n.Err.Error() }

// Unwrap returns the cause.
func (n *NoMemoryError) Unwrap() error { return n.Err }

// takenOutError is the error of an application that is left out of a chain: there may be thousands in one reconcile.
type takenOutError struct {
	on  string
	err error
}

// Error implements error.
func (t *takenOutError) Error() string {
	return "run in the chain of " + t.on + ": it is left out, since the chain is to change and cannot be made with it: " + t.err.Error()
}

// Unwrap returns the cause.
func (t *takenOutError) Unwrap() error { return t.err }

// leaveError is the error of an application that could not leave a chain. It says whether it runs there when it is read: what
// leaves is switched off after that was decided.
type leaveError struct {
	d   *Decisions
	on  plan.Chain
	uid string
	err error
}

// Error implements error.
func (l *leaveError) Error() string {
	state := "it is switched off, and is there still"
	if slices.ContainsFunc(l.d.Look.GivenTo(l.on.Device), func(m plan.Member) bool { return m.UID == l.uid && !l.d.Look.IsOff(l.on.Device, m) }) {
		state = "it runs there still"
	}
	return fmt.Sprintf("leave the chain of %s: %s: %v", l.on.Interface, state, l.err)
}

// Unwrap returns the cause.
func (l *leaveError) Unwrap() error { return l.err }
