package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// Screen is what a table has to fit; zero is without a bound.
type Screen struct{ Width, Height int }

// The columns of numbers, which are on the right of theirs, and of words, which a narrow screen cuts.
const (
	numbers  = 4
	leastCut = 5
	gap      = 2
)

// Print returns a summary and the table, line by line. paint makes the header stand out.
func Print(nodes []view.NodeView, rows []Row, s Screen, paint func(string) string) []string {
	lines := summary(nodes, rows)
	if s.Height > 0 && s.Width > 0 {
		// A line that wraps would move others off the screen.
		for i := range lines {
			lines[i] = text.CutRunes(lines[i], s.Width)
		}
	}
	severalNodes := len(nodes) > 1
	header := []string{"CPU %", "RUNS/S", "NS/RUN", "MEMORY", "HOOK/TYPE", "PROGRAM", "OWNER"}
	if severalNodes {
		header = append(header, "NODE")
	}
	shown := rows
	// The lines of the summary, the header, and one that counts what is left out.
	if room := s.Height - len(lines) - 2; s.Height > 0 && len(shown) > room {
		shown = shown[:max(room, 1)]
	}
	table := [][]string{header}
	for _, r := range shown {
		table = append(table, cells(r, severalNodes))
	}
	widths := fit(table, s.Width)
	for i, row := range table {
		line := layOut(row, widths)
		if s.Width > 0 {
			line = text.CutRunes(line, s.Width)
		}
		if i == 0 {
			line = paint(line)
		}
		lines = append(lines, line)
	}
	if n := len(rows) - len(shown); n > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", n))
	}
	return lines
}

// cells are a row as text. What was not measured has no number.
func cells(r Row, node bool) []string {
	all := []string{"-", "-", "-"}
	if r.Measured != nil {
		all = []string{percent(r.CPUShare), short(r.RunsPerSecond), "-"}
		if r.RunsPerSecond > 0 {
			all[2] = strconv.FormatFloat(r.NanosecondsPerRun, 'f', 0, 64)
		}
	}
	all = append(all, size(r.MemoryBytes), r.place(), cmp.Or(r.Program, "-"), r.owner())
	if node {
		all = append(all, r.Node)
	}
	for i := range all {
		all[i] = text.Line(all[i])
	}
	return all
}

// percent is a share with as many digits as say something.
func percent(share float64) string {
	switch p := share * 100; {
	case p == 0:
		return "0"
	case p < 0.01:
		return "<0.01"
	case p < 10:
		return strconv.FormatFloat(p, 'f', 2, 64)
	default:
		return strconv.FormatFloat(p, 'f', 1, 64)
	}
}

// short is a number of at most five characters.
func short(n float64) string {
	for _, unit := range []string{"", "k", "M"} {
		if n < 10_000 {
			digits := 0
			if n > 0 && n < 10 || unit != "" && n < 100 {
				digits = 1
			}
			return strings.TrimSuffix(strconv.FormatFloat(n, 'f', digits, 64), ".0") + unit
		}
		n /= 1000
	}
	return strconv.FormatFloat(n, 'f', 0, 64) + "G"
}

// size is a number of bytes as kubectl top prints memory.
func size(bytes uint64) string {
	switch {
	case bytes < 10<<10:
		return strconv.FormatUint(bytes, 10) + "B"
	case bytes < 10<<20:
		return strconv.FormatUint(bytes>>10, 10) + "Ki"
	case bytes < 10<<30:
		return strconv.FormatUint(bytes>>20, 10) + "Mi"
	}
	return strconv.FormatUint(bytes>>30, 10) + "Gi"
}

// fit returns the widths of columns. Of a table that is too wide, the widest column of words loses first, until each is as short as words may be.
func fit(table [][]string, width int) []int {
	widths := make([]int, len(table[0]))
	total := gap * (len(widths) - 1)
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, w := range widths {
		total += w
	}
	for ; width > 0 && total > width; total-- {
		widest := numbers
		for i := numbers; i < len(widths); i++ {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= leastCut {
			break
		}
		widths[widest]--
	}
	return widths
}

// layOut is a line of the table.
func layOut(row []string, widths []int) string {
	var line strings.Builder
	for i, cell := range row {
		cell = text.CutRunes(cell, widths[i])
		pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
		switch {
		case i < numbers:
			line.WriteString(pad + cell)
		case i < len(row)-1:
			line.WriteString(cell + pad)
		default:
			line.WriteString(cell)
		}
		if i < len(row)-1 {
			line.WriteString(strings.Repeat(" ", gap))
		}
	}
	return line.String()
}

// summary says in lines what is shown, when it was measured, and what of it is not known.
func summary(nodes []view.NodeView, rows []Row) (lines []string) {
	share, measured := 0., Measured(nodes)
	for _, r := range rows {
		share += r.CPUShare
	}
	first := fmt.Sprintf("programs: %d", len(rows))
	isPartial := slices.ContainsFunc(nodes, func(n view.NodeView) bool { return len(n.LeftOut) > 0 })
	switch {
	case !measured.IsZero():
		first += fmt.Sprintf(", CPU: %s %% of one, measured at %s", percent(share), measured.Local().Format(time.TimeOnly))
	case len(rows) > 0 && isPartial:
		first += ", none measured"
	case len(rows) > 0:
		first += ", none measured: the first window is still open, or the log of skep run or the agent says why (see --program-stats)"
	}
	lines = []string{first}
	for _, n := range nodes {
		for _, what := range n.LeftOut {
			what = "not all is known: " + text.Line(what)
			if len(nodes) > 1 {
				what = text.Line(n.Name) + ": " + what
			}
			lines = append(lines, what)
		}
	}
	return append(lines, "")
}

// Measured is when the newest window ended; zero if there is none.
func Measured(nodes []view.NodeView) time.Time {
	var all []time.Time
	for _, n := range nodes {
		for _, p := range n.Programs {
			if p.Cost != nil {
				all = append(all, p.Cost.Measured.Time)
			}
		}
	}
	if len(all) == 0 {
		return time.Time{}
	}
	return slices.MaxFunc(all, time.Time.Compare)
}
