package docs_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The most characters of a line of a page, and of a cell of a table.
const (
	widestLine = 160
	widestCell = 200
)

// longTarget is the target of a link that no line break can shorten.
var longTarget = regexp.MustCompile(`\]\([^)\s]{80,}\)|<?https?://\S{80,}`)

// tooWide lists the lines of a page that are wider than a reader's window. Code
// blocks and the addresses of long links do not count. A row of a table is one
// line by its syntax, so its cells count and the row does not.
func tooWide(page string) []string {
	var found []string
	fence, blank := "", true
	for i, line := range strings.Split(page, "\n") {
		code := fence != "" || blank && strings.HasPrefix(line, "    ")
		blank = strings.TrimSpace(line) == "" || code && fence == ""
		switch mark := strings.TrimLeft(line, " >"); {
		case fence != "" && strings.TrimSpace(mark) == fence:
			fence, code = "", true
		case fence == "" && strings.HasPrefix(mark, "```"):
			fence, code = mark[:len(mark)-len(strings.TrimLeft(mark, "`"))], true
		}
		if code {
			continue
		}
		line = longTarget.ReplaceAllString(line, "]()")
		if !strings.HasPrefix(line, "|") {
			if n := utf8.RuneCountInString(line); n > widestLine {
				found = append(found, fmt.Sprintf("line %d has %d characters", i+1, n))
			}
			continue
		}
		for c, cell := range cells(line) {
			if n := utf8.RuneCountInString(cell); n > widestCell {
				found = append(found, fmt.Sprintf("line %d, cell %d has %d characters", i+1, c+1, n))
			}
		}
	}
	return found
}

// cells are those of a row: a pipe after a backslash is text.
func cells(row string) []string {
	const pipe = "\x00"
	row = strings.ReplaceAll(row, `\|`, pipe)
	parts := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
	for i, part := range parts {
		parts[i] = strings.TrimSpace(strings.ReplaceAll(part, pipe, "|"))
	}
	return parts
}

// unreleased is the part of the changelog that is still written; the parts of
// releases are history.
func unreleased(t *testing.T, changelog string) string {
	t.Helper()
	from := strings.Index(changelog, "## [Unreleased]")
	if from < 0 {
		from = strings.Index(changelog, "## Unreleased")
	}
	if from < 0 {
		t.Fatal("CHANGELOG.md has no part Unreleased")
	}
	before, rest := changelog[:from+3], changelog[from+3:]
	if next := strings.Index(rest, "\n## "); next >= 0 {
		rest = rest[:next]
	}
	return before + rest
}

func TestPagesFitAWindow(t *testing.T) {
	seen := 0
	for _, name := range pages(t) {
		page := read(t, name)
		switch {
		case name == "CHANGELOG.md":
			page = unreleased(t, page)
		case name == "README.md":
		case !strings.HasPrefix(name, "docs"+string(filepath.Separator)):
			continue
		}
		seen++
		for _, wide := range tooWide(page) {
			t.Errorf("%s: %s: at most %d in a line and %d in a cell of a table", name, wide, widestLine, widestCell)
		}
	}
	if seen < 8 {
		t.Fatalf("looked at %d pages", seen)
	}
}

func TestWideLinesAndCellsAreSeen(t *testing.T) {
	wide := strings.Repeat("word ", 40)
	page := strings.Join([]string{
		wide,
		"fits",
		"```",
		wide,
		"```",
		"",
		"    " + wide,
		"",
		"| a | b |",
		"| " + strings.Repeat("é", 200) + " | " + strings.Repeat("é", 100) + ` \| ` + strings.Repeat("é", 100) + " |",
		"- a [link](https://example.com/" + strings.Repeat("a", 160) + ") of one long address",
		"  " + wide,
	}, "\n")
	want := []string{"line 1 has 200 characters", "line 10, cell 2 has 203 characters", "line 12 has 202 characters"}
	if diff := cmp.Diff(want, tooWide(page)); diff != "" {
		t.Error(diff)
	}
}
