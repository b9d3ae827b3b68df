package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/workers"
)

// root is the module's folder.
const root = "../.."

// TestMain lets the test binary render CUE in a child process.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Main(m)
}

// read returns a file of the module as text.
func read(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// pages lists the Markdown files of the module, relative to it.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"dist", "testdata"}, d.Name())) {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			name, err := filepath.Rel(root, path)
			found = append(found, name)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// link is a Markdown link or picture, verbatim what is none, whatever it looks
// like.
var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	verbatim = regexp.MustCompile("`[^`\n]+`")
)

// deadLinks returns the relative links of a page that lead nowhere. exists
// tells of a path relative to the page's folder.
func deadLinks(page string, exists func(string) bool) []string {
	var dead []string
	for _, found := range link.FindAllStringSubmatch(verbatim.ReplaceAllString(page, ""), -1) {
		target, _, _ := strings.Cut(found[1], "#")
		if target != "" && !strings.Contains(target, ":") && !exists(target) {
			dead = append(dead, found[1])
		}
	}
	return dead
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	if !slices.Contains(all, "README.md") || !slices.Contains(all, "docs/architecture.md") {
		t.Fatalf("found only the pages %v: the walk looked in the wrong place", all)
	}
	for _, name := range all {
		exists := func(target string) bool {
			_, err := os.Stat(filepath.Join(root, filepath.Dir(name), target))
			return err == nil
		}
		for _, d := range deadLinks(read(t, name), exists) {
			t.Errorf("%s: %s leads nowhere", name, d)
		}
	}
}

func TestDeadLinksAreSeen(t *testing.T) {
	page := "[a](there.md) [b](gone.md#part) ![c](there/pic.svg) [d](https://example.com/gone.md) [e](#part) [f](mailto:x@example.com) " +
		"`[g](pattern)` [`h`](there.md)"
	got := deadLinks(page, func(target string) bool { return strings.HasPrefix(target, "there") })
	if diff := cmp.Diff([]string{"gone.md#part"}, got); diff != "" {
		t.Error(diff)
	}
}

// block returns the one fenced block of a language that holds a text.
func block(t *testing.T, page, language, holds string) string {
	t.Helper()
	var found []string
	for _, part := range strings.Split(page, "```"+language+"\n")[1:] {
		body, _, ok := strings.Cut(part, "```")
		if ok && strings.Contains(body, holds) {
			found = append(found, body)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of %s hold %q, want one", len(found), language, holds)
	}
	return found[0]
}

// applications loads what a file of that name and content defines.
func applications(t *testing.T, name, content string) []v1alpha1.Application {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := schemas.Load(t.Context(), schemas.Options{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded.Problems {
		t.Error(p)
	}
	all := make([]v1alpha1.Application, 0, len(loaded.Applications))
	for _, d := range loaded.Applications {
		all = append(all, d.Application)
	}
	return all
}

// tutorial is the page that leads from nothing to a program on one host.
const tutorial = "docs/getting-started.md"

func TestTheTutorialSaysTheSameInCUEAndYAML(t *testing.T) {
	page := read(t, tutorial)
	inCUE := applications(t, "hello.cue", block(t, page, "cue", "package definitions"))
	inYAML := applications(t, "hello.yaml", block(t, page, "yaml", "name: hello\nspec"))
	if len(inCUE) != 1 {
		t.Fatalf("the CUE defines %d applications, want one", len(inCUE))
	}
	if diff := cmp.Diff(inCUE, inYAML); diff != "" {
		t.Errorf("CUE (-) and YAML (+):\n%s", diff)
	}
}

func TestTheReadmeHasTheTutorialsDefinitionAndPolicy(t *testing.T) {
	readme, page := read(t, "README.md"), read(t, tutorial)
	inReadme := applications(t, "hello.yaml", block(t, readme, "yaml", "name: hello\nspec"))
	inTutorial := applications(t, "hello.yaml", block(t, page, "yaml", "name: hello\nspec"))
	if diff := cmp.Diff(inTutorial, inReadme); diff != "" || len(inReadme) != 1 {
		t.Errorf("definitions of the tutorial (-) and README (+):\n%s", diff)
	}
	const policy = "package skep.policy\n"
	if diff := cmp.Diff(block(t, page, "rego", policy), block(t, readme, "rego", policy)); diff != "" {
		t.Errorf("policies of the tutorial (-) and README (+):\n%s", diff)
	}
	denial := block(t, readme, "console", "$ skep status")
	if !strings.Contains(block(t, page, "console", "Run it first of all"), denial) {
		t.Errorf("the tutorial does not show README's denial:\n%s", denial)
	}
}

func TestTheReadmeIsShort(t *testing.T) {
	const most = 200
	readme := read(t, "README.md")
	if n := strings.Count(readme, "\n"); n > most {
		t.Errorf("README.md has %d lines, want at most %d", n, most)
	}
	for _, command := range []string{"\n    make demo ", "\n    make test "} {
		if !strings.Contains(readme, command) {
			t.Errorf("README.md lacks the command%q", command)
		}
	}
}

func TestTheTutorialsSecondApplicationWantsToBeFirst(t *testing.T) {
	all := applications(t, "first.yaml", block(t, read(t, tutorial), "yaml", "name: first\n"))
	if len(all) != 1 || *all[0].Body().Programs[0].Attach[0].Priority != 10 {
		t.Errorf("defined: %v", all)
	}
}

func TestTheTutorialsPolicyPassesItsTests(t *testing.T) {
	page := read(t, tutorial)
	engine := policies.NewEngine(policies.EngineOptions{})
	t.Cleanup(engine.Close)
	report, err := engine.Test(t.Context(), fstest.MapFS{
		"front.rego":      {Data: []byte(block(t, page, "rego", "package skep.policy\n"))},
		"front_test.rego": {Data: []byte(block(t, page, "rego", "package skep.policy_test"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Passed() || len(report.Results) != 2 {
		t.Errorf("report: %+v", report)
	}
}

// named returns what a pattern's group finds in the Go files of a package.
func named(t *testing.T, room, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, room, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(source, -1) {
			names = append(names, string(m[1]))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) < 3 {
		t.Fatalf("found only %v in %s: the pattern looks for the wrong thing", names, room)
	}
	return names
}

func TestWhatTheCodeNamesIsOnItsPage(t *testing.T) {
	for what, c := range map[string]struct{ room, pattern, page, quote string }{
		"agent flags":       {"cmd/skep-agent", `Var[P]?\(&[a-zA-Z.]+, "([a-z-]+)"`, "docs/agent.md", "`--%`"},
		"git flags":         {"cmd/skep", `"(git-[a-z-]+)"`, "docs/operations/install.md", "`--%"},
		"rules of the gate": {"gate", `"((?:shape|inspect|resolve)/[a-z]+)"`, "docs/operations/recover.md", "`%`"},
		"fields sealed":     {"intent", "`json:\"([a-zA-Z]+)(?:,omitempty)?\"`", "docs/architecture.md", "`%`"},
	} {
		page := read(t, c.page)
		for _, name := range named(t, c.room, c.pattern) {
			if !strings.Contains(page, strings.Replace(c.quote, "%", name, 1)) {
				t.Errorf("%s: %s says nothing of %s", what, c.page, name)
			}
		}
	}
}

func TestEveryCommandIsOnItsPage(t *testing.T) {
	page := read(t, "docs/cli.md")
	for _, name := range named(t, "cmd/skep", `Use:\s+"([a-z]+)`) {
		if !strings.Contains(page, name) {
			t.Errorf("docs/cli.md says nothing of the command %s", name)
		}
	}
}
