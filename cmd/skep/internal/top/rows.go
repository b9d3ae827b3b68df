// Package top shows what programs cost: those of a host or of nodes, as a table that a terminal redraws. It reads no host or cluster itself, measures
// nothing, and knows no command.
package top

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// The orders of rows.
const (
	ByCPU    = "cpu"
	ByRuns   = "runs"
	ByTime   = "ns"
	ByMemory = "memory"
	ByName   = "name"
)

// Orders are all of them, the default first.
func Orders() []string { return []string{ByCPU, ByRuns, ByTime, ByMemory, ByName} }

// Choice says which programs are shown, and in which order.
type Choice struct {
	// Owners leaves the programs of these owners, each an application, as NAME or NAMESPACE/NAME, or a process that holds programs; empty leaves all.
	Owners []string
	// Namespace leaves the programs of applications of a namespace; empty leaves all.
	Namespace string
	// Unmanaged leaves the programs that are not Skep's.
	Unmanaged bool
	// Sort is one of Orders.
	Sort string
}

// Row is a program.
type Row struct {
	Node string `json:"node"`
	// ID is the kernel's, Program the function's name, Type the kernel's type of it, and Attached its places, as HOOK@TARGET.
	ID       uint32   `json:"id"`
	Program  string   `json:"program"`
	Type     string   `json:"type"`
	Attached []string `json:"attached"`
	// Applications are whose it is, several of an XDP chain; empty of a program that is not Skep's. Holders are the processes that have such a
	// program, and Pins its paths.
	Managed      bool                `json:"managed"`
	Applications []v1alpha1.Identity `json:"applications"`
	Holders      []view.Process      `json:"holders"`
	Pins         []string            `json:"pins"`
	// MemoryBytes is what the program and the maps that it alone uses take, its machine code included.
	MemoryBytes uint64 `json:"memoryBytes"`
	// Measured is absent of a program that no window measured. CPUShare is the share of one CPU: 1 is all of one.
	Measured          *time.Time `json:"measured,omitempty"`
	WindowSeconds     float64    `json:"windowSeconds,omitempty"`
	CPUShare          float64    `json:"cpuShare"`
	RunsPerSecond     float64    `json:"runsPerSecond"`
	NanosecondsPerRun float64    `json:"nanosecondsPerRun"`
}

// Rows are the chosen programs of nodes, in the order of the choice.
func Rows(nodes []view.NodeView, c Choice) []Row {
	all := []Row{}
	for _, n := range nodes {
		members := map[uint32][]v1alpha1.Identity{}
		for _, i := range n.Interfaces {
			for _, m := range i.Members {
				if m.Application != nil && i.ProgramID != 0 && !slices.Contains(members[i.ProgramID], *m.Application) {
					members[i.ProgramID] = append(members[i.ProgramID], *m.Application)
				}
			}
		}
		for _, p := range n.Programs {
			if r := row(n.Name, p, members[p.ID]); c.has(r) {
				all = append(all, r)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Row) int {
		return cmp.Or(c.compare(a, b), strings.Compare(a.Program, b.Program), strings.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// row describes a program, where members are the applications of a chain.
func row(node string, p view.Program, members []v1alpha1.Identity) Row {
	r := Row{Node: node, ID: p.ID, Program: p.Name, Type: p.Type, Attached: list(p.Attached), Managed: p.Application != nil || p.Chain,
		Applications: []v1alpha1.Identity{}, Holders: list(p.Holders), Pins: list(p.Pins), MemoryBytes: p.MemoryBytes + uint64(p.JITBytes)}
	switch {
	case p.Application != nil:
		r.Applications = append(r.Applications, *p.Application)
	case p.Chain:
		r.Applications = append(r.Applications, members...)
	}
	if p.Cost != nil {
		r.Measured, r.WindowSeconds = &p.Cost.Measured.Time, p.Cost.WindowSeconds
		r.CPUShare, r.RunsPerSecond, r.NanosecondsPerRun = p.Cost.CPUShare(), p.Cost.RunsPerSecond(), p.Cost.NanosecondsPerRun()
	}
	return r
}

// list is a list that JSON shows as one, also if it is empty.
func list[T any](of []T) []T { return append([]T{}, of...) }

// has reports whether a row is chosen.
func (c Choice) has(r Row) bool {
	if c.Unmanaged && r.Managed {
		return false
	}
	if c.Namespace != "" && !slices.ContainsFunc(r.Applications, func(id v1alpha1.Identity) bool { return id.Namespace == c.Namespace }) {
		return false
	}
	return len(c.Owners) == 0 || slices.ContainsFunc(c.Owners, r.isOf)
}

// isOf reports whether a program is an application's, or a process holds it.
func (r Row) isOf(owner string) bool {
	return slices.ContainsFunc(r.Applications, func(id v1alpha1.Identity) bool { return owner == id.Name || owner == id.String() }) ||
		slices.ContainsFunc(r.Holders, func(p view.Process) bool { return owner == p.Name })
}

// compare orders two rows: what is most comes first.
func (c Choice) compare(a, b Row) int {
	switch c.Sort {
	case ByRuns:
		return cmp.Compare(b.RunsPerSecond, a.RunsPerSecond)
	case ByTime:
		return cmp.Compare(b.NanosecondsPerRun, a.NanosecondsPerRun)
	case ByMemory:
		return cmp.Compare(b.MemoryBytes, a.MemoryBytes)
	case ByName:
		return 0
	}
	return cmp.Compare(b.CPUShare, a.CPUShare)
}

// owner names whose a program is: applications, Skep, the processes that hold it, or its first pin.
func (r Row) owner() string {
	var names []string
	for _, id := range r.Applications {
		names = append(names, id.String())
	}
	if len(names) == 0 && r.Managed {
		return "skep"
	}
	for _, h := range r.Holders {
		if !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	if len(names) == 0 && len(r.Pins) > 0 {
		names = []string{"pin " + path.Base(r.Pins[0])}
	}
	switch {
	case len(names) == 0:
		return "unmanaged"
	case !r.Managed:
		return "unmanaged: " + several(names)
	}
	return several(names)
}

// place is where a program is attached, or its type.
func (r Row) place() string {
	if len(r.Attached) == 0 {
		return r.Type
	}
	return several(r.Attached)
}

// several names the first, and counts others.
func several(names []string) string {
	if len(names) > 1 {
		return fmt.Sprintf("%s +%d", names[0], len(names)-1)
	}
	return names[0]
}
