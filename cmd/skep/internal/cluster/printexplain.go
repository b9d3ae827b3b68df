package cluster

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/nodes"
	"github.com/skep-dev/skep/text"
)

// PrintExplanation prints all about one application.
func PrintExplanation(w io.Writer, format string, e Explanation) error {
	if format != "text" {
		return display.Data(w, format, e)
	}
	fmt.Fprintf(w, "%s\n", text.Line(e.Kind+" "+e.Identity.String()))
	fmt.Fprintf(w, "  image    %s\n", text.Line(cmp.Or(e.Image, "-")))
	fmt.Fprintf(w, "  digest   %s\n", text.Line(cmp.Or(e.Status.Digest, "-")))
	fmt.Fprintf(w, "  signers  %s\n", text.Line(cmp.Or(display.List(e.Status.Signers), "none")))
	said := display.Once{}
	for _, c := range e.Status.Conditions {
		fmt.Fprintf(w, "  %-11s %-8s %-5s %s\n", text.Line(c.Type), text.Line(string(c.Status)), cmp.Or(display.Since(c), "-"),
			text.Indented(said.Message(c.Type, c.Message)))
	}
	for _, r := range e.Denied {
		display.Reason(w, display.Paint(w, display.Red, "denied"), r, "")
	}
	for _, section := range []func(io.Writer, Explanation) error{printNodes, printAttachments, printHistory, printEvents} {
		if err := section(w, e); err != nil {
			return err
		}
	}
	for _, what := range e.Missing {
		fmt.Fprintf(w, "\n%s\n", text.Line(what))
	}
	return printLogs(w, e.Views)
}

// section prints a table after a blank line, unless it is empty.
func section(w io.Writer, header []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return display.Table(w, header, rows)
}

// printNodes is a table of the states on nodes.
func printNodes(w io.Writer, e Explanation) error {
	var rows [][]string
	for _, n := range e.Nodes {
		rows = append(rows, []string{n.Node, string(n.State), text.Line(cmp.Or(n.Message, n.Skipped))})
	}
	return section(w, []string{"NODE", "STATE", "MESSAGE"}, rows)
}

// printAttachments is a table of the attachments on each node.
func printAttachments(w io.Writer, e Explanation) error {
	var rows [][]string
	for _, n := range e.Views {
		for _, a := range n.Applications {
			for _, at := range a.Attachments {
				rows = append(rows, attachment(n.Name, at))
			}
		}
	}
	return section(w, []string{"NODE", "PROGRAM", "HOOK", "TARGET", "STATE", "POSITION", "RUNS", "VERDICTS"}, rows)
}

// attachment is a row.
func attachment(node string, a view.Attachment) []string {
	position, runs := "-", "-"
	if a.Position > 0 {
		position = fmt.Sprintf("%d of %d", a.Position, a.Of)
	}
	if a.Runs != nil {
		runs = strconv.FormatUint(*a.Runs, 10)
	}
	return []string{node, a.Program, a.Hook, cmp.Or(text.Line(a.Target.Text), "-"), strings.TrimSpace(a.State + " " + text.Line(a.Message)), position, runs,
		nodes.Verdicts(a.Verdicts)}
}

// printEvents is a table of the newest events.
func printEvents(w io.Writer, e Explanation) error {
	var rows [][]string
	for _, one := range e.Events {
		rows = append(rows, []string{one.Time.UTC().Format(time.RFC3339), fmt.Sprintf("x%d", one.Count), one.Type, one.Reason, text.Line(one.Message)})
	}
	return section(w, []string{"LAST SEEN", "COUNT", "TYPE", "REASON", "MESSAGE"}, rows)
}

// printLogs prints what the verifier said: once for all nodes where it said the same.
func printLogs(w io.Writer, views []view.NodeView) error {
	on, order := map[string][]string{}, []string{}
	for _, n := range views {
		for _, a := range n.Applications {
			if a.Error == "" && a.VerifierLog == "" {
				continue
			}
			said := text.Indented(a.Error)
			if a.VerifierLog != "" {
				said += "\n\nverifier log:\n" + text.Printable(a.VerifierLog)
			}
			if len(on[said]) == 0 {
				order = append(order, said)
			}
			on[said] = append(on[said], n.Name)
		}
	}
	for _, said := range order {
		if _, err := fmt.Fprintf(w, "\n%s %s: %s\n", display.Paint(w, display.Red, "error"), text.Line("on "+first(on[said])), strings.TrimSpace(said)); err != nil {
			return err
		}
	}
	return nil
}

// printHistory is a table of the last versions.
func printHistory(w io.Writer, e Explanation) error {
	if len(e.Status.History) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return nodes.PrintHistory(w, false, e.Status.History)
}
