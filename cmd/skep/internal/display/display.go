// Package display writes what commands print: JSON, YAML, tables, lists and reasons, in colours
// where a person looks. It knows no command.
package display

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
)

// OutputFlag adds -o with the formats a command has.
func OutputFlag(cmd *cobra.Command, to *string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", formats[0], "format: "+strings.Join(formats, ", "))
	// The flag was just made, so that nothing can fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	run := cmd.RunE
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if slices.Contains(formats, *to) {
			return run(c, args)
		}
		return fmt.Errorf("unknown output %q; use %s", *to, strings.Join(formats, ", "))
	}
}

// JSON writes v indented.
func JSON(w io.Writer, v any) error { return write(w, v, text.JSON) }

// write writes v indented as JSON, with what a terminal would obey escaped: the library escapes control characters of ASCII alone.
func write(w io.Writer, v any, escaped func(string) string) error {
	doc, err := encoded(v, "  ")
	if err == nil {
		_, err = io.WriteString(w, escaped(doc))
	}
	return err
}

// JSONLine returns v as JSON on one line.
func JSONLine(v any) (string, error) {
	line, err := encoded(v, "")
	return strings.TrimSuffix(text.JSON(line), "\n"), err
}

func encoded(v any, indent string) (string, error) {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return out.String(), err
}

// IsData reports whether a format is for programs.
func IsData(format string) bool { return format == "json" || format == "yaml" }

// Data writes v as JSON or YAML.
func Data(w io.Writer, format string, v any) error {
	if format == "json" {
		return JSON(w, v)
	}
	doc, err := YAML(v)
	if err != nil || text.Obeyed(string(doc)) {
		// JSON is YAML, too, and quotes each text. The library for YAML escapes some of the commands alone.
		return write(w, v, text.YAML)
	}
	_, err = w.Write(doc)
	return err
}

// YAML returns v as one YAML document.
func YAML(v any) ([]byte, error) {
	doc, err := encoded(v, "")
	var out []byte
	if err == nil {
		out, err = yaml.JSONToYAML([]byte(text.YAML(doc)))
	}
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return out, nil
}

// Table writes rows in columns under a header. A cell that holds a list is shortened by
// Fit on a terminal, and nowhere else; no other cell is cut: another command may need
// the name, the digest or the path in it.
func Table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			// A cell is not to look like other cells or rows.
			cells[i] = text.Line(cell)
		}
		if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// Fit returns as many of a list's members as fit n runes, one at least, each whole, and how
// many more there are.
func Fit(items []string, n int) string {
	for shown := len(items); shown > 1; shown-- {
		s := List(items[:shown])
		if more := len(items) - shown; more > 0 {
			s += fmt.Sprintf(", +%d", more)
		}
		if len([]rune(s)) <= n {
			return s
		}
	}
	if len(items) > 1 {
		return fmt.Sprintf("%s, +%d", items[0], len(items)-1)
	}
	return List(items)
}

// Short returns a digest as people compare it: twelve digits.
func Short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		return digest
	}
	return text.CutRunes(hex, 13)[:min(12, len(hex))]
}

// Paint colours s for a terminal, unless NO_COLOR is set (no-color.org).
func Paint(w io.Writer, code, s string) string {
	if os.Getenv("NO_COLOR") != "" || !Terminal(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// The colours, as terminals number them.
const (
	Green = "32"
	Red   = "31"
	Faint = "2"
)

// Since is how long a condition has been as it is, such as 3m; empty if that is not known.
func Since(c metav1.Condition) string {
	if c.LastTransitionTime.IsZero() {
		return ""
	}
	return duration.HumanDuration(time.Since(c.LastTransitionTime.Time))
}

// ForSince is its reason and Since in parentheses, for the end of a line.
func ForSince(c metav1.Condition) string {
	if since := Since(c); since != "" {
		return fmt.Sprintf(" (%s for %s)", text.Line(cmp.Or(c.Reason, string(c.Status))), since)
	}
	return ""
}

// Count is a number of things.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// List returns a list in one line.
func List(s []string) string { return strings.Join(s, ", ") }

// Reason writes rule, path, message and fix on lines a person reads; place is that of the
// field that the reason names, or empty.
func Reason(w io.Writer, kind string, r policies.Reason, place string) {
	fmt.Fprintf(w, "  %s  %s", kind, text.Indented(r.Rule))
	if r.Path != "" {
		fmt.Fprintf(w, " at %s", text.Indented(r.Path))
	}
	if place != "" {
		fmt.Fprintf(w, " %s", Paint(w, Faint, "("+text.Indented(place)+")"))
	}
	fmt.Fprintf(w, "\n          %s\n", text.Indented(r.Message))
	if r.Fix != "" {
		fmt.Fprintf(w, "          fix: %s\n", text.Indented(r.Fix))
	}
}

// Once are the messages of conditions that were printed, with the condition of each.
type Once map[string]string

// Message is what to print of a condition: its message, or which condition said it already.
func (o Once) Message(kind, message string) string {
	if first := o[message]; first != "" && message != "" {
		return "as " + first
	}
	o[message] = kind
	return message
}
