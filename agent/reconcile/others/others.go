// Package others reads which programs of others the kernel runs next to Skep's on the hooks of network devices, and in
// which order. It changes nothing and decides nothing.
//
// The names that others gave to their programs may be anything: they are made fit for a terminal here.
package others

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// Program is one that Skep did not attach.
type Program struct {
	// ID is the kernel's; 0 of a filter of tc that is no BPF program.
	ID uint32 `json:"id,omitempty"`
	// Name is what its loader called it, which may be anything.
	Name string `json:"name,omitempty"`
	// Pref is that of a filter of clsact.
	Pref uint16 `json:"pref,omitempty"`
}

// String names it, such as: cil_from_netdev (id 41).
func (p Program) String() string {
	switch {
	case p.ID == 0:
		return fmt.Sprintf("a filter of tc (pref %d)", p.Pref)
	case p.Name == "":
		return fmt.Sprintf("a program (id %d)", p.ID)
	}
	return fmt.Sprintf("%s (id %d)", p.Name, p.ID)
}

// Place is a hook of a device.
type Place struct {
	Hook string
	On   plan.Device
}

// Of is the place of an attachment.
func Of(a plan.Attachment) Place { return Place{a.Hook, a.Target.Device()} }

// hasOrder reports whether the kernel keeps the order of programs at the place, of which filters have none.
func (p Place) hasOrder() bool {
	h, _ := hook.Lookup(p.Hook)
	return attach.IsOrdered(p.Hook) && !h.IsFilter() && p.On.Index != 0
}

// Names are those of programs of others, by id. The zero value is ready.
type Names struct{ known map[uint32]string }

// The bounds of names.
const (
	// maxNames is how many are remembered: the kernel gives an id to no other program for a long time.
	maxNames = 4096
	// maxName is how long one is, in characters.
	maxName = 64
)

// Of fills in the names of programs. One that is gone, or may not be seen, has none.
func (n *Names) Of(all ...Program) []Program {
	for i, p := range all {
		if p.ID == 0 {
			continue
		}
		name, known := n.known[p.ID]
		if !known {
			if name = nameOf(ebpf.ProgramID(p.ID)); n.known == nil || len(n.known) >= maxNames {
				n.known = map[uint32]string{}
			}
			n.known[p.ID] = name
		}
		all[i].Name = name
	}
	return all
}

// nameOf is the name that the kernel has of a program.
func nameOf(id ebpf.ProgramID) string {
	p, err := plain.Of(ebpf.NewProgramFromID(id))
	if err != nil {
		return ""
	}
	info, err := plain.Of(p.Info())
	if err = errors.Join(err, p.Close()); err != nil {
		return ""
	}
	return text.CutRunes(text.Line(info.Name), maxName)
}

// Options are what a Round reads by.
type Options struct {
	// Ours returns the programs of Skep's, with the UIDs of their applications.
	Ours func() map[ebpf.ProgramID]string
	// Filters returns the filters of others on a side of clsact.
	Filters func(clsact.Side) []clsact.Other
	// Namespaces are those that devices are in, and Names what is known of programs.
	Namespaces *netns.Table
	Names      *Names
}

// Round is what one reconcile reads. The caller serializes all calls.
type Round struct {
	Options
	orders map[Place][]attach.Placed
	ours   map[ebpf.ProgramID]string
}

// New begins to read.
func New(o Options) *Round { return &Round{Options: o, orders: map[Place][]attach.Placed{}} }

// Order returns the programs at a place whose order the kernel keeps. It is read once, until Forget.
func (r *Round) Order(at Place) ([]attach.Placed, error) {
	if known, ok := r.orders[at]; ok {
		return known, nil
	}
	all, err := attach.Order(at.Hook, at.On, r.Namespaces)
	if err == nil {
		r.orders[at] = all
	}
	return all, err
}

// Forget forgets the order at the place of an attachment, where a link was made.
func (r *Round) Forget(a plan.Attachment) { delete(r.orders, Of(a)) }

// ForgetOurs forgets which programs are Skep's, where some were loaded.
func (r *Round) ForgetOurs() { r.ours = nil }

// isOurs reports whether a program is Skep's.
func (r *Round) isOurs(id ebpf.ProgramID) bool {
	if r.ours == nil {
		r.ours = r.Ours()
	}
	_, is := r.ours[id]
	return is
}

// Around returns the programs of others before and after a link at a place whose order the kernel keeps; none where the link
// is not there, or nothing is known.
func (r *Round) Around(at Place, id link.ID) (before, after []Program) {
	if !at.hasOrder() || id == 0 {
		return nil, nil
	}
	order, err := r.Order(at)
	i := slices.IndexFunc(order, func(p attach.Placed) bool { return p.Link == id })
	if err != nil || i < 0 {
		return nil, nil
	}
	return r.othersOf(order[:i]), r.othersOf(order[i+1:])
}

func (r *Round) othersOf(order []attach.Placed) (all []Program) {
	for _, p := range order {
		if !r.isOurs(p.Program) {
			all = append(all, Program{ID: uint32(p.Program)})
		}
	}
	return r.Names.Of(all...)
}

// Ahead returns the programs of others that the kernel runs before a link on the same side of the same device, in
// their order: each can end the run. There are none on other hooks, and where the kernel does not tell.
func (r *Round) Ahead(a plan.Attachment, facts pins.Facts) []Program {
	at := Of(a)
	if facts.Filter.Copies > 0 {
		return append(r.onTCX(at), r.filters(at, facts.Filter.Pref)...)
	}
	before, _ := r.Around(at, facts.ID)
	return before
}

// onTCX returns the programs of others at TCX, which all come before the filters of clsact on the same side.
func (r *Round) onTCX(at Place) []Program {
	if h, _ := hook.Lookup(at.Hook); !h.IsFilter() {
		// A filter in the place of TCX, which the kernel has not.
		return nil
	}
	order, err := r.Order(Place{"tcx/" + side(at.Hook), at.On})
	if err != nil {
		return nil
	}
	return r.othersOf(order)
}

// side is ingress or egress.
func side(hook string) string { return strings.TrimPrefix(strings.TrimPrefix(hook, "tcx/"), "tc/") }

// filters returns the filters of others before a pref, by their prefs. Of a pod, which may have any number of them, none is
// looked for.
func (r *Round) filters(at Place, pref uint16) (all []Program) {
	side, _, ok := clsact.Of(at.Hook, at.On)
	if !ok || at.On.NetnsID != 0 {
		return nil
	}
	for _, f := range r.Filters(side) {
		if f.Pref < pref {
			all = append(all, Program{ID: uint32(f.Program), Pref: f.Pref})
		}
	}
	return r.Names.Of(all...)
}

// Sequence is what the kernel runs at a place where Skep has a program, in its order.
type Sequence struct {
	// Place is xdp where others have the device, and tc/* for all filters of clsact on that side.
	Place
	Steps []Step
	// Err is why the programs of others, or the order, are not known.
	Err error
}

// Step is one program: of Skep's, by its link, or of others.
type Step struct {
	// Link is nil of others, whose program is Other.
	Link  *pins.Link
	Facts pins.Facts
	Other Program
}

// Sequences returns those at the places of Skep's links. Those of XDP, which have one program, are of others alone.
func (r *Round) Sequences(ours []Step) []Sequence {
	places := map[Place][]Step{}
	for _, s := range ours {
		at := Of(s.Link.Attachment)
		if h, _ := hook.Lookup(at.Hook); !h.TakesPriority() || s.Facts.Severed {
			continue
		}
		if s.Facts.Filter.Copies > 0 {
			at.Hook = "tc/" + side(at.Hook)
		}
		places[at] = append(places[at], s)
	}
	var all []Sequence
	seen := map[plan.Device]bool{}
	for at, steps := range places {
		s := Sequence{Place: at}
		if at.hasOrder() {
			s.Steps, s.Err = r.ordered(at, steps)
		} else {
			s.Steps = r.byPref(at, steps)
		}
		all = append(all, s)
		if id, err := attach.XDPProgramOf(at.On, r.Namespaces); err == nil && id != 0 && !seen[at.On] && !r.isOurs(id) {
			all = append(all, Sequence{Place: Place{plan.XDP, at.On}, Steps: []Step{{Other: r.Names.Of(Program{ID: uint32(id)})[0]}}})
		}
		seen[at.On] = true
	}
	return all
}

// ordered puts programs of others between ours, as the kernel has them.
func (r *Round) ordered(at Place, ours []Step) (all []Step, err error) {
	order, err := r.Order(at)
	if err != nil {
		return ours, err
	}
	for _, p := range order {
		i := slices.IndexFunc(ours, func(s Step) bool { return s.Facts.ID == p.Link && p.Link != 0 })
		switch {
		case i >= 0:
			all = append(all, ours[i])
		case !r.isOurs(p.Program):
			all = append(all, Step{Other: r.Names.Of(Program{ID: uint32(p.Program)})[0]})
		}
	}
	return all, nil
}

// byPref puts filters of others between ours, by their prefs.
func (r *Round) byPref(at Place, all []Step) []Step {
	for _, f := range r.filters(at, ^uint16(0)) {
		all = append(all, Step{Other: f})
	}
	pref := func(s Step) uint16 { return max(s.Other.Pref, s.Facts.Filter.Pref) }
	slices.SortStableFunc(all, func(a, b Step) int { return cmp.Compare(pref(a), pref(b)) })
	return all
}
