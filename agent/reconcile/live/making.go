package live

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Making is a link that the kernel was asked to make beside the loop, or will be. It has no pin:
// the kernel ends it if the agent ends. What the kernel answered counts only if the link is
// wanted still when the loop takes it.
type Making struct {
	UID string
	plan.Attachment
	// Program is the revision's, which is only compared.
	Program *ebpf.Program
	// SpecID is the entry of a USDT probe's arguments in the map of its program.
	SpecID uint32
	// Since is when the link was asked for.
	Since time.Time
	// Make asks the kernel, on another goroutine. It owns what it uses, which Free frees: after
	// Make, or where that is not called.
	Make func() (pins.Held, error)
	Free func()

	ticket *queue.Ticket
	// wanted: this reconcile waits for the link.
	wanted bool
	// link and err are the kernel's answer, once ticket is done.
	link pins.Held
	err  error
}

// Makes reports whether it is a link of the program at the attachment.
func (m *Making) Makes(a plan.Attachment, program *ebpf.Program) bool {
	return m.Attachment == a && m.Program == program
}

// HasBegun reports whether the kernel was asked; until then the link waits for others of its owner.
func (m *Making) HasBegun() bool { return m.ticket.HasBegun() }

// Makings are the links that are being made next to the loop, by UID and key.
type Makings struct {
	// Hold is called before a link of an application is made; tests hold links by it.
	Hold func(uid string)

	byUID map[string]map[string]*Making
	queue *queue.Queue
	// end closes a link that the kernel made and that is not wanted.
	end func(l *pins.Link, facts pins.Facts, now time.Time, replaced bool)
	log *slog.Logger
}

// Reserve keeps a place for one more link of an application's owner, for Begin or to be cancelled; nil where there
// is no room.
func (ms *Makings) Reserve(owner, what string) *queue.Ticket {
	return ms.queue.Add(queue.Job{What: what, Owners: []string{owner}, Urgent: true, Awaited: true})
}

// Find returns the link that is being made for an application under a key, which this reconcile
// wants or waits for; nil where none is.
func (ms *Makings) Find(uid, key string) *Making {
	m := ms.byUID[uid][key]
	if m != nil {
		m.wanted = true
	}
	return m
}

// Begin makes a link as soon as it is the turn of its owner, in the place that is kept for it.
func (ms *Makings) Begin(m *Making, place *queue.Ticket) {
	if ms.byUID == nil {
		ms.byUID = map[string]map[string]*Making{}
	}
	if ms.byUID[m.UID] == nil {
		ms.byUID[m.UID] = map[string]*Making{}
	}
	ms.byUID[m.UID][m.Key()], m.wanted, m.ticket = m, true, place
	hold := ms.Hold
	place.Go(func(context.Context) bool {
		hold(m.UID)
		m.link, m.err = m.Make()
		m.Free()
		return true
	})
}

// Await waits for the kernel's answer, at most that long, and reports whether it came. If it comes
// later, it wakes the loop.
func (m *Making) Await(most time.Duration) bool { return m.ticket.Await(most) }

// Take returns the kernel's answer; ok is false until it came. The caller owns the link.
func (ms *Makings) Take(m *Making) (l pins.Held, ok bool, err error) {
	if !m.ticket.IsDone() {
		return nil, false, nil
	}
	ms.forget(m)
	return m.link, true, m.err
}

// Unwant says that the reconcile does not want a link after all.
func (ms *Makings) Unwant(m *Making) { m.wanted = false }

// Longest returns how long the links of an owner that are being made take at most.
func (ms *Makings) Longest(owner string, now time.Time) (longest time.Duration) {
	for _, all := range ms.byUID {
		for _, m := range all {
			if queue.OwnerOf(m.UID, m.Application) == owner {
				longest = max(longest, now.Sub(m.Since))
			}
		}
	}
	return longest
}

func (ms *Makings) forget(m *Making) {
	delete(ms.byUID[m.UID], m.Key())
	if len(ms.byUID[m.UID]) == 0 {
		delete(ms.byUID, m.UID)
	}
}

// Follow takes back the links that no reconcile wants any more since the last call: what
// the kernel was not asked for is not made, what it made is closed, and each other one is reported
// to waits. It reports whether it took back any.
func (ms *Makings) Follow(now time.Time, waits func(*Making)) (found bool) {
	for _, all := range ms.byUID {
		for _, m := range all {
			switch {
			case m.wanted:
				m.wanted = false
			case m.ticket.Cancel():
				m.Free()
				ms.forget(m)
				found = true
			case m.ticket.IsDone():
				ms.forget(m)
				ms.unmake(m, now)
				found = true
			default:
				waits(m)
			}
		}
	}
	return found
}

// unmake closes a link that is not wanted. Until the kernel has ended it, it is a remnant.
func (ms *Makings) unmake(m *Making, now time.Time) {
	if m.err != nil {
		return
	}
	l := &pins.Link{UID: m.UID, Attachment: m.Attachment, SpecID: m.SpecID, Link: m.link}
	facts, err := pins.Inspect(l.Link)
	if err != nil {
		ms.log.Error("look at link that is not wanted any more", "link", m.Place(), "error", err)
	}
	facts.EndsSlowly = true
	ms.end(l, facts, now, false)
}

// abandon takes back every link that is being made, and waits for the kernel.
func (ms *Makings) abandon() error {
	for _, all := range ms.byUID {
		for _, m := range all {
			if m.ticket.Cancel() {
				m.Free()
				ms.forget(m)
			}
		}
	}
	ms.queue.Wait()
	var errs []error
	for _, all := range ms.byUID {
		for _, m := range all {
			if m.err == nil {
				errs = append(errs, m.link.Close())
			}
		}
	}
	ms.byUID = nil
	return errors.Join(errs...)
}
