package chain

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode"
)

// Limit names what a member did not fit into.
type Limit string

// The limits. Those counted before the kernel is asked come first.
const (
	LimitType         Limit = "type"
	LimitLicense      Limit = "licence"
	LimitFrags        Limit = "frags"
	LimitMaps         Limit = "maps"
	LimitSubprograms  Limit = "subprograms"
	LimitFrames       Limit = "frames"
	LimitInstructions Limit = "instructions"
	LimitLoad         Limit = "load time"
	LimitStack        Limit = "stack"
	LimitVerifier     Limit = "verifier"
)

// Rejection says which member does not fit into a chain, and why. The rest of
// the chain is not at fault and goes on without it.
type Rejection struct {
	// Member is the key of the member that is rejected.
	Member string
	// Limit is the rule that rejected it.
	Limit Limit
	// Reason says in figures what is too much.
	Reason string
	// Fix says what would let the member in.
	Fix string
	// Err is the kernel's error, or nil where the kernel was not asked.
	Err error
}

// Error implements error.
func (r *Rejection) Error() string {
	msg := fmt.Sprintf("link %q into chain: %s: %s; %s", r.Member, r.Limit, r.Reason, r.Fix)
	if r.Err != nil {
		msg += ": " + r.Err.Error()
	}
	return msg
}

// Unwrap returns the kernel's error.
func (r *Rejection) Unwrap() error { return r.Err }

// Queued reports whether the member would fit if fewer others were in the chain, or
// none: what they hold leaves it no room. Else the kernel rejects it for another
// reason.
func (r *Rejection) Queued() bool { return r.Limit != LimitType && r.Limit != LimitVerifier }

// Usage is what a chain takes of the limits its members share.
type Usage struct {
	// Members counts places.
	Members int `json:"members"`
	// Maps counts distinct maps, the chain's own counters included, and its owner
	// not, since that gives way.
	Maps int `json:"maps"`
	// Subprograms counts functions, the dispatcher included.
	Subprograms int `json:"subprograms"`
	// Frames counts functions along the deepest path of calls, the dispatcher
	// included.
	Frames int `json:"frames"`
	// Instructions is the length of the program.
	Instructions int `json:"instructions"`
	// Verified is how many instructions the verifier walked, which the caller
	// reads of the chain once it is loaded.
	Verified int `json:"verified,omitempty"`
}

// Left is the room for further members.
func (u Usage) Left() Room {
	return Room{
		Maps:        MaxMaps - u.Maps,
		Subprograms: MaxSubprograms - u.Subprograms,
		Members:     MaxSubprograms - u.Subprograms,
		Verified:    MaxInstructions - max(u.Verified, u.Instructions),
	}
}

// Room is what of the limits is left for further members.
type Room struct {
	// Maps counts maps.
	Maps int `json:"maps"`
	// Subprograms counts functions.
	Subprograms int `json:"subprograms"`
	// Members counts members of one function and no map of their own, the
	// smallest there are.
	Members int `json:"members"`
	// Verified counts instructions the verifier may walk.
	Verified int `json:"verified"`
}

// newcomer is the member to reject when members do not fit together: the last
// new one, or the last where none is marked.
func newcomer(members []Member) Member {
	for i := len(members) - 1; i >= 0; i-- {
		if members[i].New {
			return members[i]
		}
	}
	return members[len(members)-1]
}

// license is the licence of the joined program. In a chain the kernel sees one
// licence for all members, so what each needs of the GPL is checked here.
func license(members []Member) (string, error) {
	var closed, needy []Member
	for _, m := range members {
		if !m.Facts.GPLCompatible {
			closed = append(closed, m)
		}
		if len(m.Facts.GPLOnly) > 0 {
			needy = append(needy, m)
		}
	}
	if len(closed) == 0 {
		return "GPL", nil
	}
	if len(needy) == 0 {
		return "Proprietary", nil
	}
	return "", rejectLicense(members, closed, needy)
}

func rejectLicense(members, closed, needy []Member) error {
	for _, m := range needy {
		if !m.Facts.GPLCompatible {
			return &Rejection{Member: m.Key, Limit: LimitLicense,
				Reason: fmt.Sprintf("its licence %q is not GPL compatible, and it calls %s, which the kernel gives only to such programs",
					m.Facts.License, strings.Join(m.Facts.GPLOnly, ", ")),
				Fix: "declare a GPL compatible licence in the object, or do without the call"}
		}
	}
	latest := newcomer(members)
	if latest.Facts.GPLCompatible {
		return &Rejection{Member: latest.Key, Limit: LimitLicense,
			Reason: fmt.Sprintf("%s calls %s, which needs every member of the chain to be GPL compatible, and %s has licence %q",
				quoteKey(latest, needy[0]), strings.Join(needy[0].Facts.GPLOnly, ", "), nameOf(latest, closed[0]), closed[0].Facts.License),
			Fix: "do without the call, or attach to another interface"}
	}
	return &Rejection{Member: latest.Key, Limit: LimitLicense,
		Reason: fmt.Sprintf("its licence %q is not GPL compatible, and %s of the same chain calls %s, which needs every member to be",
			latest.Facts.License, nameOf(latest, needy[0]), strings.Join(needy[0].Facts.GPLOnly, ", ")),
		Fix: "declare a GPL compatible licence in the object, or attach to another interface"}
}

func quoteKey(subject, m Member) string {
	if subject.Key == m.Key {
		return "it"
	}
	return nameOf(subject, m)
}

// nameOf names a member in the rejection of another. Who else has programs on an
// interface is no tenant's business.
func nameOf(subject, m Member) string {
	if subject.Tenant != "" && subject.Tenant != m.Tenant {
		return "a program of another tenant"
	}
	return fmt.Sprintf("%q", m.Key)
}

// checkFrags rejects a mixture the kernel would not load: a prog array takes
// programs and callers of one kind only, and the chain is not frags-aware
// unless every member is.
func checkFrags(members []Member) error {
	if flags(members) == frags {
		return nil
	}
	var unaware, tail *Member
	for i := range members {
		m := &members[i]
		switch aware := m.Object.Programs[m.Program].Flags&frags != 0; {
		case !aware && (unaware == nil || m.New):
			unaware = m
		case aware && tail == nil && usesProgArray(m):
			tail = m
		}
	}
	if tail == nil {
		return nil
	}
	latest := newcomer(members)
	return &Rejection{Member: latest.Key, Limit: LimitFrags,
		Reason: fmt.Sprintf("%s takes packets of several buffers and makes tail calls, so all members must take such packets, and %s does not",
			nameOf(latest, *tail), nameOf(latest, *unaware)),
		Fix: `put all programs into section "xdp.frags", or none`}
}

func usesProgArray(m *Member) bool {
	for _, ins := range m.Object.Programs[m.Program].Instructions {
		if !ins.IsLoadFromMap() {
			continue
		}
		if spec := m.Object.Maps[ins.Reference()]; spec != nil && spec.Type == ebpf.ProgramArray {
			return true
		}
	}
	return false
}

// mapsUsed counts the members' maps and the counters.
func (l *linker) mapsUsed(kconfigs int) int { return 1 + len(l.refs) + kconfigs }

// usage counts what the members take and rejects what is too much.
func (l *linker) usage(members []Member, insns asm.Instructions, kconfigs int) (Usage, error) {
	u := Usage{
		Members:      len(members),
		Maps:         l.mapsUsed(kconfigs),
		Subprograms:  1 + len(l.starts),
		Instructions: int(insns.Size() / asm.InstructionSize),
	}
	graph := callGraph(l.body, l.starts)
	for i, entry := range l.calls {
		u.Frames = max(u.Frames, 1+graph.depth(entry))
		if u.Frames > MaxFrames {
			return u, &Rejection{Member: members[i].Key, Limit: LimitFrames,
				Reason: fmt.Sprintf("with the dispatcher its calls nest %d deep, and the kernel takes %d", u.Frames, MaxFrames),
				Fix:    inline}
		}
	}
	if err := u.check(newcomer(members).Key); err != nil {
		return u, err
	}
	return u, l.checkLoad(members)
}

// MaxLoadCost is what members of namespaces may add to the load of a chain: members' costs do not add up, but multiply.
const MaxLoadCost = 3 * bytecode.MaxLoadCost

// checkLoad rejects the newcomer where those of namespaces that join have the kernel take that much longer to load the
// chain. What runs already counts for none of them, nor what joins of the cluster's: admission gives each namespace
// its share, and this bounds what it could not measure.
func (l *linker) checkLoad(members []Member) error {
	var runs, all bytecode.Work
	counted := map[string]bool{}
	for i, m := range members {
		entry := l.calls[i]
		switch {
		case counted[entry], m.Joins && m.Tenant == "":
			continue
		case !m.Joins:
			runs = runs.Plus(l.work[entry])
		}
		all, counted[entry] = all.Plus(l.work[entry]), true
	}
	added := all.Cost() - runs.Cost()
	if added <= MaxLoadCost {
		return nil
	}
	return &Rejection{Member: newcomer(members).Key, Limit: LimitLoad,
		Reason: fmt.Sprintf("with it the chain may take the kernel up to %s longer to load, at most %s are allowed to namespaces",
			bytecode.LoadTime(added), bytecode.LoadTime(MaxLoadCost)),
		Fix: "make the program shorter, with fewer calls and divisions by registers, or attach to another interface"}
}

// inline is the fix for too many functions and too deep calls.
const inline = "let the compiler inline functions (static __always_inline)"

// check rejects the newcomer where the members together take too much.
func (u Usage) check(latest string) error {
	for _, c := range []struct {
		limit     Limit
		has, most int
		what      string
		fix       string
	}{
		{LimitMaps, u.Maps, MaxMaps, "maps, data sections and the chain's counters included", "use fewer maps or data sections, or attach to another interface"},
		{LimitSubprograms, u.Subprograms, MaxSubprograms, "functions, the dispatcher included", inline + ", or attach to another interface"},
		{LimitInstructions, u.Instructions, MaxInstructions, "instructions", "make the program shorter, or attach to another interface"},
	} {
		if c.has > c.most {
			return &Rejection{Member: latest, Limit: c.limit,
				Reason: fmt.Sprintf("with it the chain has %d %s, and the kernel takes %d", c.has, c.what, c.most),
				Fix:    c.fix}
		}
	}
	return nil
}
