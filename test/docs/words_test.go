package docs_test

import (
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// glossary is the page that defines every term, and lists the words that are retired.
const glossary = "docs/glossary.md"

// retiredWords are those of the last column of the glossary's table.
func retiredWords(page string) []string {
	var words []string
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[2], "---") || strings.TrimSpace(cells[2]) == "not" {
			continue
		}
		for word := range strings.SplitSeq(cells[2], ",") {
			if word = strings.TrimSpace(word); word != "" {
				words = append(words, word)
			}
		}
	}
	return words
}

// notOurs are phrases of the field that hold a retired word.
var notOurs = regexp.MustCompile(`(?i)connection refused`)

// retiredIn lists the lines of a text that have a retired word, as name:line: word.
func retiredIn(name, text string, words []string) (found []string) {
	quoted := make([]string, 0, len(words))
	for _, word := range words {
		quoted = append(quoted, regexp.QuoteMeta(word))
	}
	any := regexp.MustCompile(`(?i)\b(` + strings.Join(quoted, "|") + `)s?\b`)
	for i, line := range strings.Split(text, "\n") {
		for _, word := range any.FindAllString(notOurs.ReplaceAllString(line, ""), -1) {
			found = append(found, fmt.Sprintf("%s:%d: %s", name, i+1, word))
		}
	}
	return found
}

// texts are the string literals of a Go file, each on its line; of an API type the
// comments too, which are what kubectl explain prints.
func texts(t *testing.T, name, source string, comments bool) string {
	t.Helper()
	set := token.NewFileSet()
	file := set.AddFile(name, -1, len(source))
	var s scanner.Scanner
	s.Init(file, []byte(source), nil, scanner.ScanComments)
	lines := make([]string, strings.Count(source, "\n")+1)
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return strings.Join(lines, "\n")
		}
		if kind != token.STRING && (kind != token.COMMENT || !comments) {
			continue
		}
		first := set.Position(pos).Line - 1
		for i, line := range strings.Split(literal, "\n") {
			lines[first+i] += " " + line
		}
	}
}

// TestNoRetiredWord reads what users read: messages, API types, policies and pages.
// Decisions (ADR) and the changelog are history, and speak as was spoken then.
func TestNoRetiredWord(t *testing.T) {
	words := retiredWords(read(t, glossary))
	if !slices.Contains(words, "judge") {
		t.Fatalf("the glossary retires %q", words)
	}
	var found []string
	for _, page := range pages(t) {
		if page != glossary && page != "CHANGELOG.md" && !strings.HasPrefix(page, "docs/adr/") {
			found = append(found, retiredIn(page, read(t, page), words)...)
		}
	}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "testdata" || name == "test"):
			return filepath.SkipDir
		case strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_test.rego"):
		case strings.HasSuffix(name, ".go"):
			found = append(found, retiredIn(name, texts(t, name, read(t, name), strings.HasPrefix(name, "api/")), words)...)
		case strings.HasSuffix(name, ".rego"):
			found = append(found, retiredIn(name, read(t, name), words)...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) > 0 {
		t.Errorf("%d retired words; %s says what to write:\n%s", len(found), glossary, strings.Join(found, "\n"))
	}
}

func TestARetiredWordIsSeen(t *testing.T) {
	words := retiredWords("| term | meaning | not |\n|---|---|---|\n| evaluate | find the verdict | judge, in force |\n| agent | loads | |\n")
	const source = "package p\n\n// A judge of a comment.\nvar judge = \"it was In Force\" + `\nby judges`\n"
	if _, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0); err != nil {
		t.Fatal(err)
	}
	for comments, want := range map[bool][]string{
		false: {"p.go:4: In Force", "p.go:5: judges"},
		true:  {"p.go:3: judge", "p.go:4: In Force", "p.go:5: judges"},
	} {
		if got := retiredIn("p.go", texts(t, "p.go", source, comments), words); !slices.Equal(got, want) {
			t.Errorf("comments %t: %q, want %q", comments, got, want)
		}
	}
	if got := retiredIn("p", "connection refused", []string{"refused"}); got != nil {
		t.Errorf("an error of the system is %q", got)
	}
}
