package report

import (
	"errors"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/retry"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Outcome is what one reconcile found out about one application.
type Outcome struct {
	// Live is the intent whose revision runs.
	Live *intent.Opened
	// Links are attachments without a link, and Errs what went wrong.
	Links []Unmade
	Errs  []error
	// Rejected: this node cannot have the newest intent. Tried: something was tried in
	// this reconcile, and failed.
	Refused, Tried bool
	// Pending: the newest intent's object or load is on its way. Loading: it is
	// the load.
	Pending, Loading bool
	// Unsettled: the version that is to run in place of the newest is on its way.
	Unsettled bool
	// Waits says what the application waits for, where it is Pending for neither.
	Waits string
}

// Unmade is an attachment without a link.
type Unmade struct {
	Program string
	Status  LinkStatus
}

// Unresolved is an attachment whose target is not there. An interface may come;
// another target that is missing is a failure, though one that fixes itself.
func Unresolved(program string, at v1alpha1.Attachment, err error) Unmade {
	state := Failed
	if errors.Is(err, targets.ErrWaiting) {
		state = Waiting
	}
	return Unmade{program, LinkStatus{Hook: at.Hook, Target: targets.Describe(at), State: state, Error: err.Error()}}
}

// Fail notes an action that failed for an application.
func (o *Outcome) Fail(uid string, a plan.Action, err error) {
	o.Errs = append(o.Errs, err)
	state := Failed
	if wait := new(retry.ConflictError); errors.As(err, &wait) {
		state = DriftConflict
	} else if errors.Is(err, targets.ErrWaiting) {
		state = Waiting
	}
	if a.Attachment.Hook != "" && a.Verb != plan.Detach {
		o.Links = append(o.Links, Unmade{a.Attachment.Program, LinkStatus{Hook: a.Attachment.Hook,
			Target: a.Attachment.Target.String(), State: state, Error: err.Error()}})
	}
	for _, m := range a.Members {
		if m.UID == uid {
			o.Links = append(o.Links, Unmade{m.Program, LinkStatus{Hook: plan.XDP, Target: a.Interface, State: state, Error: err.Error()}})
		}
	}
}
