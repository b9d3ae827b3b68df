package nodes

import (
	"cmp"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// PrintPrograms is a table with a line for each program of a kernel; wide has tag, time of loading, and every pin, and shortens
// nothing. in are the interfaces, by which a chain has its members.
func PrintPrograms(w io.Writer, wide bool, all []view.Program, in []view.Interface) error {
	header := []string{"ID", "TYPE", "NAME", "ATTACHED", "OWNER", "HELD BY"}
	if wide {
		header = append(header, "TAG", "LOADED", "PINS")
	}
	chains := map[uint32][]string{}
	for _, i := range in {
		for _, m := range i.Members {
			chains[i.ProgramID] = append(chains[i.ProgramID], application(m))
		}
	}
	var rows [][]string
	for _, p := range all {
		var holders []string
		for _, h := range p.Holders {
			holders = append(holders, h.Name)
		}
		if len(p.Pins) > 0 {
			holders = append(holders, "pin "+filepath.Base(p.Pins[0]))
		}
		attached, held := display.List(p.Attached), display.List(holders)
		if display.Terminal(w) && !wide {
			attached, held = display.Fit(p.Attached, 22), display.Fit(holders, 16)
		}
		row := []string{strconv.Itoa(int(p.ID)), p.Type, p.Name, cmp.Or(attached, "-"), owner(p, chains[p.ID]), cmp.Or(held, "-")}
		if wide {
			row = append(row, p.Tag, p.LoadedAt.UTC().Format(time.RFC3339), cmp.Or(display.List(p.Pins), "-"))
		}
		rows = append(rows, row)
	}
	return display.Table(w, header, rows)
}

// owner says whose a program is; members are those of a chain.
func owner(p view.Program, members []string) string {
	switch {
	case p.Application != nil:
		return "skep " + p.Application.String()
	case p.Chain:
		return strings.TrimSpace("skep " + strings.Join(members, ","))
	}
	return "unmanaged"
}
