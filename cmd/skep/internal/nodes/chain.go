// Package nodes prints what a node or a host says of itself: the order of programs on interfaces, and the programs of its kernel.
// It asks nothing, and knows no command.
package nodes

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// Interfaces are those of a name, or of a name in a namespace as they are printed, or all if it is empty.
func Interfaces(n view.NodeView, name string) ([]view.Interface, error) {
	chosen := []view.Interface{}
	for _, i := range n.Interfaces {
		if name == "" || i.Target.Interface == name || i.Target.Text == name {
			chosen = append(chosen, i)
		}
	}
	if name != "" && len(chosen) == 0 {
		return nil, exit.Absent("show chain of %s: no program of Skep's runs there in an order, at xdp, tcx, tc or netkit; see skep inventory for others", name)
	}
	return chosen, nil
}

// PrintChains prints interfaces; aside gets what is no answer, and what of the node is not known.
func PrintChains(w, aside io.Writer, format string, of view.NodeView, all []view.Interface) error {
	if display.IsData(format) {
		return display.Data(w, format, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(aside, noChains)
	}
	for _, i := range all {
		if err := printChain(w, i); err != nil {
			return err
		}
	}
	PrintLeftOut(aside, of)
	return nil
}

// PrintLeftOut says what a node does not tell.
func PrintLeftOut(w io.Writer, n view.NodeView) {
	for _, what := range n.LeftOut {
		fmt.Fprintf(w, "not all is known: %s\n", text.Line(what))
	}
}

// noChains answers where no interface has a chain, as kubectl get does.
const noChains = "No chains found: no program of Skep's is attached to an interface there, at xdp, tcx, tc or netkit; see skep status"

// application names whose a member is.
func application(m view.Member) string {
	if m.Application == nil {
		return "unmanaged"
	}
	return text.Line(m.Application.String())
}

// printSequence prints what runs on a hook other than xdp, or what others run there.
func printSequence(w io.Writer, i view.Interface) error {
	fmt.Fprintf(w, "%s  %s\n", text.Line(i.Target.Text), text.Line(i.Hook))
	header := []string{"#", "PRIORITY", "APPLICATION", "PROGRAM", "ID"}
	filters := slices.ContainsFunc(i.Members, func(m view.Member) bool { return m.Preference != 0 })
	if filters {
		header = append(header, "PREF")
	}
	var rows [][]string
	for at, m := range i.Members {
		priority := "-"
		if m.Application != nil {
			priority = strconv.Itoa(int(m.Priority))
		}
		row := []string{strconv.Itoa(at + 1), priority, application(m), cmp.Or(m.Program, "-"), strconv.Itoa(int(m.ProgramID))}
		if filters {
			row = append(row, strconv.Itoa(int(m.Preference)))
		}
		rows = append(rows, row)
	}
	if err := display.Table(w, header, rows); err != nil {
		return err
	}
	return printNotes(w, i)
}

// printNotes says what has to be known of members, and what is not known of all.
func printNotes(w io.Writer, i view.Interface) error {
	for _, m := range i.Members {
		for _, note := range m.Notes {
			fmt.Fprintf(w, "%s %s: %s\n", application(m), text.Line(m.Program), text.Line(note))
		}
	}
	if i.Error == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "not all is known: %s\n", text.Indented(i.Error))
	return err
}

// isSequence reports whether each member has a program of its own: on other hooks than xdp, and where others have that.
func isSequence(i view.Interface) bool {
	return i.Hook != "" && i.Hook != xdp || slices.ContainsFunc(i.Members, func(m view.Member) bool { return m.Application == nil })
}

// xdp is the hook whose programs are joined into one.
const xdp = "xdp"

func printChain(w io.Writer, i view.Interface) error {
	if isSequence(i) {
		return printSequence(w, i)
	}
	fmt.Fprintf(w, "%s  program %d, link %d", text.Line(i.Target.Text), i.ProgramID, i.LinkID)
	if i.Mode != "" {
		fmt.Fprintf(w, ", mode %s", text.Line(string(i.Mode)))
	}
	fmt.Fprintln(w)
	if i.ModeReason != "" {
		fmt.Fprintln(w, text.Indented(i.ModeReason))
	}
	var rows [][]string
	for at, m := range i.Members {
		runs := "-"
		if m.Runs != nil {
			runs = strconv.FormatUint(*m.Runs, 10)
		}
		if m.SwitchedOff {
			runs += " (off)"
		}
		rows = append(rows, []string{
			strconv.Itoa(at + 1), strconv.Itoa(int(m.Priority)), application(m), m.Program, display.List(m.ProceedOn), runs, Verdicts(m.Verdicts),
		})
	}
	if err := display.Table(w, []string{"#", "PRIORITY", "APPLICATION", "PROGRAM", "PROCEED ON", "RUNS", "VERDICTS"}, rows); err != nil {
		return err
	}
	if len(i.Members) == 1 && i.Members[0].Runs == nil {
		fmt.Fprintln(w, "not counted: a program that is alone runs without the chain that counts; skep top shows its runs")
	}
	if err := printNotes(w, i); err != nil || i.RoomLeft == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "room left: %d maps, %d subprograms\n", i.RoomLeft.Maps, i.RoomLeft.Subprograms)
	return err
}

// Verdicts lists how often a member returned which verdict, in the order of enum xdp_action.
func Verdicts(counts map[string]uint64) string {
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
