package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// maxLines is how many lines of code a package may have: of its own files that are
// neither tests nor generated, without blank lines and comments. A larger one says in
// its package comment why it is one package, in a paragraph that begins with "Size:".
const maxLines = 1500

// maxMethods is how many methods a type may have, without those that it embeds. One with more owns several things.
const maxMethods = 40

var sizeReason = regexp.MustCompile(`(?m)^Size: \S+(.|\n)*\.`)

// codeLines counts the lines of a file that hold a token of the program.
func codeLines(t *testing.T, file string) (lines int, comment string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(parsed) {
		return 0, ""
	}
	commented := map[int]bool{}
	for _, group := range parsed.Comments {
		for line := set.Position(group.Pos()).Line; line <= set.Position(group.End()).Line; line++ {
			commented[line] = true
		}
	}
	for i, line := range strings.Split(string(source), "\n") {
		text := strings.TrimSpace(line)
		if text == "" || commented[i+1] && (strings.HasPrefix(text, "//") || strings.HasPrefix(text, "/*") || strings.HasPrefix(text, "*")) {
			continue
		}
		lines++
	}
	return lines, parsed.Doc.Text()
}

func TestLargePackagesSayWhy(t *testing.T) {
	loadedPackages, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loadedPackages {
		name, ours := ownPackage(p.PkgPath)
		if !ours || within(name, "test") {
			continue
		}
		lines, comment := 0, ""
		for _, file := range p.GoFiles {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			n, doc := codeLines(t, file)
			lines += n
			comment += doc
		}
		reason := sizeReason.MatchString(comment)
		switch {
		case lines > maxLines && !reason:
			t.Errorf("%s has %d lines of code, over %d: split it, or say why not in its package comment (Size: …)", name, lines, maxLines)
		case lines <= maxLines && reason:
			t.Errorf("%s has %d lines of code, and still says why it is large: take the reason out", name, lines)
		}
	}
}

// methodsOf counts the methods of each type that files declare, but for generated ones.
func methodsOf(list []*ast.File) map[string]int {
	methods := map[string]int{}
	for _, file := range list {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && !ast.IsGenerated(file) {
				methods[receiver(f)]++
			}
		}
	}
	return methods
}

func TestTypesHaveFewMethods(t *testing.T) {
	for name, list := range files(t, token.NewFileSet()) {
		for of, n := range methodsOf(list) {
			if n > maxMethods {
				t.Errorf("%s: type %s has %d methods, over %d: make a part that has its own state a type of its own", name, of, n, maxMethods)
			}
		}
	}
}

func TestOnlyCodeCountsAsLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	if err := os.WriteFile(file, []byte("// Package a is small.\n//\n// Size: it is whole.\npackage a\n\n// b is one.\nvar b = 1 // one\n\nconst c = `\ntext`\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	lines, comment := codeLines(t, file)
	if lines != 4 || !sizeReason.MatchString(comment) {
		t.Errorf("%d lines, comment %q", lines, comment)
	}
}

func TestMethodsCountByTheirType(t *testing.T) {
	source := `package a
type T struct{ G[int, int] }
type G[K, V any] struct{}
func (T) A()          {}
func (t *T) B()       {}
func (g *G[K, V]) C() {}
func (G[_, V]) D()    {}
func (*(S[V])) E()    {}
func F(t *T)          {}
`
	parsed, err := parser.ParseFile(token.NewFileSet(), "a.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"T": 2, "G": 2, "S": 1}, methodsOf([]*ast.File{parsed})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
