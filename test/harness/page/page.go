// Package page has tests do what a page of the documentation has its reader do, and compares
// what the page shows.
//
// It owns how steps are found in Markdown and how they are carried out in a shell. It makes no
// cluster: what the commands reach, its callers say.
package page

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/module"
)

// Step is a command of a page with what the page shows of its output, or a file
// of the reader's.
type Step struct {
	Command, Shown string
	File, Content  string
}

// Read returns a page of docs.
func Read(t testing.TB, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(module.Root(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// named finds the name of a file that stands before its content.
var named = regexp.MustCompile("`([a-z/-]+\\.(?:yaml|cue))`[^`]*$")

// Steps reads a page from one heading to another: the commands of its consoles,
// and the files whose names stand before their content.
func Steps(t testing.TB, body, from, to string) []Step {
	t.Helper()
	_, rest, begins := strings.Cut(body, "\n"+from+"\n")
	rest, _, ends := strings.Cut(rest, "\n"+to+"\n")
	if !begins || !ends {
		t.Fatalf("there are no headings %q and %q", from, to)
	}
	var all []Step
	for i, part := range strings.Split("\n"+rest, "\n```")[1:] {
		if i%2 == 1 {
			continue
		}
		language, block, _ := strings.Cut(part, "\n")
		before, _, _ := strings.Cut("\n"+rest, "\n```"+part)
		switch language {
		case "console":
			for _, command := range strings.Split("\n"+block, "\n$ ")[1:] {
				line, shown, _ := strings.Cut(command, "\n")
				all = append(all, Step{Command: line, Shown: shown})
			}
		case "yaml", "cue":
			name := named.FindStringSubmatch(before)
			if name == nil {
				t.Fatalf("no name stands before the file\n%s", block)
			}
			all = append(all, Step{File: name[1], Content: block + "\n"})
		}
	}
	return all
}

// changing is what is another thing each time: digests, ages and kernels.
var changing = regexp.MustCompile(`sha(1|256):[0-9a-f]+|\b[0-9]+(s|m([0-9]+s)?)\b|\bv?[0-9]+\.[0-9]+\.[0-9]+\S*|\(devel\)`)

// Says reports whether an output is what a page shows. What stands for anything
// there is an ellipsis, for many lines where it stands alone.
func Says(shown, got string) bool {
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

// Reader is who does the steps.
type Reader struct {
	// Home is the reader's home, At the folder where the next step begins. Needed.
	Home, At string
	// Env is added to the environment, each as name=value.
	Env []string
}

// patience bounds how long a step is repeated; far more than a reader needs.
const patience = 2 * time.Minute

var errAnother = errors.New("the output is another one")

// Do does a step, and fails the test if the page shows another output. Services are reached and
// signers known a moment after somebody said so, for which a reader would ask a second time: a
// step with kubectl is repeated until then.
func (r *Reader) Do(t testing.TB, s Step) {
	t.Helper()
	if s.File != "" {
		r.write(t, s)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, at string
	var isLate bool
	err := await.Until(ctx, 2*time.Second, func() (err error) {
		// A command may take longer than repetitions may.
		if out, at, isLate, err = r.run(t.Context(), s.Command); err == nil && !Says(s.Shown, out) && strings.Contains(s.Command, "kubectl ") {
			err = errAnother
		}
		if isLate && err != nil && strings.Contains(s.Shown, "denied the request") {
			// What is denied a moment later is there now: the next time it would be unchanged.
			_, _, _, undone := r.run(t.Context(), strings.ReplaceAll(s.Command, "kubectl apply", "kubectl delete --ignore-not-found"))
			err = errors.Join(err, undone)
		}
		return err
	})
	t.Logf("$ %s\n%s", s.Command, out)
	if err == nil && !Says(s.Shown, out) {
		err = errAnother
	}
	if err != nil {
		t.Fatalf("the page shows\n%s\n%v", s.Shown, err)
	}
	r.At = at
}

func (r *Reader) write(t testing.TB, s Step) {
	t.Helper()
	path := filepath.Join(r.At, s.File)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(s.Content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// late is what a busy machine hears where asking for signatures took longer than
// an answer may.
var late = regexp.MustCompile(`(?m)^Warning: .* is not verified yet, and nothing is loaded until it is: .*\n`)

// run runs a command, and returns its output without what a busy machine hears, whether it heard that, and the folder where
// the command ends.
func (r *Reader) run(ctx context.Context, command string) (out, at string, isLate bool, err error) {
	cmd := exec.CommandContext(ctx, "bash", "-c", command+"\npwd >~/.at")
	cmd.Dir, cmd.Env = r.At, append(append(os.Environ(), "HOME="+r.Home), r.Env...)
	said, err := cmd.CombinedOutput()
	if err != nil {
		return string(said), r.At, false, err
	}
	where, err := os.ReadFile(filepath.Join(r.Home, ".at"))
	return late.ReplaceAllString(string(said), ""), strings.TrimSpace(string(where)), late.Match(said), err
}
