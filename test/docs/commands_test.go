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

// notes is a command of a chart's NOTES.txt: a line that is indented.
var notes = regexp.MustCompile(`(?m)^ {5}([a-z]+ .+)$`)

// inNotes returns the commands of a chart's NOTES.txt, with … for what Helm fills in.
func inNotes(text string) (found []string) {
	for _, m := range notes.FindAllStringSubmatch(regexp.MustCompile(`{{[^}]*}}`).ReplaceAllString(text, "…"), -1) {
		found = append(found, m[1])
	}
	return found
}

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
		case d.Name() == "NOTES.txt":
			for _, command := range inNotes(read(t, name)) {
				found = append(found, name+": "+command)
			}
			return nil
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

// functionsOf returns the functions of a folder's tests that a test comes to, itself first; none without the test.
func functionsOf(t *testing.T, folder, test string) (found []*ast.FuncDecl) {
	t.Helper()
	all := map[string][]*ast.FuncDecl{}
	files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				all[f.Name.Name] = append(all[f.Name.Name], f)
			}
		}
	}
	seen := map[string]bool{}
	for next := []string{test}; len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		for _, f := range all[next[0]] {
			found = append(found, f)
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					next = append(next, id.Name)
				}
				return true
			})
		}
	}
	return found
}

// isWord reports whether a word of what runs is that of a command: the same, or a flag with its value.
func isWord(word, want string) bool {
	return want == word || strings.HasPrefix(want, "-") && strings.HasPrefix(word, want+"=")
}

// has reports whether words are those of a command in its order, with others between them. What is no constant of the command is
// no word of a test.
func has(words []string, command string) bool {
	want := slices.DeleteFunc(strings.Fields(command), func(w string) bool { return strings.ContainsAny(w, "…%") })
	for _, word := range words {
		if len(want) > 0 && isWord(word, want[0]) {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// wordsOf are the words of the constant strings in an expression.
func wordsOf(e ast.Node) (words []string) {
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			text, _ := strconv.Unquote(s.Value)
			words = append(words, strings.Fields(text)...)
		}
		return true
	})
	return words
}

// saying are the functions whose arguments a test prints, or compares.
var saying = regexp.MustCompile(`^(Errorf?|Fatalf?|Logf?|Skipf?|Sprintf|Contains|Cut|HasPrefix|ReplaceAll)$`)

// runs reports whether functions of a test run a command: one that they name to recommended.Run or Has, which fail where a
// message has another one, or by one call, or list, of its arguments.
func runs(functions []*ast.FuncDecl, command string) (found bool) {
	_, arguments, _ := strings.Cut(command, " ")
	isNamed, byMessage := false, false
	for _, f := range functions {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				isNamed = isNamed || text == command
			case *ast.SelectorExpr:
				x, _ := n.X.(*ast.Ident)
				byMessage = byMessage || x != nil && x.Name == "recommended" && (n.Sel.Name == "Run" || n.Sel.Name == "Has")
			case *ast.CallExpr:
				if called, _ := n.Fun.(*ast.SelectorExpr); called != nil && saying.MatchString(called.Sel.Name) {
					return false
				}
				hasBody := slices.ContainsFunc(n.Args, func(e ast.Expr) bool { _, ok := e.(*ast.FuncLit); return ok })
				found = found || !hasBody && has(wordsOf(n), arguments)
			case *ast.CompositeLit:
				_, isList := n.Type.(*ast.ArrayType)
				hasOther := slices.ContainsFunc(n.Elts, func(e ast.Expr) bool { _, ok := e.(*ast.BasicLit); return !ok })
				found = found || (isList || n.Type == nil) && !hasOther && has(wordsOf(n), arguments)
			}
			return true
		})
	}
	return found || isNamed && byMessage
}

// ran is a line of a script that runs skep.
var ran = regexp.MustCompile(`(?m)^(?:!? ?exec skep|exit \d) (.+)$`)

// inScript reports whether a line of a script runs a command of skep.
func inScript(script, command string) bool {
	_, arguments, _ := strings.Cut(command, " ")
	return slices.ContainsFunc(ran.FindAllStringSubmatch(script, -1), func(m []string) bool { return has(strings.Fields(m[1]), arguments) })
}

// isRun reports whether a test runs a command. FOLDER.TestCommands/NAME is a script of testdata.
func isRun(t *testing.T, test, command string) bool {
	t.Helper()
	folder, name, _ := strings.Cut(test, ".")
	if _, script, ok := strings.Cut(name, "/"); ok {
		return inScript(read(t, filepath.Join(folder, "testdata", script+".txtar")), command)
	}
	functions := functionsOf(t, folder, name)
	if len(functions) == 0 {
		t.Errorf("there is no test %s", test)
	}
	return runs(functions, command)
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
		if _, command, _ := strings.Cut(place, ": "); !isRun(t, test, command) {
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
