// Package agenda orders what a step of a reconcile is left to look at, where what it finds may have it look again. It
// looks at nothing itself, and does not know what a thing is.
package agenda

import "slices"

// Thing is what is looked at. Compare returns what cmp.Compare does.
type Thing[T any] interface{ Compare(other T) int }

// Agenda are the things that are left, each once.
type Agenda[T Thing[T]] struct {
	// left are in reverse order: the next one is the last.
	left []T
}

// New returns an Agenda of things, of which none is there twice. It keeps the slice.
func New[T Thing[T]](all []T) *Agenda[T] {
	slices.SortFunc(all, later[T])
	return &Agenda[T]{all}
}

// later orders things, the last one first.
func later[T Thing[T]](x, y T) int { return y.Compare(x) }

// Next returns the first thing in order that is left, and takes it away; false where none is.
func (a *Agenda[T]) Next() (next T, ok bool) {
	if len(a.left) == 0 {
		return next, false
	}
	next = a.left[len(a.left)-1]
	a.left = a.left[:len(a.left)-1]
	return next, true
}

// Add adds a thing, unless it is left. It costs the less, the fewer of those that are left come before it.
func (a *Agenda[T]) Add(thing T) {
	if i, found := slices.BinarySearchFunc(a.left, thing, later[T]); !found {
		a.left = slices.Insert(a.left, i, thing)
	}
}
