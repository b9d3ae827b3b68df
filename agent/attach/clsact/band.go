package clsact

import (
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// Band is the prefs that the filters of a hook may have, and how they follow from
// priorities.
type Band struct {
	first, last, each uint16
}

// The bands. Filters of tcx/* come first, as TCX comes before clsact. All are below 32768: the
// kernel gives a filter that names no pref the one before the first filter at 32768 or behind
// it (tcf_auto_prio of net/sched/cls_api.c), which is to stay as if Skep were not there.
var (
	forTCX = Band{1, 1999, 1}
	forTC  = Band{2000, 32767, 30}
)

// Of returns the side and the prefs of a hook's filters; not ok where the hook has none.
func Of(hook string, device plan.Device) (Side, Band, bool) {
	switch hook {
	case "tc/ingress", "tc/egress":
		return Side{device, hook == "tc/egress"}, forTC, true
	case "tcx/ingress", "tcx/egress":
		return Side{device, hook == "tcx/egress"}, forTCX, true
	}
	return Side{}, Band{}, false
}

func (b Band) has(pref uint16) bool { return b.first <= pref && pref <= b.last }

// pref is the first that programs of a priority get.
func (b Band) pref(priority int32) uint16 {
	return b.first + b.each*uint16(min(max(priority, 0), 1000))
}

// move is a filter that is to have another pref.
type move struct{ from, to uint16 }

// place returns the pref of a new filter: its priority's or the next free one or, where those
// that run behind it leave none, the last free one before. Where no pref is free between its
// neighbours, these make room first: each move goes to a free pref, and keeps their order. It
// is not ok where the band is full. before and after are the prefs of its neighbours, sorted;
// own are those that it gives up, and taken all others in use, by whomever.
func (b Band) place(priority int32, before, after []uint16, own, taken map[uint16]bool) (pref uint16, moves []move, ok bool) {
	low, high := b.first, b.last
	if len(after) > 0 {
		high = after[0] - 1
		// What is to run before and does not is on its way.
		before = slices.DeleteFunc(before, func(p uint16) bool { return p > high })
	}
	if n := len(before); n > 0 {
		low = before[n-1] + 1
	}
	wish := b.pref(priority)
	if free, ok := up(max(low, wish), high, taken); ok {
		return free, nil, true
	}
	if free, ok := down(min(high, wish), low, taken); ok {
		return free, nil, true
	}
	all := maps.Clone(taken)
	maps.Copy(all, own)
	if moves, free, ok := makeRoom(after, b.last, up, all); ok {
		return free, moves, true
	}
	slices.Reverse(before)
	moves, pref, ok = makeRoom(before, b.first, down, all)
	return pref, moves, ok
}

// makeRoom moves the nearest neighbours on one side away: as many as there are up to the first
// free pref, each to the place of the next.
func makeRoom(side []uint16, end uint16, next func(from, to uint16, taken map[uint16]bool) (uint16, bool),
	taken map[uint16]bool) (moves []move, room uint16, ok bool) {
	for i, at := range side {
		limit := end
		if i+1 < len(side) {
			limit = side[i+1]
		}
		free, found := next(at, limit, taken)
		if !found {
			continue
		}
		for j := i; j >= 0; j-- {
			moves = append(moves, move{side[j], free})
			free = side[j]
		}
		return moves, free, true
	}
	return nil, 0, false
}

// up finds the first free pref from one up to another.
func up(from, to uint16, taken map[uint16]bool) (uint16, bool) {
	for p := int(from); p <= int(to); p++ {
		if !taken[uint16(p)] {
			return uint16(p), true
		}
	}
	return 0, false
}

// down finds the first free pref from one down to another.
func down(from, to uint16, taken map[uint16]bool) (uint16, bool) {
	for p := int(from); p >= int(to); p-- {
		if !taken[uint16(p)] {
			return uint16(p), true
		}
	}
	return 0, false
}
