package cluster

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/text"
)

// colours of the states of a part.
var colours = map[string]string{OK: display.Green, Warning: display.Red, Unknown: display.Faint}

// PrintStatus prints how Skep does, then a line for each application, and why those that are not ready are not.
func PrintStatus(w io.Writer, format string, s Status) error {
	if display.IsData(format) {
		return display.Data(w, format, s)
	}
	fmt.Fprintln(w, text.Line(s.Cluster))
	parts := s.Health
	if shown := slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.hidden }); format != "wide" && len(parts)-len(shown) > 1 {
		fmt.Fprintf(w, "%d parts of Skep are not shown: they need rights of an administrator; -o wide names each\n", len(parts)-len(shown))
		parts = shown
	}
	for _, p := range parts {
		state := fmt.Sprintf("%-8s", text.Line(p.State))
		fmt.Fprintf(w, "%-17s  %s %s\n", text.Line(p.Name), display.Paint(w, colours[p.State], state), text.Line(p.Message))
	}
	for _, right := range s.Needs {
		state := display.Paint(w, display.Faint, fmt.Sprintf("%-8s", Unknown))
		fmt.Fprintf(w, "%-17s  %s some are not shown: it needs the right to %s\n", "applications", state, text.Line(right))
	}
	if len(s.Applications) == 0 {
		where := ""
		if s.Namespace != "" {
			where = " in namespace " + s.Namespace
		}
		_, err := fmt.Fprintf(w, "\nno application%s\n", text.Line(where))
		return err
	}
	fmt.Fprintln(w)
	if err := printApplications(w, format == "wide", s.Applications); err != nil {
		return err
	}
	for _, a := range s.Applications {
		printWhy(w, a)
	}
	return nil
}

// PrintNews prints what of a status is news if it changes: no times, and no durations.
func PrintNews(w io.Writer, s Status) error {
	type news struct {
		States       []string
		Applications []Application
	}
	n := news{Applications: s.Applications}
	for _, p := range s.Health {
		n.States = append(n.States, p.Name+" "+p.State)
	}
	return display.JSON(w, n)
}

// printApplications is a table with a line for each application; wide has its image and how long it has been as it is.
func printApplications(w io.Writer, wide bool, all []Application) error {
	header := []string{"APPLICATION", "READY", "DIGEST", "SIGNERS", "NODES", "REASON"}
	if wide {
		header = append(header, "FOR", "IMAGE")
	}
	whole := wide || !display.Terminal(w)
	var rows [][]string
	for _, a := range all {
		ready := a.condition(v1alpha1.ConditionReady)
		digest, signers, nodes, why := a.Status.Digest, display.List(a.Status.Signers), "-", ""
		if !whole {
			digest, signers = display.Short(digest), display.Fit(a.Status.Signers, 14)
		}
		if a.Status.Nodes != nil {
			nodes = a.Status.Nodes.Summary
		}
		if ready.Status != metav1.ConditionTrue {
			why = ready.Reason
		}
		row := []string{a.Identity.String(), string(ready.Status), cmp.Or(digest, "-"), cmp.Or(signers, "-"), nodes, why}
		if wide {
			row[len(row)-1] = cmp.Or(why, "-")
			row = append(row, cmp.Or(display.Since(ready), "-"), a.Image)
		}
		rows = append(rows, row)
	}
	return display.Table(w, header, rows)
}

// printWhy says why an application is not as it is defined: the reasons of a denial, else what Ready says.
func printWhy(w io.Writer, a Application) {
	ready := a.condition(v1alpha1.ConditionReady)
	if ready.Status == metav1.ConditionTrue && len(a.Denied) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s%s\n", text.Line(a.Identity.String()), display.ForSince(ready))
	if len(a.Denied) == 0 {
		fmt.Fprintf(w, "  %s\n", text.Indented(ready.Message))
	}
	for _, r := range a.Denied {
		display.Reason(w, display.Paint(w, display.Red, "denied"), r, "")
	}
	if v := a.condition(v1alpha1.ConditionVerified); len(a.Denied) > 0 && v.Status == metav1.ConditionFalse {
		fmt.Fprintf(w, "  verified  %s\n", text.Indented(v.Message))
	}
}
