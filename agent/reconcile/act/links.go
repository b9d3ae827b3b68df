package act

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/program/usdt"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// linkMaker makes links, and gives them other programs and places.
type linkMaker struct {
	*Options
	// late are the owners for whose links this reconcile waits no more, and waited is how long it
	// waited in vain for those of all.
	late   map[string]bool
	waited time.Duration
	// begun: the kernel has yet to make a link which this reconcile asked for.
	begun bool
}

// attach makes a link and lets the one go that it stands in for.
func (mk *linkMaker) attach(a plan.Action) error {
	program, err := mk.programOf(a)
	if err != nil {
		return err
	}
	return mk.attachProgram(a, program)
}

func (mk *linkMaker) attachProgram(a plan.Action, program *ebpf.Program) error {
	make := mk.makeLink
	if attach.TakesLong(a.Attachment.Hook) {
		make = mk.makeBeside
	}
	l, spec, err := make(a, program)
	if err != nil {
		return err
	}
	if err := mk.putLink(a.UID, a.Attachment, spec, l); err != nil {
		return err
	}
	if old := mk.Look.Link(a.UID, a.Replaces); old != nil {
		return mk.Look.Set.DetachReplaced(old, mk.Look.Facts(old), mk.Now)
	}
	return nil
}

// makeLink makes a link that the kernel makes at once, and returns its SpecID.
func (mk *linkMaker) makeLink(a plan.Action, program *ebpf.Program) (pins.Held, uint32, error) {
	request, err := mk.request(a, program)
	if err != nil {
		return nil, 0, err
	}
	defer request.Found.Close()
	l, err := attach.To(request)
	if held := mk.holder(a); held != nil && errors.Is(err, unix.EBUSY) {
		l, err = mk.takePlace(request, held)
	}
	return l, request.SpecID, err
}

// request is that for the link of an action. The caller closes what was Found.
func (mk *linkMaker) request(a plan.Action, program *ebpf.Program) (attach.Request, error) {
	target, err := mk.LookupRound.Find(a.Attachment)
	if err != nil {
		return attach.Request{}, err
	}
	return attach.Request{UID: a.UID, Attachment: a.Attachment, Program: program, Host: mk.LookupRound.Host(), Found: target, Neighbours: mk.neighbours(a),
		Filters: mk.Pins.Filters,
		Specs:   mk.Look.Revision(a.UID, a.Revision).Maps[usdt.SpecsMap], SpecID: mk.Look.Set.SpecID(a.UID, a.Attachment.Target),
		HeldBy: mk.heldBy(a)}, nil
}

// putLink pins a link and lets the one go that it stands in for. A link that cannot be
// pinned is detached.
func (mk *linkMaker) putLink(uid string, at plan.Attachment, spec uint32, l pins.Held) error {
	old := mk.Look.Link(uid, at.Key())
	var facts pins.Facts
	if old != nil {
		facts = mk.Look.Facts(old)
	}
	pinned, err := mk.Pins.PinLink(uid, at, spec, l)
	if err != nil {
		pins.Sever(l)
		return errors.Join(err, l.Close())
	}
	mk.Look.Set.PutLink(pinned)
	mk.Look.Changed(pinned.Path)
	mk.Look.Others.Forget(at)
	if _, isFilter := l.(*clsact.Filter); old != nil && isFilter {
		// The old one was taken away when the new one was made.
		mk.Look.Set.Release("replaced filter", old)
	} else if old != nil {
		mk.Look.Set.Replace(old, facts, mk.Now)
	}
	return nil
}

func (mk *linkMaker) programOf(a plan.Action) (*ebpf.Program, error) {
	r := mk.Look.Revision(a.UID, a.Revision)
	if r == nil || r.Programs[a.Attachment.Instance] == nil {
		return nil, fmt.Errorf("attach %s: revision %s of it is not in the kernel", a.Attachment.Instance, a.Revision)
	}
	return r.Programs[a.Attachment.Instance], nil
}

// neighbours are our links on the same ordered hook and interface.
func (mk *linkMaker) neighbours(a plan.Action) attach.Neighbours {
	n := attach.Neighbours{Position: mk.Positions.At(a.Attachment)}
	if h, ok := hook.Lookup(a.Attachment.Hook); !ok || !h.TakesPriority() {
		return n
	}
	own := (&plan.Link{UID: a.UID, Attachment: a.Attachment}).Turn()
	for l := range mk.Look.Links() {
		at := l.Attachment
		if at.Hook != a.Attachment.Hook || at.Target.Device() != a.Attachment.Target.Device() {
			continue
		}
		if l.UID == a.UID && at.Key() == a.Attachment.Key() {
			n.Own = mk.Look.Facts(l).ID
			continue
		}
		isBefore := (&plan.Link{UID: l.UID, Attachment: at}).Turn().Compare(own) < 0
		if f, ok := l.Link.(*clsact.Filter); ok && isBefore {
			n.FiltersBefore = append(n.FiltersBefore, f)
		} else if ok {
			n.FiltersAfter = append(n.FiltersAfter, f)
		} else if id := mk.Look.Facts(l).ID; isBefore {
			n.Before = append(n.Before, id)
		} else {
			n.After = append(n.After, id)
		}
	}
	return n
}

// move gives a link another place on its hook: a second copy runs there before
// the first one goes, since the kernel moves none.
func (mk *linkMaker) move(a plan.Action) error {
	err := mk.moveCopy(a)
	if err == nil && mk.Positions.Moved(a.UID, a.Attachment) {
		mk.Decisions.Again = true
	}
	return err
}

func (mk *linkMaker) moveCopy(a plan.Action) error {
	if _, err := mk.programOf(a); err != nil {
		return err
	}
	r := mk.Look.Revision(a.UID, a.Revision)
	for _, program := range r.Copies(a.Attachment.Instance) {
		err := mk.attachProgram(a, program)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	program, err := mk.copyOf(r, a)
	if err != nil {
		return err
	}
	return mk.attachProgram(a, program)
}

// update swaps the program under a link that stays.
func (mk *linkMaker) update(a plan.Action) error {
	l := mk.Look.Link(a.UID, cmp.Or(a.Replaces, a.Attachment.Key()))
	program, err := mk.programOf(a)
	if err != nil {
		return err
	}
	if err := swap(l.Link, program); isUnusable(err) {
		return mk.attach(a)
	} else if err != nil {
		return fmt.Errorf("update %s on %s %s: %w", a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target, err)
	}
	// The kernel runs another program now, whatever becomes of the pin's name.
	mk.Look.Changed(l.Path)
	if a.Replaces != "" {
		return mk.Look.Move(l, a.Attachment)
	}
	before := l.Attachment
	l.Attachment = a.Attachment
	if err := mk.Pins.Renew(l); err != nil {
		l.Attachment = before
		return err
	}
	return nil
}

// swap puts the program under the link, unless it is there.
func swap(l pins.Held, program *ebpf.Program) error {
	facts, err := pins.Inspect(l)
	if err != nil {
		return err
	}
	id, err := pins.ProgramID(program)
	if err != nil {
		return err
	}
	if facts.Program == id && !facts.Severed && facts.Filter.Copies < 2 {
		return nil
	}
	return plain.Error(l.Update(program))
}

// isUnusable tells of a link that cannot run a program any more, or never could:
// somebody else's under our name. Another is made in its place.
func isUnusable(err error) bool {
	return errors.Is(err, unix.ENOLINK) || errors.Is(err, link.ErrNotSupported)
}
