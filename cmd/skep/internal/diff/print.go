package diff

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/text"
)

// Formats are those of Print.
func Formats() []string { return []string{"text", "json", "markdown"} }

// Print writes a report in one of the formats.
func (r *Report) Print(w io.Writer, format string) error {
	switch format {
	case "json":
		return display.JSON(w, r)
	case "markdown":
		_, err := io.WriteString(w, r.markdown(maxComment))
		return err
	}
	for _, c := range r.Changes {
		c.print(w)
	}
	_, err := fmt.Fprintf(w, "%s (%s)\n", r.Summary(), text.Line(r.Against))
	return err
}

// print writes a change for people, with a diff that patch tools read.
func (c Change) print(w io.Writer) {
	colour := display.Green
	if c.Action == Removed || c.Rejected() {
		colour = display.Red
	}
	fmt.Fprintf(w, "%s %s", display.Paint(w, colour, text.Line(string(c.Action))), c)
	if c.Answer != "" {
		fmt.Fprintf(w, " %s", display.Paint(w, colour, text.Line(string(c.Answer))))
	}
	fmt.Fprintln(w)
	for _, why := range c.Reasons {
		fmt.Fprintf(w, "  %s\n", text.Indented(why))
	}
	for _, why := range c.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", text.Indented(why))
	}
	for line := range strings.Lines(c.Diff) {
		fmt.Fprintln(w, paintLine(w, text.Printable(strings.TrimSuffix(line, "\n"))))
	}
}

// paintLine colours a line of a diff.
func paintLine(w io.Writer, line string) string {
	switch {
	case strings.HasPrefix(line, "+"):
		return display.Paint(w, display.Green, line)
	case strings.HasPrefix(line, "-"):
		return display.Paint(w, display.Red, line)
	}
	return line
}

// maxComment is how long a comment may be on GitHub, in characters; counting bytes, the text is
// never longer. GitLab takes a million.
const maxComment = 65_536

// Marker is the first line of the Markdown: by it a pipeline finds its own comment, and replaces
// it instead of adding one.
const Marker = "<!-- skep diff -->"

// Bounds within a comment, in bytes.
const (
	// forLeft is what a line takes that says what is left out, and maxSample the names in it.
	forLeft, maxSample = 600, 400
	// fewest is the least of a fold, with its end left out.
	fewest = 1024
	// maxLine is what is shown of a line.
	maxLine = 1024
	// maxTicks is how many backticks in a row are shown.
	maxTicks = 15
)

// group are changes that share what room a comment has: whoever adds many, or long ones, of one
// group takes nothing from the others.
type group struct {
	name    string
	changes []Change
}

// groups are the changes in the order in which a reader needs them, without empty groups.
func (r *Report) groups() []group {
	all := []group{{name: "rejected"}, {name: "removed"}, {name: "signers and policies"}, {name: "applications"}, {name: "other kinds"}}
	for _, c := range r.Changes {
		at := 4
		switch {
		case c.Rejected():
			at = 0
		case c.Action == Removed:
			at = 1
		case c.Kind == v1alpha1.KindBpfSigner || c.Kind == v1alpha1.KindBpfPolicy || c.Kind == v1alpha1.KindClusterBpfPolicy:
			at = 2
		case c.Kind == v1alpha1.KindBpfApplication || c.Kind == v1alpha1.KindClusterBpfApplication:
			at = 3
		}
		all[at].changes = append(all[at].changes, c)
	}
	return slices.DeleteFunc(all, func(g group) bool { return len(g.changes) == 0 })
}

// leftOut names the first of the changes that do not fit.
func (g group) leftOut(shown int) string {
	left := g.changes[shown:]
	var names []string
	for _, c := range left[:min(len(left), 5)] {
		names = append(names, c.String())
	}
	return fmt.Sprintf("%d more (%s), first %s", len(left), g.name, code(text.Cut(strings.Join(names, ", "), maxSample)))
}

// shares divides room among needs: nobody gets more than it needs, nor less for another's
// greater need.
func shares(room int, needs []int) []int {
	order := make([]int, len(needs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return needs[a] - needs[b] })
	out := make([]int, len(needs))
	for i, at := range order {
		out[at] = max(0, min(needs[at], room/(len(order)-i)))
		room -= out[at]
	}
	return out
}

// divided writes the parts of groups, each whole if there is room, and else as fit has it of
// the parts in so many bytes.
func divided(b *strings.Builder, room int, parts [][]string, fit func(i, most int) string) {
	needs := make([]int, len(parts))
	for i, all := range parts {
		for _, part := range all {
			needs[i] += len(part)
		}
	}
	for i, most := range shares(room, needs) {
		if most == needs[i] {
			b.WriteString(strings.Join(parts[i], ""))
			continue
		}
		b.WriteString(fit(i, most-forLeft))
	}
}

// markdown is the report as a comment of at most so many bytes: a table, then the diffs folded.
// The table takes no more than half of it.
func (r *Report) markdown(most int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n**skep diff**: %s\n", Marker, r.Summary())
	if len(r.Changes) == 0 {
		return b.String()
	}
	b.WriteString("\n| | object | answer |\n|---|---|---|\n")
	groups := r.groups()
	rows, folds := make([][]string, len(groups)), make([][]string, len(groups))
	for i, g := range groups {
		for _, c := range g.changes {
			rows[i] = append(rows[i], fmt.Sprintf("| %s | %s %s | %s |\n", text.Line(string(c.Action)), text.Line(c.Kind), code(c.Identity.String()), answerCell(c)))
			folds[i] = append(folds[i], c.details(most))
		}
	}
	divided(&b, most/2-b.Len(), rows, func(i, room int) string {
		shown, out := 0, ""
		for ; len(out)+len(rows[i][shown]) <= room; shown++ {
			out += rows[i][shown]
		}
		return out + fmt.Sprintf("| | and %s | |\n", groups[i].leftOut(shown))
	})
	divided(&b, most-b.Len(), folds, func(i, room int) string { return groups[i].folded(room, folds[i]) })
	return b.String()
}

// folded are as many folds of a group as get at least the fewest bytes each, or all they need.
func (g group) folded(room int, folds []string) string {
	var needs []int
	for least := 0; len(needs) < len(folds); {
		need := len(folds[len(needs)])
		if least += min(need, fewest); least > room {
			break
		}
		needs = append(needs, need)
	}
	var b strings.Builder
	for i, most := range shares(room, needs) {
		if most < needs[i] {
			b.WriteString(g.changes[i].details(most))
			continue
		}
		b.WriteString(folds[i])
	}
	if len(needs) < len(folds) {
		fmt.Fprintf(&b, "\n%s: these diffs do not fit here; run `skep diff`.\n", g.leftOut(len(needs)))
	}
	return b.String()
}

// answerCell is the answer, in bold where it should stop a reader.
func answerCell(c Change) string {
	switch {
	case c.Answer == "":
		return "–"
	case c.Rejected():
		return "**" + string(c.Answer) + "**"
	}
	return string(c.Answer)
}

// details are the reasons and the diff of a change, folded, in at most so many bytes, at least
// fewest: the ends of long lines and of a long diff are left out.
func (c Change) details(most int) string {
	lines := c.lines()
	// Nothing within the fence is Markdown or HTML, and so nobody is mentioned by it.
	fence := fenceFor(lines)
	open := "" // An open fold for what stops a reader.
	if c.Rejected() {
		open = " open"
	}
	head := fmt.Sprintf("\n<details%s><summary>%s %s</summary>\n\n%sdiff\n", open, text.Line(string(c.Action)), text.Cut(c.String(), maxSample), fence)
	tail := fence + "\n\n</details>\n"
	const forCut = 48
	room := most - len(head) - len(tail) - forCut
	if all := strings.Join(lines, "\n") + "\n"; len(all) <= room+forCut {
		return head + all + tail
	}
	var b strings.Builder
	b.WriteString(head)
	for i, line := range lines {
		if room -= len(line) + 1; room < 0 {
			fmt.Fprintf(&b, "# %d more lines do not fit here\n", len(lines)-i)
			break
		}
		b.WriteString(line + "\n")
	}
	return b.String() + tail
}

// manyTicks are more backticks in a row than are shown.
var manyTicks = regexp.MustCompile(fmt.Sprintf("(`{%d})`+", maxTicks))

// lines are the reasons, the warnings and the diff, each line bounded.
func (c Change) lines() []string {
	var lines []string
	for _, why := range c.Reasons {
		lines = append(lines, fmt.Sprintf("# %s: %s", c.Answer, text.Line(why)))
	}
	for _, why := range c.Warnings {
		lines = append(lines, "# warning: "+text.Line(why))
	}
	for line := range strings.Lines(c.Diff) {
		lines = append(lines, text.Printable(strings.TrimSuffix(line, "\n")))
	}
	for i, line := range lines {
		lines[i] = text.Cut(manyTicks.ReplaceAllString(line, "$1…"), maxLine)
	}
	return lines
}

// fenceFor is longer than every run of backticks in the lines.
func fenceFor(lines []string) string {
	longest, run := 2, 0
	for _, line := range lines {
		for _, r := range line + "\n" {
			if run++; r != '`' {
				run = 0
			}
			longest = max(longest, run)
		}
	}
	return strings.Repeat("`", longest+1)
}

// code is a name as code: names have no backticks, by the API server's rules.
func code(name string) string { return "`" + strings.ReplaceAll(text.Line(name), "`", "'") + "`" }
