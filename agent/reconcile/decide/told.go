package decide

import (
	"errors"
	"syscall"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// withheldError is an error in the words that a namespace may read.
type withheldError struct {
	words string
	err   error
}

// Error implements error.
func (w *withheldError) Error() string { return w.words }

// Unwrap returns the error with all its words.
func (w *withheldError) Unwrap() error { return w.err }

// whole is an error with all its words, for the log.
func whole(err error) error {
	if w, is := errors.AsType[*withheldError](err); is {
		return w.err
	}
	return err
}

// Told is an error as it may stand in the status of an application. A namespace reads that of its own: it has no names of others, nor what the
// kernel or a registry says of their programs, or runs at the place.
func Told(d *Decisions, uid string, err error) error {
	reader, isKnown := identityOf(d, uid)
	if isKnown && !reader.IsNamespaced() {
		return err
	}
	if occupied, is := errors.AsType[*attach.OccupiedError](err); is {
		return &withheldError{occupied.ToTeams, err}
	}
	of, isOfChain := errors.AsType[*build.ChainError](err)
	lost, isLost := errors.AsType[*build.MemberError](err)
	refused, isRefused := errors.AsType[*chain.Rejection](err)
	var at v1alpha1.Identity
	switch errno := syscall.Errno(0); {
	case isRefused && isOfChain:
		at = of.Members[refused.Member]
	case isLost:
		at, _ = identityOf(d, lost.UID)
	case !isOfChain || of.IsOf(reader.Namespace):
		return err
	case errors.As(err, &errno):
		return &withheldError{"load chain: " + errno.Error(), err}
	}
	if isKnown && reader.Namespace == at.Namespace {
		return ofOwn(reader, of, refused, err)
	}
	whose := "another application"
	if isKnown && at != (v1alpha1.Identity{}) {
		whose = plan.Whose(reader, at)
	}
	return &withheldError{"the chain of the interface cannot be made with a program of " + whose + "; an administrator finds the cause in the agent's log", err}
}

// ofOwn is the error of a program of the reader's namespace. Where the chain has others, what the kernel says of it is of them, too.
func ofOwn(reader v1alpha1.Identity, of *build.ChainError, refused *chain.Rejection, err error) error {
	if refused == nil || refused.Err == nil || of == nil || of.IsOf(reader.Namespace) {
		return err
	}
	said := *refused
	said.Err = nil
	if errno := syscall.Errno(0); errors.As(refused.Err, &errno) {
		said.Err = errno
	}
	return &withheldError{said.Error(), err}
}

// identityOf is that of an application by its intent, or by what of it is in a chain.
func identityOf(d *Decisions, uid string) (v1alpha1.Identity, bool) {
	if app := d.byUID[uid]; app != nil {
		return app.Newest.Payload().Application, true
	}
	for _, m := range d.Look.Members(uid) {
		return m.Identity, true
	}
	return v1alpha1.Identity{}, false
}
