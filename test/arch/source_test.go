package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files parses the Go files of every package, tests left out, by package.
func files(t *testing.T, fset *token.FileSet) map[string][]*ast.File {
	t.Helper()
	roots, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	byPackage := map[string][]*ast.File{}
	for _, p := range roots {
		name, ours := ownPackage(p.PkgPath)
		if !ours {
			continue
		}
		for _, path := range p.GoFiles {
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			byPackage[name] = append(byPackage[name], file)
		}
	}
	return byPackage
}

// nothingNames are package names that say nothing of what is in them.
func nothingNames() []string {
	return []string{"util", "utils", "common", "helper", "helpers", "manager", "base", "types", "misc", "shared"}
}

func TestPackagesSayWhatTheyOwn(t *testing.T) {
	for name, list := range files(t, token.NewFileSet()) {
		if fault := packageFault(list); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
}

// packageFault says what is wrong with a package's name or comment, or nothing.
func packageFault(list []*ast.File) string {
	name := list[0].Name.Name
	if slices.Contains(nothingNames(), name) {
		return fmt.Sprintf("package %s says nothing of what is in it", name)
	}
	begin := "Package " + name + " "
	if name == "main" {
		begin = "Command "
	}
	var comments []string
	for _, f := range list {
		if f.Doc != nil {
			comments = append(comments, f.Doc.Text())
		}
	}
	switch {
	case len(comments) == 0:
		return "has no package comment"
	case len(comments) > 1:
		return fmt.Sprintf("has %d package comments", len(comments))
	case !strings.HasPrefix(comments[0], begin):
		return fmt.Sprintf("its comment does not begin with %q", begin)
	case strings.Count(strings.TrimSpace(comments[0]), ".") < 2:
		return "its comment is one sentence: say what it owns and what it must not do"
	}
	return ""
}

func TestPackageFaultsAreSeen(t *testing.T) {
	for source, want := range map[string]string{
		"// Package a owns a. It does no b.\npackage a": "",
		"package a":                                           "no package comment",
		"// A is a thing. It is.\npackage a":                  "does not begin",
		"// Package a owns a.\npackage a":                     "one sentence",
		"// Package util owns all. It is bad.\npackage util":  "says nothing",
		"// Command a does b. It owns c.\npackage main":       "",
		"// Package main does b. It owns c.\npackage main":    "does not begin",
		"// Package a owns a. It does no b.\n\npackage a\n\n": "no package comment",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		got := packageFault([]*ast.File{file})
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", source, got, want)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	fset := token.NewFileSet()
	for name, list := range files(t, fset) {
		if list[0].Name.Name == "main" {
			continue
		}
		for _, f := range list {
			for _, id := range undocumented(f) {
				t.Errorf("%s: %s.%s has no comment", relative(t, fset.Position(id.Pos())), name, id.Name)
			}
		}
	}
}

// relative shortens a position to the module's folder.
func relative(t *testing.T, p token.Position) string {
	t.Helper()
	if short, err := filepath.Rel(root(t), p.Filename); err == nil {
		p.Filename = short
	}
	return p.String()
}

// undocumented returns the exported names of a file's top level, methods
// included, that nothing is said about. One comment may speak for a group of
// constants or variables.
func undocumented(f *ast.File) []*ast.Ident {
	var bare []*ast.Ident
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && ast.IsExported(receiver(d)) {
				bare = append(bare, d.Name)
			}
		case *ast.GenDecl:
			bare = append(bare, undocumentedSpecs(d)...)
		}
	}
	return bare
}

// receiver is the name of a method's type, and of a function that has none the
// function's own.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.ParenExpr:
			typ = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// undocumentedSpecs looks at one declaration of types, constants or variables.
func undocumentedSpecs(d *ast.GenDecl) []*ast.Ident {
	var bare []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				bare = append(bare, s.Name)
			}
		case *ast.ValueSpec:
			for _, id := range s.Names {
				if id.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					bare = append(bare, id)
				}
			}
		}
	}
	return bare
}

func TestUndocumentedNamesAreSeen(t *testing.T) {
	source := `package a
type Bare struct{}
// Said is said.
type Said struct{}
func (Said) Bare2() {}
func (*Said) hidden() {}
type small struct{}
func (small) Free() {}
type Generic[T any] struct{}
func (Generic[T]) Bare4() {}
const Bare5 = 1
// Group.
const (
	One = 1
	Two = 2
)
var Trailing = 1 // is said
func Bare6() {}
`
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range undocumented(file) {
		got = append(got, id.Name)
	}
	want := []string{"Bare", "Bare2", "Generic", "Bare4", "Bare5", "Bare6"}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestNothingRunsByItself(t *testing.T) {
	fset := token.NewFileSet()
	for _, list := range files(t, fset) {
		for _, f := range list {
			for _, pos := range inits(f) {
				t.Errorf("%s: func init runs by itself: let the caller say when", relative(t, fset.Position(pos)))
			}
		}
	}
}

// inits returns the places of init functions.
func inits(f *ast.File) []token.Pos {
	var found []token.Pos
	for _, decl := range f.Decls {
		if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
			found = append(found, d.Pos())
		}
	}
	return found
}

func TestInitIsSeen(t *testing.T) {
	source := "package a\nfunc init() {}\ntype b struct{}\nfunc (b) init() {}\n"
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := inits(file); len(got) != 1 {
		t.Errorf("found %d, want 1", len(got))
	}
}

// TestOnlyTestsChooseWhatChildrenExecute: in production a confined child is the binary that starts it.
func TestOnlyTestsChooseWhatChildrenExecute(t *testing.T) {
	found := 0
	for _, dir := range folders(t) {
		files, _ := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		for _, file := range files {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(body), "confined.Execute"+"(") {
				continue
			}
			if found++; !within(dir, "test/harness") {
				t.Errorf("%s chooses what confined children execute", file)
			}
		}
	}
	if found == 0 {
		t.Error("nothing calls confined.Execute: the pattern is stale")
	}
}
