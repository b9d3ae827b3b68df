// Package order says in which order programs run at a target of an ordered hook, and which of those that
// run have to move.
//
// It is pure. It knows neither links nor filters nor chains, and decides nothing about programs that are not Skep's.
package order

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Rank is a part of a hook: all programs of a rank run before those of the next.
type Rank int

// The ranks, in order. A program of a namespace runs behind those of the cluster, but for those that ask to run
// behind it.
const (
	BeforeNamespaces Rank = iota
	OfNamespaces
	AfterNamespaces
)

// RankOf returns the rank of an application's program. What a namespace asks for does not count.
func RankOf(of v1alpha1.Identity, afterNamespaces bool) Rank {
	switch {
	case of.IsNamespaced():
		return OfNamespaces
	case afterNamespaces:
		return AfterNamespaces
	}
	return BeforeNamespaces
}

// Turn is what decides when a program runs.
type Turn struct {
	Rank Rank
	// Priority orders programs of a rank, low first; then do the names and the UID.
	Priority     int32
	Application  v1alpha1.Identity
	Program, UID string
}

// Compare returns what cmp.Compare does: what is less runs first.
func (t Turn) Compare(u Turn) int {
	return cmp.Or(cmp.Compare(t.Rank, u.Rank), cmp.Compare(t.Priority, u.Priority), cmp.Compare(t.Application.Namespace, u.Application.Namespace),
		cmp.Compare(t.Application.Name, u.Application.Name), cmp.Compare(t.Program, u.Program), cmp.Compare(t.UID, u.UID))
}

// Place is a program that runs.
type Place struct {
	// ID is the caller's.
	ID   int
	Turn Turn
	// Position is where it runs now, low first.
	Position int
	// Fixed ones stay where they are: others move around them.
	Fixed bool
	// Strayed is to move to the other side of programs of others.
	Strayed bool
}

// weight is what a place counts among fewer than n. Where programs of a namespace and of the cluster are in the
// wrong order, the cluster's move: a namespace could have its own fail to, which needs another load of its object.
func (p *Place) weight(n int) int {
	switch {
	case p.Fixed:
		return n * n
	case p.Turn.Rank == OfNamespaces:
		return n
	}
	return 1
}

// Movers returns the places that have to move so that all are in order, and as few as can be. Those that are to
// run last come first: each moves before one that is in its place already. Before all, what strayed moves.
func Movers(places []Place) []Place {
	places = slices.Clone(places)
	slices.SortFunc(places, func(a, b Place) int { return b.Turn.Compare(a.Turn) })
	// weight is that of the heaviest run in order which ends with a place, and from the one before it in that run.
	weight, from, last := make([]int, len(places)), make([]int, len(places)), -1
	for i, p := range places {
		from[i] = -1
		for j := range i {
			if p.Position < places[j].Position && weight[j] > weight[i] {
				weight[i], from[i] = weight[j], j
			}
		}
		weight[i] += p.weight(len(places) + 1)
		if last < 0 || weight[i] >= weight[last] {
			last = i
		}
	}
	stays := make([]bool, len(places))
	for i := last; i >= 0; i = from[i] {
		stays[i] = true
	}
	var strayed, movers []Place
	for i, p := range places {
		switch {
		case p.Fixed:
		case p.Strayed:
			strayed = append(strayed, p)
		case !stays[i]:
			movers = append(movers, p)
		}
	}
	return append(strayed, movers...)
}
