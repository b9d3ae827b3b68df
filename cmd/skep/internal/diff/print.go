package diff

import (
	"fmt"
	"io"
	"strings"

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
	_, err := fmt.Fprintf(w, "%s (%s)\n", r.Summary(), r.Against)
	return err
}

// print writes a change for people, with a diff that patch tools read.
func (c Change) print(w io.Writer) {
	colour := display.Green
	if c.Action == Removed || c.Rejected() {
		colour = display.Red
	}
	fmt.Fprintf(w, "%s %s", display.Paint(w, colour, string(c.Action)), c)
	if c.Answer != "" {
		fmt.Fprintf(w, " %s", display.Paint(w, colour, string(c.Answer)))
	}
	fmt.Fprintln(w)
	for _, why := range c.Reasons {
		fmt.Fprintf(w, "  %s\n", text.Printable(why))
	}
	for _, why := range c.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", text.Printable(why))
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

// markdown is the report as a comment of at most so many bytes: a table, then the diffs folded.
// The table takes no more than half of it.
func (r *Report) markdown(most int) string {
	const forRest = 128
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n**skep diff**: %s\n", Marker, r.Summary())
	if len(r.Changes) == 0 {
		return b.String()
	}
	b.WriteString("\n| | object | answer |\n|---|---|---|\n")
	for i, c := range r.Changes {
		row := fmt.Sprintf("| %s | %s %s | %s |\n", c.Action, c.Kind, code(c.Identity.String()), answerCell(c))
		if b.Len()+len(row) > most/2 {
			fmt.Fprintf(&b, "| | and %d more | |\n", len(r.Changes)-i)
			break
		}
		b.WriteString(row)
	}
	for i, c := range r.Changes {
		details := c.details(most - forRest - b.Len())
		if details == "" {
			fmt.Fprintf(&b, "\n%d more diffs do not fit here; run `skep diff`.\n", len(r.Changes)-i)
			break
		}
		b.WriteString(details)
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

// details are the reasons and the diff of a change, folded, in at most so many bytes: the end
// of a long one is left out, and empty means that not even a beginning fits.
func (c Change) details(most int) string {
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
	// Nothing within the fence is Markdown or HTML, and so nobody is mentioned by it.
	fence := fenceFor(lines)
	open := "" // An open fold for what stops a reader.
	if c.Rejected() {
		open = " open"
	}
	head := fmt.Sprintf("\n<details%s><summary>%s %s</summary>\n\n%sdiff\n", open, c.Action, c, fence)
	tail := fence + "\n\n</details>\n"
	const forCut, fewest = 48, 512
	room := most - len(head) - len(tail) - forCut
	if room < fewest {
		return ""
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
func code(name string) string { return "`" + strings.ReplaceAll(name, "`", "'") + "`" }
