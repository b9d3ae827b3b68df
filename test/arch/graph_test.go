package arch_test

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"
)

// module is the path of the module under test.
const module = "github.com/skep-dev/skep"

// pkg is what the rules need to know of a package.
type pkg struct {
	path    string
	imports []string
}

// graph is a set of packages with all they import, by path.
type graph map[string]pkg

// ownPackage is the package's path within the module, and false for foreign ones.
func ownPackage(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	return rest, ok
}

// packages returns the packages of the module itself, sorted.
func (g graph) packages() []string {
	var names []string
	for path := range g {
		if r, ok := ownPackage(path); ok {
			names = append(names, r)
		}
	}
	slices.Sort(names)
	return names
}

// chain returns the shortest way from a package to one whose path matches, or
// nil where there is none.
func (g graph) chain(from string, match func(path string) bool) []string {
	type step struct {
		path string
		way  []string
	}
	seen := map[string]bool{from: true}
	queue := []step{{from, []string{from}}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		if s.path != from && match(s.path) {
			return s.way
		}
		for _, next := range g[s.path].imports {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, step{next, append(slices.Clone(s.way), next)})
			}
		}
	}
	return nil
}

// within reports whether a path is a module path or below it.
func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// root is the module's folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// loaded reads the packages once for all tests.
var loaded = sync.OnceValues(func() ([]*packages.Package, error) {
	return packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
		Dir:  "../..",
	}, module+"/...")
})

// load returns every package of the module and all it imports, tests left out.
func load(t *testing.T) graph {
	t.Helper()
	roots, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	g := graph{}
	packages.Visit(roots, nil, func(p *packages.Package) {
		one := pkg{path: p.PkgPath}
		for _, i := range p.Imports {
			one.imports = append(one.imports, i.PkgPath)
		}
		slices.Sort(one.imports)
		g[p.PkgPath] = one
		if _, ours := ownPackage(p.PkgPath); ours {
			if len(p.Errors) > 0 {
				t.Errorf("%s does not load: %v", p.PkgPath, p.Errors[0])
			}
		}
	})
	if len(g.packages()) < 5 {
		t.Fatalf("found only the packages %v: the loader looked in the wrong place", g.packages())
	}
	return g
}
