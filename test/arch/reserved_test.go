package arch_test

import (
	"fmt"
	"go/types"
	"slices"
	"testing"

	"golang.org/x/tools/go/packages"
)

// exportedForFew lists what is exported for few packages: names, and who may use them. Go has no
// word for it.
func exportedForFew() map[string][]string {
	const client, images = "(*" + module + "/image/registry.Client).", module + "/image/"
	readers := []string{"image/registry", "image/access"}
	return map[string][]string{
		// ADR 12: only package access knows who may read an image.
		client + "PullVia":                 readers,
		client + "DescribeVia":             readers,
		client + "Blobs":                   readers,
		client + "For":                     readers,
		client + "WithKeychain":            readers,
		"(*" + images + "disk.Cache).Link": readers,
		// The zero value allows every host: only the client makes one, with its options.
		images + "transport.Bounded": {"image/registry", "image/transport"},
		images + "transport.Guard":   {"image/registry", "image/transport"},
	}
}

// fullName is the name of a function or a type with its package.
func fullName(o types.Object) string {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin().FullName()
	case *types.TypeName:
		if o.Pkg() != nil {
			return o.Pkg().Path() + "." + o.Name()
		}
	}
	return ""
}

// reservedUses returns the places where a package uses what is reserved for others.
func reservedUses(p *packages.Package, name string) []string {
	var found []string
	for id, object := range p.TypesInfo.Uses {
		full := fullName(object)
		if users, is := exportedForFew()[full]; is && !slices.Contains(users, name) {
			found = append(found, fmt.Sprintf("%s uses %s: only %v may", p.Fset.Position(id.Pos()), full, users))
		}
	}
	slices.Sort(found)
	return found
}

func TestWhatIsReservedIsUsedByItsPackages(t *testing.T) {
	g := load(t)
	var users []string
	for _, name := range g.packages() {
		if !within(name, "test") && slices.ContainsFunc(g[module+"/"+name].imports, func(path string) bool { return within(path, module+"/image") }) {
			users = append(users, module+"/"+name)
		}
	}
	seen := map[string]bool{}
	for _, p := range typed(t, nil, users...) {
		name, _ := ownPackage(p.PkgPath)
		for _, place := range reservedUses(p, name) {
			t.Error(place)
		}
		for _, object := range p.TypesInfo.Uses {
			seen[fullName(object)] = true
		}
	}
	for name := range exportedForFew() {
		if !seen[name] {
			t.Errorf("nothing uses %s: take its row out", name)
		}
	}
}

func TestReservedUsesAreSeen(t *testing.T) {
	const source = `package arch

import (
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
)

type linker interface{ Link() }

func called(c *registry.Client) { c.For("somebody") }
func taken(c *disk.Cache) any { return c.Link }
func made() any { return &transport.Bounded{} }
func fine(l linker) { l.Link() }
`
	path := root(t) + "/test/arch/overlay.go"
	list := typed(t, map[string][]byte{path: []byte(source)}, module+"/test/arch")
	if len(list) != 1 {
		t.Fatalf("loaded %d packages", len(list))
	}
	if got := reservedUses(list[0], "test/arch"); len(got) != 3 {
		t.Errorf("saw %v, want three", got)
	}
}
