package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/harness/module"
)

// step is a command of a page with what the page shows of its output, or a file
// of the reader's.
type step struct {
	command, shown string
	file, content  string
}

// steps reads a page from one heading to another: the commands of its consoles,
// and the files whose names stand before their content.
func steps(t *testing.T, page, from, to string) []step {
	t.Helper()
	_, rest, begins := strings.Cut(page, "\n"+from+"\n")
	rest, _, ends := strings.Cut(rest, "\n"+to+"\n")
	if !begins || !ends {
		t.Fatalf("there are no headings %q and %q", from, to)
	}
	named := regexp.MustCompile("`([a-z-]+\\.yaml)`[^`]*$")
	var all []step
	for i, part := range strings.Split("\n"+rest, "\n```")[1:] {
		if i%2 == 1 {
			continue
		}
		language, body, _ := strings.Cut(part, "\n")
		before, _, _ := strings.Cut("\n"+rest, "\n```"+part)
		switch language {
		case "console":
			for _, command := range strings.Split("\n"+body, "\n$ ")[1:] {
				line, shown, _ := strings.Cut(command, "\n")
				all = append(all, step{command: line, shown: shown})
			}
		case "yaml":
			name := named.FindStringSubmatch(before)
			if name == nil {
				t.Fatalf("no name stands before the file\n%s", body)
			}
			all = append(all, step{file: name[1], content: body + "\n"})
		}
	}
	return all
}

// changing is what is another thing each time: digests, ages and kernels.
var changing = regexp.MustCompile(`sha256:[0-9a-f]+|\b[0-9]+(s|m([0-9]+s)?)\b|\b[0-9]+\.[0-9]+\.[0-9]+\S*`)

// says reports whether an output is what a page shows. What stands for anything
// there is an ellipsis, for many lines where it stands alone.
func says(shown, got string) bool {
	if strings.TrimSpace(shown) == "" {
		return strings.TrimSpace(got) == ""
	}
	var pattern strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(shown), "\n") {
		if line == "…" {
			pattern.WriteString(`(.*\n)*?`)
			continue
		}
		line = changing.ReplaceAllString(strings.Join(strings.Fields(line), " "), "~")
		line = strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
		pattern.WriteString(line + `\n`)
	}
	var flat strings.Builder
	for line := range strings.Lines(strings.TrimSpace(got)) {
		flat.WriteString(changing.ReplaceAllString(strings.Join(strings.Fields(line), " "), "~") + "\n")
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(flat.String())
}

// late is what a busy machine hears where asking for signatures took longer than
// an answer may.
var late = regexp.MustCompile(`(?m)^Warning: .* is not verified yet, and nothing is loaded until it is: .*\n`)

// The pages that are walked, below docs.
const (
	tutorialPage = "getting-started-cluster.md"
	podsPage     = "pods.md"
)

// pageOf returns a page's text.
func pageOf(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(module.Root(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// walk does what a page says between two headings, from the repository's folder, as a reader who
// did what the pages before say.
func (n *node) walk(page, from, to string) {
	n.t.Helper()
	at := module.Root()
	for _, s := range steps(n.t, pageOf(n.t, page), from, to) {
		if s.file != "" {
			if err := os.WriteFile(filepath.Join(at, s.file), []byte(s.content), 0o600); err != nil {
				n.t.Fatal(err)
			}
			continue
		}
		at = n.shell(s, at)
	}
}

// shell does a step in a folder, and returns the folder it leaves the reader in.
// Services are reached and signers known a moment after somebody said so, for
// which a reader would ask a second time.
func (n *node) shell(s step, at string) string {
	n.t.Helper()
	var out string
	began := time.Now()
	err := until(time.Minute, func() error {
		cmd := exec.CommandContext(n.t.Context(), "bash", "-c", s.command+"\npwd >~/.at")
		cmd.Dir = at
		body, err := cmd.CombinedOutput()
		out = late.ReplaceAllString(string(body), "")
		if err == nil && !says(s.shown, out) && strings.Contains(s.command, "kubectl ") {
			err = errors.New("the page shows another answer")
		}
		return err
	})
	n.t.Logf("$ %s # %v\n%s", s.command, time.Since(began).Round(100*time.Millisecond), out)
	if err != nil || !says(s.shown, out) {
		n.t.Fatalf("the page shows\n%s\n%v", s.shown, err)
	}
	where, err := os.ReadFile(n.path("home/.at"))
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(string(where))
}

func TestWhatAPageShowsIsCompared(t *testing.T) {
	for name, c := range map[string]struct {
		shown, got string
		same       bool
	}{
		"the same":                         {"a\nb\n", "a\nb\n", true},
		"another":                          {"a\n", "b\n", false},
		"more than is shown":               {"a\n", "a\nb\n", false},
		"less than is shown":               {"a\nb\n", "a\n", false},
		"nothing is shown of what is said": {"", "a\n", false},
		"other widths of columns":          {"A   B\nx   y", "A B\nx y\n", true},
		"another age and digest":           {"x 7s sha256:ab", "x 1m3s sha256:cd\n", true},
		"another number":                   {"x 7", "x 8", false},
		"anything in a line":               {"a … c", "a b c\n", true},
		"anything in any lines":            {"…\nc\n…", "a\nb\nc\nd\n", true},
		"a line that is missing":           {"…\nc\n…", "a\nb\nd\n", false},
	} {
		if got := says(c.shown, c.got); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestThePagesHaveStepsToWalk needs no cluster: it holds the pages to the headings and blocks
// that walk reads.
func TestThePagesHaveStepsToWalk(t *testing.T) {
	for _, c := range []struct {
		page, from, to  string
		commands, files int
	}{
		{tutorialPage, "## 1. Install", "## 5. Uninstall", 14, 1},
		{tutorialPage, "## 5. Uninstall", "## On kind", 4, 0},
		{podsPage, podsFrom, podsTo, 17, 2},
	} {
		var commands, files int
		for _, s := range steps(t, pageOf(t, c.page), c.from, c.to) {
			if s.file != "" {
				files++
			} else {
				commands++
			}
		}
		if commands != c.commands || files != c.files {
			t.Errorf("%s from %q to %q: %d commands and %d files, want %d and %d", c.page, c.from, c.to, commands, files, c.commands, c.files)
		}
	}
}
