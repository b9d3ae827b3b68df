package clsact

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlacesOfFilters(t *testing.T) {
	span := func(from, to uint16) (all []uint16) {
		for p := from; p <= to; p++ {
			all = append(all, p)
		}
		return all
	}
	for sentence, c := range map[string]struct {
		band          Band
		priority      int32
		before, after []uint16
		own, others   []uint16
		pref          uint16
		moves         []move
		full          bool
	}{
		"a filter alone has the pref of its priority":                {band: forTC, priority: 500, pref: 17000},
		"the last priority is below what the kernel gives by itself": {band: forTC, priority: 1000, pref: 32000},
		"TCX's come before all":                                      {band: forTCX, priority: 500, pref: 501},
		"a pref of somebody else is left to it":                      {band: forTC, priority: 500, others: []uint16{17000, 17001}, pref: 17002},
		"what runs before goes before, whatever pref it has":         {band: forTC, priority: 500, before: []uint16{17010}, pref: 17011},
		"what runs behind stays behind":                              {band: forTC, priority: 500, after: []uint16{17000}, pref: 16999},
		"between neighbours":                                         {band: forTC, priority: 500, before: []uint16{17000}, after: []uint16{17002}, pref: 17001},
		"its own pref is free":                                       {band: forTC, priority: 500, own: []uint16{17000}, pref: 17000},
		"the neighbour behind makes room": {band: forTC, priority: 500, before: []uint16{17000}, after: []uint16{17001}, pref: 17001,
			moves: []move{{17001, 17002}}},
		"so do all up to the first free pref, the last one " +
			"first": {band: forTC, priority: 500, before: []uint16{17000}, after: []uint16{17001, 17002, 17004}, others: []uint16{17003}, pref: 17001,
			moves: []move{{17004, 17005}, {17002, 17004}, {17001, 17002}}},
		"no neighbour takes the pref that is being given " +
			"up": {band: forTC, priority: 500, before: []uint16{17000}, after: []uint16{17001}, own: []uint16{17002}, pref: 17001,
			moves: []move{{17001, 17003}}},
		"where there is no room behind, neighbours move ahead": {band: forTC, priority: 500, before: []uint16{32760}, after: span(32761, 32767), pref: 32760,
			moves: []move{{32760, 32759}}},
		"a neighbour that is not in its place yet is passed over": {band: forTC, priority: 500, before: []uint16{16000, 18000}, after: []uint16{17500}, pref: 17000},
		"a full band":                     {band: forTCX, priority: 1, others: span(1, 1999), full: true},
		"a full band of neighbours alone": {band: forTCX, priority: 1, before: span(1, 1000), after: span(1001, 1999), full: true},
	} {
		t.Run(sentence, func(t *testing.T) {
			taken, own := map[uint16]bool{}, map[uint16]bool{}
			for _, p := range slices.Concat(c.before, c.after, c.others) {
				taken[p] = true
			}
			for _, p := range c.own {
				own[p] = true
			}
			pref, moves, ok := c.band.place(c.priority, slices.Clone(c.before), slices.Clone(c.after), own, taken)
			if pref != c.pref || ok == c.full {
				t.Errorf("place = %d, %v; want %d", pref, ok, c.pref)
			}
			if diff := cmp.Diff(c.moves, moves, cmp.AllowUnexported(move{})); diff != "" {
				t.Errorf("moves (-want +got):\n%s", diff)
			}
		})
	}
}
