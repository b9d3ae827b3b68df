package act

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
)

// The bounds of links that are made beside the loop.
const (
	// makeGrace is how long a reconcile waits for one such link, and makesGrace how long it waits
	// in vain for those of all owners together. Most links take a millisecond.
	makeGrace, makesGrace = 50 * time.Millisecond, 250 * time.Millisecond
	// makeDeadline is how long a link may take before that is an error.
	makeDeadline = time.Minute
)

// MakingError is the error of a link that the kernel has not made yet, or was not asked for.
type MakingError struct {
	at plan.Attachment
	// begun: the kernel was asked. Otherwise the link waits for others of its owner.
	begun bool
	// late: it was asked for longer than makeDeadline ago.
	late bool
}

// Error implements error.
func (m *MakingError) Error() string {
	what := fmt.Sprintf("attach %s to %s %s: ", m.at.Program, m.at.Hook, strings.TrimSpace(m.at.Place()))
	switch {
	case !m.begun:
		what += "the kernel makes such links one after the other, and those of one owner wait for each other: see what the others wait for"
	case m.at.Binary != "":
		what += "the kernel makes it while it holds the memory lock of each process that has the file mapped, and a process may hold that for long"
	default:
		what += "the kernel makes it after the probes that it makes or ends now"
	}
	switch {
	case !m.late:
		return what
	case m.begun && m.at.Binary != "":
		return what + "; it has not answered for a minute: end the process that runs the file and maps very much memory, or hangs, or name another file"
	}
	return what + "; it has not answered for a minute: find the probe that hangs in the status of other applications, and do what that says"
}

// making returns the link that is being made beside the loop at the attachment of an action; nil
// where none is. One that is asked for in each reconcile goes on.
func (mk *linkMaker) making(a plan.Action) *live.Making {
	if a.Verb == plan.Detach || !attach.TakesLong(a.Attachment.Hook) {
		return nil
	}
	return mk.Look.Set.Makings.Find(a.UID, a.Attachment.Key())
}

// makeBeside makes a link beside the loop, and returns it with its SpecID. It fails with
// *MakingError until the kernel has answered.
func (mk *linkMaker) makeBeside(a plan.Action, program *ebpf.Program) (pins.Held, uint32, error) {
	m := mk.making(a)
	if m == nil {
		var err error
		if m, err = mk.beginLink(a, program); err != nil {
			return nil, 0, err
		}
	} else if !m.Makes(a.Attachment, program) {
		// Another one was wanted before. It is taken back first.
		mk.Look.Set.Makings.Unwant(m)
		return nil, 0, mk.stillMaking(m)
	}
	if l, ok, err := mk.Look.Set.Makings.Take(m); ok {
		return l, m.SpecID, err
	}
	return nil, 0, mk.stillMaking(m)
}

func (o *Options) stillMaking(m *live.Making) error {
	return &MakingError{at: m.Attachment, begun: m.HasBegun(), late: o.Now.Sub(m.Since) > makeDeadline}
}

// beginLink begins to make a link, and waits a little for it.
func (mk *linkMaker) beginLink(a plan.Action, program *ebpf.Program) (*live.Making, error) {
	owner := mk.turnOf(a)
	place := mk.Look.Set.Makings.Reserve(owner, fmt.Sprintf("%s on %s", a.Attachment.Program, a.Attachment.Place()))
	if place == nil {
		mk.LookupRound.Keep(a.Attachment)
		return nil, &MakingError{at: a.Attachment, late: mk.Look.Set.Makings.Longest(owner, mk.Now) > makeDeadline}
	}
	request, err := mk.ownRequest(a, program)
	if err != nil {
		place.Cancel()
		return nil, err
	}
	m := &live.Making{UID: a.UID, Attachment: a.Attachment, Program: program, SpecID: request.SpecID, Since: mk.Now,
		Make: func() (pins.Held, error) { return attach.To(request) },
		Free: func() {
			_ = request.Program.Close()
			_ = request.Specs.Close()
			request.Found.Close()
		}}
	mk.Look.Set.Makings.Begin(m, place)
	mk.await(owner, m)
	return m, nil
}

// ownRequest is the request of a link, which owns what it uses: the revision may be dropped meanwhile.
func (mk *linkMaker) ownRequest(a plan.Action, program *ebpf.Program) (attach.Request, error) {
	request, err := mk.request(a, program)
	if err != nil {
		return request, err
	}
	if err = share(&request); err != nil {
		request.Found.Close()
	}
	return request, err
}

// share has a request hold its program and its map open apart.
func share(r *attach.Request) (err error) {
	if r.Program, err = plain.Of(r.Program.Clone()); err != nil {
		return fmt.Errorf("share program of %s: %w", r.Attachment.Program, err)
	}
	if r.Specs, err = plain.Of(r.Specs.Clone()); err != nil {
		return errors.Join(fmt.Errorf("share map of %s: %w", r.Attachment.Program, err), r.Program.Close())
	}
	return nil
}

// await waits a little for a link, unless those of its owner, or of all, took too long already.
func (mk *linkMaker) await(owner string, m *live.Making) {
	most := min(makeGrace, makesGrace-mk.waited)
	if mk.late[owner] || !m.HasBegun() {
		most = 0
	}
	if !m.Await(most) {
		mk.late[owner], mk.begun = true, true
		mk.waited += most
	}
}

// noteMaking notes that an application waits for a link that is being made.
func (act *Actor) noteMaking(uid string, a plan.Action, making *MakingError) {
	out := act.Decisions.Outcome(uid)
	out.Leave(report.Turn{})
	before := act.Decisions.FailedBefore(uid, a.String())
	switch {
	case making.late:
		out.Fail(uid, a, making)
	case before != nil:
		// It is tried again, and what is known of it stays true until there is an answer.
		out.Fail(uid, a, before)
	default:
		act.Decisions.NotePending(uid, &decide.QueuedError{Why: making.Error()})
	}
}

// reportMaking reports a link that is not wanted any more, and that the kernel may make still.
func (en *ender) reportMaking(m *live.Making) {
	out := en.Decisions.Outcome(m.UID)
	why := fmt.Errorf("detach %s from %s %s: it is closed as soon as the kernel has made it, which cannot be cancelled: %w",
		m.Attachment.Program, m.Hook, strings.TrimSpace(m.Place()), en.stillMaking(m))
	if en.Now.Sub(m.Since) > makeDeadline {
		out.Errs = append(out.Errs, why)
	}
	out.Leave(report.Ending{Why: why.Error()})
}
