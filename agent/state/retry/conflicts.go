package retry

import (
	"fmt"
	"maps"
	"time"
)

// The bounds of healing. A link that is taken away so often within the window is put back
// ever more slowly, and is in conflict.
const (
	conflictAfter  = 5
	conflictWindow = time.Minute
)

// Conflicts count how often links were put back, by their pins. The caller serializes all
// calls.
type Conflicts struct {
	backOff BackOff
	byPin   map[string]*conflict
}

// conflict counts how often one link was put back.
type conflict struct {
	heals      int
	last, next time.Time
}

// NewConflicts returns Conflicts that wait as the back-off says.
func NewConflicts(b BackOff) *Conflicts { return &Conflicts{b, map[string]*conflict{}} }

// ConflictError is the error of a link that is not put back yet.
type ConflictError struct {
	heals int
	next  time.Time
}

// Error implements error.
func (c *ConflictError) Error() string {
	return fmt.Sprintf("somebody else took it away %d times; it is put back at %s; "+
		"find the tool: `bpftool link`, `bpftool net` and `skep inventory` list what is attached", c.heals, c.next.Format(time.TimeOnly))
}

// Heal counts that a link is put back, and returns how often it was. It fails with a
// *ConflictError where the link was put back too often.
func (c *Conflicts) Heal(pin string, now time.Time) (times int, err error) {
	one := c.byPin[pin]
	if one == nil || one.isOver(now) {
		one = &conflict{}
		c.byPin[pin] = one
	}
	if now.Before(one.next) {
		return one.heals, &ConflictError{heals: one.heals, next: one.next}
	}
	one.heals++
	one.last = now
	if one.heals >= conflictAfter {
		one.next = now.Add(c.backOff.After(one.heals - conflictAfter + 1))
	}
	return one.heals, nil
}

// Sweep forgets the links that were left alone for a while.
func (c *Conflicts) Sweep(now time.Time) {
	maps.DeleteFunc(c.byPin, func(_ string, one *conflict) bool { return one.isOver(now) })
}

// isOver reports whether a link was left alone for so long that its next loss is a
// first one.
func (c *conflict) isOver(now time.Time) bool {
	return now.Sub(c.last) > conflictWindow && now.After(c.next)
}
