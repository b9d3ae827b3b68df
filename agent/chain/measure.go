package chain

import "fmt"

// Need is what members of one application take of a chain's limits, whatever
// other applications have members there: applications share no map and no
// function.
type Need struct {
	// Maps counts distinct maps, data sections included, Functions functions.
	Maps, Functions int
	// Closed means that a member's licence is not GPL compatible, GPLOnly that one
	// calls what the kernel gives to GPL compatible programs only.
	Closed, GPLOnly bool
}

// Measure returns what members of one application take. It asks no kernel.
func Measure(members []Member) (Need, error) {
	l := newLinker()
	var n Need
	for i := range members {
		m := &members[i]
		if m.Object == nil || m.Object.Programs[m.Program] == nil || len(m.Object.Programs[m.Program].Instructions) == 0 {
			return Need{}, fmt.Errorf("measure member %q: its object has no program %q", m.Key, m.Program)
		}
		if err := l.add(m); err != nil {
			return Need{}, err
		}
		n.Closed = n.Closed || !m.Facts.GPLCompatible
		n.GPLOnly = n.GPLOnly || len(m.Facts.GPLOnly) > 0
	}
	n.Maps, n.Functions = len(l.refs)+len(findKconfigs(l.body, l.owners)), len(l.starts)
	return n, nil
}
