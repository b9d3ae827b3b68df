package host

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// PrintChains prints those of an interface, or all if name is empty; aside gets what is no answer.
func PrintChains(w, aside io.Writer, format, name string, all []agent.ChainStatus) error {
	chosen := []agent.ChainStatus{}
	for _, c := range all {
		if name == "" || c.Interface == name || c.Label() == name {
			chosen = append(chosen, c)
		}
	}
	if name != "" && len(chosen) == 0 {
		return exit.Absent("show chain of %s: no program of Skep's runs there in an order, at xdp, tcx, tc or netkit; see skep inventory for others", name)
	}
	if format == "json" {
		return display.JSON(w, chosen)
	}
	if len(chosen) == 0 {
		fmt.Fprintln(aside, noChains)
	}
	for _, c := range chosen {
		if err := printChain(w, c); err != nil {
			return err
		}
	}
	return nil
}

// noChains answers where no interface has a chain, as kubectl get does.
const noChains = "No chains found: no program of Skep's is attached to an interface of this host, at xdp, tcx, tc or netkit; see skep status"

// printSequence prints what runs on a hook other than xdp, or what others run there.
func printSequence(w io.Writer, c agent.ChainStatus) error {
	fmt.Fprintf(w, "%s  %s\n", c.Label(), c.Hook)
	header := []string{"#", "PRIORITY", "APPLICATION", "PROGRAM", "ID"}
	filters := slices.ContainsFunc(c.Members, func(m agent.MemberStatus) bool { return m.Pref != 0 })
	if filters {
		header = append(header, "PREF")
	}
	var rows [][]string
	for i, m := range c.Members {
		row := []string{strconv.Itoa(i + 1), strconv.Itoa(int(m.Priority)), m.Application, m.Program, strconv.Itoa(int(m.ID))}
		if m.Unmanaged {
			row = []string{strconv.Itoa(i + 1), "-", "unmanaged", cmp.Or(m.Program, "-"), row[4]}
		}
		if filters {
			row = append(row, strconv.Itoa(int(m.Pref)))
		}
		rows = append(rows, row)
	}
	if err := display.Table(w, header, rows); err != nil {
		return err
	}
	return printNotes(w, c)
}

// printNotes says what has to be known of members, and what is not known of all.
func printNotes(w io.Writer, c agent.ChainStatus) error {
	for _, m := range c.Members {
		for _, note := range m.Notes {
			fmt.Fprintf(w, "%s %s: %s\n", m.Application, text.Printable(m.Program), text.Printable(note))
		}
	}
	if c.Error == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "not all is known: %s\n", c.Error)
	return err
}

// isSequence reports whether each member has a program of its own: on other hooks than xdp, and where others have that.
func isSequence(c agent.ChainStatus) bool {
	return c.Hook != "" && c.Hook != xdp || slices.ContainsFunc(c.Members, func(m agent.MemberStatus) bool { return m.Unmanaged })
}

// xdp is the hook whose programs are joined into one.
const xdp = "xdp"

func printChain(w io.Writer, c agent.ChainStatus) error {
	if isSequence(c) {
		return printSequence(w, c)
	}
	fmt.Fprintf(w, "%s  program %d, link %d", c.Label(), c.ProgramID, c.LinkID)
	if c.XDPMode != "" {
		fmt.Fprintf(w, ", mode %s", c.XDPMode)
	}
	fmt.Fprintln(w)
	if c.XDPReason != "" {
		fmt.Fprintln(w, c.XDPReason)
	}
	var rows [][]string
	for i, m := range c.Members {
		runs := "-"
		if m.Runs != nil {
			runs = strconv.FormatUint(*m.Runs, 10)
		}
		if m.SwitchedOff {
			runs += " (off)"
		}
		rows = append(rows, []string{
			strconv.Itoa(i + 1), strconv.Itoa(int(m.Priority)), m.Application, m.Program, display.List(m.ProceedOn), runs, describeVerdicts(m.Verdicts),
		})
	}
	if err := display.Table(w, []string{"#", "PRIORITY", "APPLICATION", "PROGRAM", "PROCEED ON", "RUNS", "VERDICTS"}, rows); err != nil {
		return err
	}
	if err := printNotes(w, c); err != nil || c.Error != "" {
		return err
	}
	_, err := fmt.Fprintf(w, "room left: %d maps, %d subprograms\n", c.Room.Maps, c.Room.Subprograms)
	return err
}

// describeVerdicts lists how often a member returned which verdict, in the order of enum xdp_action.
func describeVerdicts(counts map[string]uint64) string {
	var all []string
	for _, v := range hook.XDPVerdicts() {
		if n := counts[v.Name]; n > 0 {
			all = append(all, fmt.Sprintf("%s %d", v.Name, n))
		}
	}
	if n := counts["Other"]; n > 0 {
		all = append(all, fmt.Sprintf("Other %d", n))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}
