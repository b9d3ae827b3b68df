// Package position decides on which side of the programs of others those of Skep's are to run on a hook of TCX, and when they
// move there. It moves nothing.
package position

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// between is how long Skep's programs stay where they are on a hook of a device after they moved, whatever others do there: a
// tool that moves itself back would have both move without end. A definition that asks for the other side ends it.
const between = time.Minute

// Memory is what is kept from one reconcile to the next. The zero value is ready; the caller serializes all calls.
type Memory struct{ moves map[others.Place]*move }

// move is one of all programs at a place. They are loaded once more for it, so it takes several reconciles.
type move struct {
	// to is where they move, and since is when the first one moved.
	to    v1alpha1.Position
	since time.Time
	// arrived are the links that moved or were there already: if one is elsewhere, another tool moved.
	arrived map[string]bool
}

// Around returns the programs of others before and after a link of an application.
type Around func(uid string, a plan.Attachment) (before, after []others.Program)

// Round is what one reconcile decides. Before Choose, no position is asked for.
type Round struct {
	memory *Memory
	now    time.Time
	around Around
	asked  map[others.Place]asked
	// marked are the links that Mark marked, and resting the places where it marked none, since all moved within the last minute.
	marked  map[string]bool
	resting map[others.Place]bool
}

// asked is where all programs of Skep's are to be at a place, and which application asks for that.
type asked struct {
	position v1alpha1.Position
	by       v1alpha1.Identity
}

// Begin begins a reconcile.
func (m *Memory) Begin(now time.Time, around Around) *Round {
	maps.DeleteFunc(m.moves, func(_ others.Place, is *move) bool { return is.since.IsZero() || now.Sub(is.since) >= between })
	return &Round{memory: m, now: now, around: around, marked: map[string]bool{}, resting: map[others.Place]bool{}}
}

// AroundLinks is the Around of links, by their keys.
func AroundLinks(link func(uid, key string) *pins.Link, facts func(*pins.Link) pins.Facts, read func() *others.Round) Around {
	return func(uid string, a plan.Attachment) (before, after []others.Program) {
		l := link(uid, a.Key())
		if l == nil {
			return nil, nil
		}
		return read().Around(others.Of(l.Attachment), facts(l).ID)
	}
}

// Choose decides for each place by what applications want there, and what is frozen: First where any asks for that, else Last
// where any does.
func (r *Round) Choose(want plan.Want, have plan.State) {
	r.asked = map[others.Place]asked{}
	for _, app := range want.Applications {
		for i := range app.Attachments {
			r.ask(&app.Attachments[i])
		}
	}
	for i := range have.Links {
		if l := &have.Links[i]; slices.Contains(want.Frozen, l.UID) {
			r.ask(&l.Attachment)
		}
	}
	maps.DeleteFunc(r.memory.moves, func(at others.Place, is *move) bool { return r.asked[at].position != is.to })
}

func (r *Round) ask(a *plan.Attachment) {
	if a.Position == "" {
		return
	}
	at, is := others.Of(*a), asked{a.Position, a.Application}
	has, ok := r.asked[at]
	if !ok || cmp.Or(cmp.Compare(is.position, has.position), is.by.Compare(has.by)) < 0 {
		r.asked[at] = is
	}
}

// At is the position of all programs of Skep's at the place of an attachment; empty where none is asked for.
func (r *Round) At(a plan.Attachment) v1alpha1.Position { return r.asked[others.Of(a)].position }

// Mark returns the state with the links marked that are to move to the other side of programs of others: of each place the next one.
// Where another tool moves back, all do once a minute at most.
func (r *Round) Mark(have plan.State) plan.State {
	if len(r.asked) == 0 {
		return have
	}
	have.Links = slices.Clone(have.Links)
	next := map[others.Place]int{}
	for i := range have.Links {
		l := &have.Links[i]
		if l.Severed || l.Unplaced || r.At(l.Attachment) == "" {
			continue
		}
		is, key := r.moveOf(l.Attachment), l.UID+l.Attachment.Key()
		if len(r.wrong(l.UID, l.Attachment)) == 0 {
			is.arrived[key] = true
			continue
		}
		at := others.Of(l.Attachment)
		if j, has := next[at]; !has || r.moveInOrder(l, &have.Links[j]) < 0 {
			next[at] = i
		}
	}
	for at, i := range next {
		l := &have.Links[i]
		key := l.UID + l.Attachment.Key()
		if is := r.moveOf(l.Attachment); !is.since.IsZero() && is.arrived[key] {
			r.resting[at] = true
			continue
		}
		l.Strayed, r.marked[key] = true, true
	}
	return have
}

// moveOf returns the move of the programs at the place of an attachment, which may not have begun.
func (r *Round) moveOf(a plan.Attachment) *move {
	at := others.Of(a)
	is := r.memory.moves[at]
	if is == nil {
		is = &move{to: r.At(a), arrived: map[string]bool{}}
		if r.memory.moves == nil {
			r.memory.moves = map[others.Place]*move{}
		}
		r.memory.moves[at] = is
	}
	return is
}

// moveInOrder returns less than 0 where one link of a place moves before another: so that none gets ahead of one that has yet to
// move, or cannot.
func (r *Round) moveInOrder(a, b *plan.Link) int {
	if r.At(a.Attachment) == v1alpha1.PositionLast {
		a, b = b, a
	}
	return a.Turn().Compare(b.Turn())
}

// Moved notes that a link moved, and reports whether that was for its position: others may be next.
func (r *Round) Moved(uid string, a plan.Attachment) bool {
	is := r.memory.moves[others.Of(a)]
	if is == nil || !r.marked[uid+a.Key()] {
		return false
	}
	is.arrived[uid+a.Key()] = true
	if is.since.IsZero() {
		is.since = r.now
	}
	return true
}

// wrong returns the programs of others on whose other side a link is to be.
func (r *Round) wrong(uid string, a plan.Attachment) []others.Program {
	position := r.At(a)
	if position == "" {
		return nil
	}
	before, after := r.around(uid, a)
	if position == v1alpha1.PositionFirst {
		return before
	}
	return after
}

// Describe says why an attachment is not where it asks to be; empty where it is, or asks for nothing.
func (r *Round) Describe(uid string, a plan.Attachment) string {
	is, known := r.asked[others.Of(a)]
	if a.Position == "" || !known {
		return ""
	}
	if is.position != a.Position {
		return fmt.Sprintf("position %s is not kept: %s asks for %s on the same hook, which has precedence; have both ask for one",
			a.Position, is.by.Name, is.position)
	}
	beside := r.wrong(uid, a)
	if len(beside) == 0 {
		return ""
	}
	side := "before"
	if is.position == v1alpha1.PositionLast {
		side = "behind"
	}
	name := cmp.Or(beside[0].Name, "a program of another tool")
	if !r.resting[others.Of(a)] {
		return fmt.Sprintf("position %s is not reached yet: Skep moves its programs %s %s, one after the other", a.Position, side, name)
	}
	return fmt.Sprintf("position %s is not kept: %s came %s it; Skep moves its programs at most once a minute, so see which tool moves back",
		a.Position, name, side)
}
