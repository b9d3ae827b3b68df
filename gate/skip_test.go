package gate_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// compiled finds the compiled form of packages, which the build of Skep's commands left in the build cache.
func compiled(t *testing.T, set *token.FileSet, names ...string) types.Importer {
	t.Helper()
	files := map[string]string{}
	list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, names...)...)
	// Where the race detector has this binary built with cgo, all would be compiled once more.
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[name] = file
	}
	return importer.ForCompiler(set, "gc", func(name string) (io.ReadCloser, error) { return os.Open(files[name]) })
}

// TestASkippedStepDoesNotCompile type-checks the pipeline with one step taken
// out or its result made up.
func TestASkippedStepDoesNotCompile(t *testing.T) {
	whole, err := os.ReadFile("testdata/skip/skip.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	imports := compiled(t, set, "context", "github.com/skep-dev/skep/gate")
	for name, c := range map[string]struct {
		old, new string
		says     string
	}{
		"the whole pipeline":    {"", "", ""},
		"no shape":              {"j.Resolve(ctx, shaped)", "j.Resolve(ctx, req)", "cannot use req"},
		"no resolve":            {"j.Verify(ctx, resolved)", "j.Verify(ctx, shaped)", "cannot use shaped"},
		"no verify":             {"j.Inspect(ctx, verified)", "j.Inspect(ctx, resolved)", "cannot use resolved"},
		"no inspect":            {"j.Decide(ctx, inspected)", "j.Decide(ctx, verified)", "cannot use verified"},
		"a verdict made up":     {"gate.Verdict{}, err", "gate.Verdict{allowed: true}, err", "unexported field allowed"},
		"an inspection made up": {"j.Inspect(ctx, verified)", "gate.Inspected{Verified: verified, facts: nil}, error(nil)", "unexported field facts"},
	} {
		t.Run(name, func(t *testing.T) {
			source := strings.ReplaceAll(string(whole), c.old, c.new)
			if c.old == "" {
				source = string(whole)
			}
			file, err := parser.ParseFile(set, "skip.go", source, 0)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if _, err := (&types.Config{Importer: imports}).Check("skip", set, []*ast.File{file}, nil); err != nil {
				got = err.Error()
			}
			switch {
			case c.says == "" && got != "":
				t.Errorf("does not compile:\n%s", got)
			case c.says != "" && !strings.Contains(got, c.says):
				t.Errorf("error %q, want one with %q", got, c.says)
			}
		})
	}
}
