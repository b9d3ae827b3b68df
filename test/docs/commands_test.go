package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// inQuotes is a command as messages have it: in backquotes, with an argument.
var inQuotes = regexp.MustCompile("`([a-z][a-z0-9_.-]* [^`]*)`")

// bare is a command outside of backquotes: a program whose name is no word of English, or arguments that a word has not.
var bare = regexp.MustCompile(`(?:^|[\s(|])((?:` + strings.Join([]string{
	`(?:apt-get|bpftool|chmod|chown|crictl|ctr|curl|docker|ethtool|findmnt|fuser|helm|journalctl|kubectl|llvm-\w+|losetup|mkdir|modprobe|nft|nsenter` +
		`|openssl|sysctl|systemctl|umount) [a-z-][\w./=%-]*`,
	`(?:clang|gcc|git|ip|ls|make|mount|rm|strip|tar|tc) --?\w[\w=-]*`,
	`git (?:add|clone|commit|config|fetch|init|push|remote add)`,
	`(?:cosign|cue|flux|kustomize) (?:[a-z]+-key-pair|attest|build|eval|export|get|login|mod [a-z]+|push|reconcile|sign|verify|vet)`,
	`(?:ip|tc) (?:addr|class|filter|link|netns|qdisc|route)(?: [a-z]+)?`,
	`skep run --[a-z-]+`,
	`skep (?:(?:image|key|policy|rollout|schema) )?(?:build|chain|confirm|convert|diff|explain|generate|inspect|inventory|publish|push|reconcile|render|resume` +
		`|sign|status|tags|test|undo|unload|vendor|vet|watch)`,
}, "|") + `)(?: --?\w[\w=-]*)*)`)

// commandsOf returns the commands that a text recommends.
func commandsOf(text string) (found []string) {
	for _, m := range slices.Concat(inQuotes.FindAllStringSubmatch(text, -1), bare.FindAllStringSubmatch(inQuotes.ReplaceAllString(text, "``"), -1)) {
		found = append(found, m[1])
	}
	return found
}

// folded is the value of a string expression, with … for what is no constant of it. It is empty without one.
func folded(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.ParenExpr:
		return folded(e.X)
	case *ast.BinaryExpr:
		x, y := folded(e.X), folded(e.Y)
		if e.Op != token.ADD || x+y == "" {
			return ""
		}
		if x == "" {
			x = "…"
		}
		if y == "" {
			y = "…"
		}
		return x + y
	}
	return ""
}

// isDescription reports whether a node is help that says what a command or a flag does, and recommends none.
func isDescription(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		key, _ := n.Key.(*ast.Ident)
		return key != nil && (key.Name == "Short" || key.Name == "Long")
	case *ast.CallExpr:
		called, _ := n.Fun.(*ast.SelectorExpr)
		return called != nil && strings.Contains(called.Sel.Name, "Var")
	}
	return false
}

// recommendedIn returns the commands in the texts of a declaration.
func recommendedIn(d ast.Node) (found []string) {
	ast.Inspect(d, func(n ast.Node) bool {
		e, isExpr := n.(ast.Expr)
		text := ""
		if isExpr {
			text = folded(e)
		}
		found = append(found, commandsOf(text)...)
		return text == "" && !isDescription(n)
	})
	return found
}

// notOfUsers are folders whose programs write files of the project, or are run by its own people.
var notOfUsers = []string{"demo", "release", "test", "api/v1alpha1/genpage", "schemas/genhooks"}

// recommendedByUs returns the commands in the messages of the product, each as "FILE: COMMAND", sorted.
func recommendedByUs(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "testdata" || slices.Contains(notOfUsers, name)):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, command := range recommendedIn(file) {
			found = append(found, name+": "+command)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// mentions returns the source of a test and of the functions of its package that it comes to; empty without the test.
// FOLDER.TestCommands/NAME is a script of testdata.
func mentions(t *testing.T, test string) string {
	t.Helper()
	folder, name, _ := strings.Cut(test, ".")
	if _, script, ok := strings.Cut(name, "/"); ok {
		return read(t, filepath.Join(folder, "testdata", script+".txtar"))
	}
	sources := map[string]string{}
	calls := map[string][]string{}
	files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	for _, path := range files {
		source, set := read(t, strings.TrimPrefix(path, root+"/")), token.NewFileSet()
		file, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			sources[f.Name.Name] += source[set.Position(f.Pos()).Offset:set.Position(f.End()).Offset]
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					calls[f.Name.Name] = append(calls[f.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	var all strings.Builder
	seen := map[string]bool{}
	for next := []string{name}; len(next) > 0; next = next[1:] {
		if !seen[next[0]] {
			seen[next[0]] = true
			all.WriteString(sources[next[0]])
			next = append(next, calls[next[0]]...)
		}
	}
	return all.String()
}

// runs reports whether the source of a test may run a command: by the harness, or by its arguments.
func runs(source, command string) bool {
	words := strings.Join(strings.Fields(strings.NewReplacer(`"`, " ", ",", " ", "}", " ").Replace(source)), " ")
	for _, argument := range strings.Fields(command)[1:] {
		if argument != "…" && !strings.Contains(words, argument) {
			return strings.Contains(source, "recommended.Run(")
		}
	}
	return true
}

// TestEveryRecommendedCommandIsRun holds the commands of messages against testdata/commands.txt, whose lines
// have a test that runs the command in the situation that the message is about, or the reason why no test does.
func TestEveryRecommendedCommandIsRun(t *testing.T) {
	unlisted := recommendedByUs(t)
	all, reasons := len(unlisted), 0
	for line := range strings.Lines(read(t, "test/docs/testdata/commands.txt")) {
		place, test, ok := strings.Cut(strings.TrimSpace(line), " | ")
		if !ok || strings.HasPrefix(place, "#") {
			continue
		}
		at, isThere := slices.BinarySearch(unlisted, place)
		if !isThere {
			t.Errorf("%s: no message recommends it any more", place)
			continue
		}
		unlisted = slices.Delete(unlisted, at, at+1)
		if strings.HasPrefix(test, "- ") {
			reasons++
			continue
		}
		_, command, _ := strings.Cut(place, ": ")
		switch source := mentions(t, test); {
		case source == "":
			t.Errorf("%s: there is no test %s", place, test)
		case !runs(source, command):
			t.Errorf("%s: %s does not run it", place, test)
		}
	}
	for _, place := range unlisted {
		t.Errorf("%s: testdata/commands.txt names no test that runs it", place)
	}
	if reasons > all/5 {
		t.Errorf("%d commands of %d are run by no test", reasons, all)
	}
}

func TestARecommendedCommandIsSeen(t *testing.T) {
	const source = "package p\n\nimport \"fmt\"\n\nconst fix = \"run `frobnicate -x`, or (ethtool -K)\"\n\n" +
		"var c = cobra.Command{Short: \"Show what skep status shows\", Example: \"  skep vet -\\n\"}\n\n" +
		"func f(dir string) error { return fmt.Errorf(\"skep run stopped; `mount \" + dir + \"`, or make it with skep key \" +\n\t\"generate\") }\n"
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"frobnicate -x", "ethtool -K", "skep vet", "mount …", "skep key generate"}
	if got := recommendedIn(file); !slices.Equal(got, want) {
		t.Errorf("it found %q, not %q", got, want)
	}
}
