package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Place is one hook of one interface, whose programs share the kernel's limits, or
// MapMemory.
type Place struct {
	Hook   string
	Device Device
	// Interface is the interface's Label.
	Interface string
}

// PlaceOf returns the place of an attachment to an interface.
func PlaceOf(a Attachment) Place {
	return Place{Hook: a.Hook, Device: a.Target.Device(), Interface: a.Target.String()}
}

// MapMemory is the memory that a node has for the maps and programs of all applications together.
// The kernel charges it to the agent, which makes them.
func MapMemory() Place { return Place{Hook: "map memory"} }

// String names the place for people.
func (p Place) String() string {
	if p.Interface == "" {
		return p.Hook + " of the node"
	}
	return p.Hook + " of " + p.Interface
}

// Compare orders places by device and hook. It returns what cmp.Compare does.
func (p Place) Compare(other Place) int {
	return cmp.Or(p.Device.Compare(other.Device), cmp.Compare(p.Hook, other.Hook), cmp.Compare(p.Interface, other.Interface))
}

// Seniority is the right by which an application's programs have a place. The
// first has precedence.
type Seniority int

// The standings, in order of precedence.
const (
	// Running programs run at the place now, in this revision.
	Running Seniority = iota
	// Remembered programs are the last that the node knows to have run there, in
	// this revision, and do not run there now.
	Remembered
	// Replacing programs are another revision of what runs or ran there.
	Replacing
	// Arriving programs never ran there.
	Arriving
)

// Need is what the programs of one application take of a place's limits.
type Need struct {
	// Maps counts distinct maps and data sections.
	Maps int `json:"maps,omitempty"`
	// Functions counts BPF functions.
	Functions int `json:"functions,omitempty"`
	// Programs counts programs.
	Programs int `json:"programs"`
	// Translated counts the instructions that the kernel makes of the programs, and Moves how often it
	// moves them at a load. Their product is most of a load's cost; see bytecode.Work.
	Translated int `json:"translated,omitempty"`
	Moves      int `json:"moves,omitempty"`
	// Memory is what its maps may take when they are full, in bytes.
	Memory int `json:"memory,omitempty"`
	// Closed means that the licence is not GPL compatible, GPLOnly that they call
	// what the kernel gives to GPL compatible programs only.
	Closed  bool `json:"closed,omitempty"`
	GPLOnly bool `json:"gplOnly,omitempty"`
}

// add returns the need of both.
func (n Need) add(other Need) Need {
	return Need{
		Maps: n.Maps + other.Maps, Functions: n.Functions + other.Functions, Programs: n.Programs + other.Programs,
		Translated: n.Translated + other.Translated, Moves: n.Moves + other.Moves, Memory: n.Memory + other.Memory,
		Closed: n.Closed || other.Closed, GPLOnly: n.GPLOnly || other.GPLOnly,
	}
}

// Claim is the claim of one application to one place.
type Claim struct {
	UID       string
	Identity  v1alpha1.Identity
	Seniority Seniority
	// Created is when the application was created, in unix milliseconds. No tenant
	// chooses it.
	Created int64
	Need    Need
	// Held is what another revision of the application has there, or had last.
	Held Need
	// Modes are how its XDP programs ask to run, but for those that leave it open.
	Modes []v1alpha1.XDPMode
}

// Precedes orders claims: by standing, then the oldest first, then by namespace,
// name and UID. It returns what cmp.Compare does. Priority has no part in it.
func (c *Claim) Precedes(other *Claim) int {
	return cmp.Or(
		cmp.Compare(c.Seniority, other.Seniority),
		cmp.Compare(c.Created, other.Created),
		cmp.Compare(c.Identity.Namespace, other.Identity.Namespace),
		cmp.Compare(c.Identity.Name, other.Identity.Name),
		cmp.Compare(c.UID, other.UID),
	)
}

// Limits bound all programs of a place together. Zero means no limit.
type Limits struct {
	Maps, Functions, Programs int
	// Memory bounds what maps and programs may take, in bytes.
	Memory int
	// Dispatcher is what joins several programs takes: one map and one function.
	Dispatcher bool
	// LoadCost is what the programs of namespaces may make of one load together, as bytecode.CostOf counts.
	LoadCost uint64
	// SharePercent is the part of each limit that the applications of one namespace
	// may have together. Zero means all of it. Cluster-scoped applications have no
	// such bound, and neither has what runs or ran last.
	SharePercent int
	// NoDriver says why the driver of the interface runs no XDP program; empty where it may.
	NoDriver string
}

// OverLimitError says that a claim does not fit into a place beside those that
// precede it. It names no other application: it may be another tenant's.
type OverLimitError struct {
	Place Place
	// Limit names the limit: licence, xdpMode, maps, functions, programs, memory or load time.
	Limit string
	// Reason says in figures why it does not fit, Fix what would let it in.
	Reason, Fix string
}

// Error implements error.
func (e *OverLimitError) Error() string {
	if e.Place == MapMemory() {
		return fmt.Sprintf("make maps and programs: %s: %s; %s", e.Limit, e.Reason, e.Fix)
	}
	return fmt.Sprintf("place programs on %s: %s: %s; %s", e.Place, e.Limit, e.Reason, e.Fix)
}

// Admit grants the limits of a place to claims in the order of Precedes. A claim
// that does not fit is rejected alone, and takes nothing from those after it. It
// returns the errors of the rejected claims by UID. What runs is never rejected, but for a namespace's program in
// another mode than one of the cluster's that was granted.
func Admit(place Place, claims []Claim, limits Limits) map[string]error {
	inOrder := make([]*Claim, len(claims))
	for i := range claims {
		inOrder[i] = &claims[i]
	}
	slices.SortStableFunc(inOrder, func(x, y *Claim) int { return x.Precedes(y) })
	refused, granted := map[string]error{}, newGrants(limits)
	for _, c := range inOrder {
		if c.Seniority != Running {
			if err := granted.fits(c); err != nil {
				err.Place = place
				refused[c.UID] = err
				continue
			}
		}
		granted.add(c)
	}
	for _, c := range inOrder {
		if err := granted.hasOtherMode(c); err != nil && refused[c.UID] == nil && c.Identity.IsNamespaced() {
			err.Place = place
			refused[c.UID] = err
		}
	}
	return refused
}

// grants are the claims that were granted at a place, added up: what the next one takes to be checked does not
// depend on how many they are.
type grants struct {
	limits  Limits
	counted []dimension
	// all are the needs of all, and of those of each namespace; the cluster's has no name.
	all Need
	of  map[string]Need
	// beyond is what namespaces have of a load beyond their shares of it.
	beyond work
	// modes are the first claims with each mode of the cluster's and of namespaces', in order.
	modes []*Claim
}

func newGrants(l Limits) *grants {
	return &grants{limits: l, counted: dimensions(l), of: map[string]Need{}}
}

// add grants a claim.
func (g *grants) add(c *Claim) {
	namespace := c.Identity.Namespace
	before := g.of[namespace]
	g.all, g.of[namespace] = g.all.add(c.Need), before.add(c.Need)
	if namespace != "" {
		g.beyond = g.with(before, c.Need)
	}
	if len(c.Modes) > 0 && !slices.ContainsFunc(g.modes, func(other *Claim) bool { return other.Modes[0] == c.Modes[0] && other.choosesFor(c) }) {
		g.modes = append(g.modes, c)
	}
}

// fits returns why a claim does not fit beside those that were granted, or nil.
func (g *grants) fits(c *Claim) *OverLimitError {
	if err := g.fitsLicence(c); err != nil {
		return err
	}
	if err := g.fitsMode(c); err != nil {
		return err
	}
	for _, d := range g.counted {
		if err := g.fitsLimit(c, d); err != nil {
			return err
		}
	}
	return g.fitsLoad(c)
}

// fitsMode returns why a claim cannot run as it asks to, or nil. The kernel runs the XDP programs of
// an interface in one mode, and those that have precedence choose it.
func (g *grants) fitsMode(c *Claim) *OverLimitError {
	if len(c.Modes) > 1 {
		return &OverLimitError{Limit: "xdpMode", Reason: "its programs ask for different modes, and an interface runs all in one", Fix: "give them the same one"}
	}
	if err := g.hasOtherMode(c); err != nil {
		return err
	}
	if len(c.Modes) == 1 && c.Modes[0] == v1alpha1.XDPNative && g.limits.NoDriver != "" {
		return &OverLimitError{Limit: "xdpMode", Reason: g.limits.NoDriver, Fix: "set xdpMode to Auto or Generic"}
	}
	return nil
}

// choosesFor reports whether a claim has precedence in the choice of a mode: the cluster's have it over all of namespaces.
func (c *Claim) choosesFor(other *Claim) bool {
	if isOther := other.Identity.IsNamespaced(); isOther != c.Identity.IsNamespaced() {
		return isOther
	}
	return c.Precedes(other) < 0
}

// hasOtherMode returns that a claim asks for another mode than one that chooses for it, or nil.
func (g *grants) hasOtherMode(c *Claim) *OverLimitError {
	for _, other := range g.modes {
		if len(c.Modes) > 0 && other.Modes[0] != c.Modes[0] && other.choosesFor(c) {
			return &OverLimitError{
				Limit: "xdpMode", Fix: "leave xdpMode out to follow, or attach to another interface",
				Reason: fmt.Sprintf("it asks for %s, and %s, which has precedence on the interface, for %s", c.Modes[0], Whose(c.Identity, other.Identity), other.Modes[0]),
			}
		}
	}
	return nil
}

// Whose names an application to another one that is told of it. A namespace is not told the names that others chose:
// it may not see that they exist.
func Whose(reader, other v1alpha1.Identity) string {
	switch {
	case reader.Namespace == "", reader.Namespace == other.Namespace:
		return "application " + other.String()
	case other.Namespace == "":
		return "a " + v1alpha1.KindClusterBpfApplication
	}
	return "an application of another namespace"
}

// dimension is one limit that is counted.
type dimension struct {
	name  string
	limit int
	of    func(Need) int
	// shared is what a dispatcher takes of it.
	shared int
	// setter says who sets the limit, and figure writes one of its figures for people.
	setter string
	figure func(int) string
	fix    string
}

// mebibytes writes a number of bytes, rounded up.
func mebibytes(n int) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

// dimensions are the limits that are set.
func dimensions(l Limits) []dimension {
	shared := 0
	if l.Dispatcher {
		shared = 1
	}
	const kernel, node = "the kernel allows", "this node has for maps and programs"
	all := []dimension{
		{"maps", l.Maps, func(n Need) int { return n.Maps }, shared, kernel, strconv.Itoa, "use fewer maps or data sections, or attach to another interface"},
		{
			"functions", l.Functions, func(n Need) int { return n.Functions }, shared, kernel, strconv.Itoa,
			"let the compiler inline functions (static __always_inline), or attach to another interface",
		},
		{"programs", l.Programs, func(n Need) int { return n.Programs }, 0, kernel, strconv.Itoa, "attach fewer programs, or attach to another interface"},
		{
			"memory", l.Memory, func(n Need) int { return n.Memory }, 0, node, mebibytes,
			"use smaller maps (spec.maps.NAME.maxEntries) or smaller or fewer programs, or have an administrator raise --map-memory",
		},
	}
	return slices.DeleteFunc(all, func(d dimension) bool { return d.limit == 0 })
}

// fitsLimit checks one dimension: the kernel's limit, and the namespace's share.
func (g *grants) fitsLimit(c *Claim, d dimension) *OverLimitError {
	need, own := d.of(c.Need), d.of(g.of[c.Identity.Namespace])
	others, shared, percent := d.of(g.all)-own, 0, g.limits.SharePercent
	if g.all.Programs+c.Need.Programs > 1 {
		shared = d.shared
	}
	if need > 0 && need+own+others+shared > d.limit {
		return &OverLimitError{Limit: d.name,
			Reason: fmt.Sprintf("it takes %s, and of the %s that %s %s are held: %s",
				d.figure(need), d.figure(d.limit), d.setter, d.figure(own+others+shared), d.holders(c, own, others, shared)),
			Fix: d.fix}
	}
	share := d.limit * percent / 100
	if percent == 0 || c.Identity.Namespace == "" || c.Seniority <= Remembered || need <= d.of(c.Held) || need+own <= share {
		return nil
	}
	return &OverLimitError{Limit: d.name,
		Reason: fmt.Sprintf("it takes %s, namespace %s holds %s, and one namespace may have %s of the %s (%d %%)",
			d.figure(need), c.Identity.Namespace, d.figure(own), d.figure(share), d.figure(d.limit), percent),
		Fix: d.fix + ", or have an administrator raise --namespace-share"}
}

// holders says who holds a limit, without names of other tenants.
func (d dimension) holders(c *Claim, own, others, shared int) string {
	mine, rest := "cluster-scoped applications", "namespaces"
	if c.Identity.Namespace != "" {
		mine, rest = "namespace "+c.Identity.Namespace, "others"
	}
	said := fmt.Sprintf("%s by %s, %s by %s", d.figure(own), mine, d.figure(others), rest)
	if shared > 0 {
		said += fmt.Sprintf(", %d by the dispatcher", shared)
	}
	return said
}

// fitsLicence checks that programs which share one licence agree on it: joined
// programs have one, and what one of them needs of the GPL binds all.
func (g *grants) fitsLicence(c *Claim) *OverLimitError {
	switch {
	case c.Need.Closed && g.all.GPLOnly:
		return &OverLimitError{Limit: "licence",
			Reason: "its licence is not GPL compatible, and a program that has precedence there calls helpers which need every program of the interface to be",
			Fix:    "declare a GPL compatible licence in the object, or attach to another interface"}
	case c.Need.GPLOnly && g.all.Closed:
		return &OverLimitError{Limit: "licence",
			Reason: "it calls helpers which need every program of the interface to have a GPL compatible licence, and one that has precedence there has none",
			Fix:    "do without these helpers, or attach to another interface"}
	}
	return nil
}
