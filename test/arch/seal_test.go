package arch_test

import (
	"fmt"
	"go/types"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// sealers are the packages that may turn a payload into an envelope.
func sealers() []string { return []string{"intent", "gate"} }

// seals returns the places where a package uses a function called Seal that
// takes an intent's payload: the method of *intent.Sealer, called or taken as a
// value, or an interface's that stands for it. What *intent.Sealer signs else is
// no intent unless it is called one, by intent.PayloadType.
func seals(p *packages.Package) []string {
	var found []string
	for id, object := range p.TypesInfo.Uses {
		name := object.Name()
		switch o := object.(type) {
		case *types.Func:
			params := o.Signature().Params()
			if name != "Seal" || params.Len() == 0 || !strings.HasSuffix(params.At(0).Type().String(), module+"/intent.Payload") {
				continue
			}
			name = o.FullName()
		case *types.Const:
			if name != "PayloadType" || o.Pkg() == nil || o.Pkg().Path() != module+"/intent" {
				continue
			}
		default:
			continue
		}
		found = append(found, fmt.Sprintf("%s uses %s", p.Fset.Position(id.Pos()), name))
	}
	slices.Sort(found)
	return found
}

// typed loads packages with their types. Like the rest of the build it does
// without cgo, so that compiled dependencies are shared.
func typed(t *testing.T, overlay map[string][]byte, patterns ...string) []*packages.Package {
	t.Helper()
	list, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedTypes | packages.NeedTypesInfo |
			packages.NeedSyntax | packages.NeedCompiledGoFiles,
		Dir:     root(t),
		Env:     append(os.Environ(), "CGO_ENABLED=0"),
		Overlay: overlay,
	}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if len(p.Errors) > 0 {
			t.Errorf("%s does not compile: %v", p.PkgPath, p.Errors[0])
		}
	}
	return list
}

func TestOnlyTheGateSeals(t *testing.T) {
	g := load(t)
	var users []string
	for _, name := range g.packages() {
		if slices.Contains(g[module+"/"+name].imports, module+"/intent") && !within(name, "test") {
			users = append(users, module+"/"+name)
		}
	}
	for _, p := range typed(t, nil, users...) {
		name, _ := ownPackage(p.PkgPath)
		if slices.Contains(sealers(), name) {
			continue
		}
		for _, place := range seals(p) {
			t.Errorf("%s: only %v may seal; ask the gate for a verdict and seal that", place, sealers())
		}
	}
}

func TestSealingElsewhereIsSeen(t *testing.T) {
	const source = `package arch

import "github.com/skep-dev/skep/intent"

type box interface{ Seal(intent.Payload) (intent.Envelope, error) }

type other struct{}

// Seal is not the one meant.
func (other) Seal(string) {}

func called(s *intent.Sealer) { s.Seal(intent.Payload{}) }
func taken(s *intent.Sealer) any { return s.Seal }
func hidden(s *intent.Sealer) { box(s).Seal(intent.Payload{}) }
func signed(s *intent.Sealer) { s.Sign(intent.PayloadType, nil) }
func fine() { other{}.Seal("") }
`
	path := root(t) + "/test/arch/overlay.go"
	list := typed(t, map[string][]byte{path: []byte(source)}, module+"/test/arch")
	if len(list) != 1 {
		t.Fatalf("loaded %d packages", len(list))
	}
	if got := seals(list[0]); len(got) != 4 {
		t.Errorf("saw %v, want four", got)
	}
}
