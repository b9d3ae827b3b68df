package chain

import (
	"fmt"
	"slices"

	"github.com/skep-dev/skep/bytecode"
)

// Need is what members of one application take of a chain's limits, whatever
// other applications have members there: applications share no map and no
// function.
type Need struct {
	// Maps counts distinct maps, data sections included, Functions functions.
	Maps, Functions int
	// Translated and Moves are what the kernel makes of them at a load; see bytecode.Work.
	Translated, Moves int
	// Closed means that a member's licence is not GPL compatible, GPLOnly that one
	// calls what the kernel gives to GPL compatible programs only.
	Closed, GPLOnly bool
}

// Profile is what each program of one object takes of a chain, as far as it is
// needed to count any of them together. It holds nothing of the object.
type Profile struct{ programs map[string]taken }

// taken is what one program takes.
type taken struct {
	// maps are the names of its maps; one that is empty stands for the section of
	// extern variables.
	maps            []string
	functions       int
	work            bytecode.Work
	closed, gplOnly bool
}

// Measure returns what members of one application take, by Member.Program. It loads
// none of them.
func Measure(members []Member) (Profile, error) {
	p := Profile{map[string]taken{}}
	for i := range members {
		m := &members[i]
		if m.Object == nil || m.Object.Programs[m.Program] == nil || len(m.Object.Programs[m.Program].Instructions) == 0 {
			return Profile{}, fmt.Errorf("measure member %q: its object has no program %q", m.Key, m.Program)
		}
		l := newLinker()
		if err := l.add(m); err != nil {
			return Profile{}, err
		}
		one := taken{functions: len(l.starts), work: l.work[l.calls[0]], closed: !m.Facts.GPLCompatible, gplOnly: len(m.Facts.GPLOnly) > 0}
		for _, ref := range l.refs {
			one.maps = append(one.maps, ref.Name)
		}
		if len(findKconfigs(l.body, l.owners)) > 0 {
			one.maps = append(one.maps, "")
		}
		p.programs[m.Program] = one
	}
	return p, nil
}

// Need returns what some of the programs take together, each once; false where one
// of them was not measured.
func (p Profile) Need(programs ...string) (Need, bool) {
	var n Need
	used := map[string]bool{}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(programs))) {
		one, ok := p.programs[name]
		if !ok {
			return Need{}, false
		}
		n.Functions += one.functions
		n.Translated, n.Moves = n.Translated+one.work.Translated, n.Moves+one.work.Moves()
		n.Closed, n.GPLOnly = n.Closed || one.closed, n.GPLOnly || one.gplOnly
		for _, m := range one.maps {
			used[m] = true
		}
	}
	n.Maps = len(used)
	return n, true
}
