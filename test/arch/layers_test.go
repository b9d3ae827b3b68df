package arch_test

import (
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
)

// row is what one package, and every folder below it without a row of its own,
// may import of the module besides itself.
type row struct {
	pkg     string
	imports []string
}

// anything stands for every package but test.
const anything = "*"

// layers is the table of layers in docs/architecture.md. An entry allows the package named and the
// folders below it; no arrow runs up.
func layers() []row {
	with := func(packages []string, more ...string) []string { return slices.Concat(packages, more) }
	one := []string{"api/v1alpha1", "hook", "atomicfile", "clock", "limit", "recent", "text"}
	two := with(one, "api/view", "schemas", "bytecode", "image", "intent")
	three := with(two, "signing")
	four := with(three, "policies")
	five := with(four, "gate", "lifecycle")
	// What the agent may see of layer 2: bytecode without the registry.
	agent := with(one, "api/view", "skepmap", "intent", "bytecode", "placement", "kubeauth", "listen", "agent/queue")
	// The doors of the agent, from what a program is to what a reconcile does with all. What they
	// all speak of, applications, hooks and targets, is plan's.
	program := with(agent, "agent/reconcile/plan")
	attach := with(program, "agent/program", "agent/pods", "agent/attach/clsact", "agent/state")
	reconcile := with(attach, "agent/attach")
	return []row{
		{"api/v1alpha1", nil},
		{"api/view", []string{"api/v1alpha1"}},
		// What the CRDs say of hooks is made from the table.
		{"api/v1alpha1/gencrds", []string{"api/v1alpha1", "hook"}},
		{"api/v1alpha1/crdfiles", nil},
		{"api/v1alpha1/genpage", []string{"api/v1alpha1/crdfiles"}},
		{"api/v1alpha1/genjsonschema", []string{"api/v1alpha1", "api/v1alpha1/crdfiles"}},
		{"hook", nil},
		{"confined", nil},
		{"schemas", with(one, "confined")},
		{"bytecode", one},
		// Readers' folders say which names a map may have.
		{"bytecode/access", with(one, "skepmap")},
		{"convert", one},
		{"atomicfile", nil},
		{"clock", nil},
		{"limit", nil},
		{"recent", nil},
		{"text", nil},
		{"kubeauth", nil},
		{"listen", nil},
		// A module of its own; see TestTheModuleOfReadersStaysSmall.
		{"skepmap", nil},
		{"image", with(one, "!image/transport", "!image/disk", "!image/registry", "!image/access")},
		{"image/transport", with(one, "image", "!image/disk", "!image/registry", "!image/access")},
		{"image/disk", with(one, "image", "!image/transport", "!image/registry", "!image/access")},
		{"image/registry", with(one, "image", "!image/access")},
		{"image/access", with(one, "image")},
		{"intent", one},
		{"intent/viewread", with(one, "api/view", "intent")},
		{"placement", with(one, "intent", "bytecode")},
		{"signing", with(one, "image")},
		{"policies", with(three, "confined")},
		{"gate", with(four, "placement")},
		// It decides on the gate's verdicts, and seals nothing; see seal_test.go.
		{"lifecycle", with(four, "gate")},
		{"agent/readers", program},
		// It looks as the inventory does, and asks no agent.
		{"agent/readers/show", with(program, "agent/readers", "agent/inventory", "agent/program/holders", "agent/state/pins")},
		// It shows a person on another machine what show finds, by requests that the controller sealed.
		{"agent/readers/remote", with(program, "agent/readers/show")},
		{"agent/readers/folder", with(program, "agent/state/pins")},
		{"agent/readers/host", with(reconcile, "agent/reconcile", "agent/readers")},
		{"agent/readers/volumes", with(reconcile, "agent/reconcile", "agent/readers")},
		// A privileged process is made of it, which has little else.
		{"agent/readers/mounter", []string{"bytecode/plain"}},
		{"agent/queue", []string{"api/v1alpha1"}},
		{"agent/reconcile/plan", agent},
		// What readers have is decided by intents and what is known of maps.
		{"agent/readers/grants", []string{"api/v1alpha1", "intent", "bytecode/access"}},
		{"agent/program", program},
		{"agent/pods", with(agent, "agent/program/rights")},
		{"agent/attach/rtnl", agent},
		{"agent/attach/clsact", with(program, "agent/attach/rtnl", "agent/pods/netns", "agent/state/retry")},
		{"agent/state", with(program, "agent/program", "agent/attach/clsact")},
		{"agent/attach", attach},
		{"agent/readers/mapmetrics", with(agent, "agent/program/rights")},
		{"agent/inventory", with(program, "agent/program/holders", "agent/program/owner", "agent/state/pins")},
		{"agent/reconcile", reconcile},
		{"agent/cost", []string{"api/v1alpha1", "api/view", "bytecode/plain"}},
		{"agent/metrics", with(agent, "agent")},
		{"agent/nodeview", with(agent, "agent")},
		{"agent/kube", with(agent, "agent")},
		{"agent", with(reconcile, "agent/reconcile", "agent/readers", "!agent/kube", "!agent/metrics", "!agent/inventory", "!agent/nodeview", "!agent/cost")},
		{"nodemode", with(five, "agent", "listen")},
		{"controller", with(five, "api/view", "placement", "kubeauth", "listen")},
		// The demo is a user of node mode, as the command line is.
		{"demo", with(five, "agent", "nodemode", "examples")},
		{"examples", []string{"skepmap"}},
		{"cmd", []string{anything}},
		// A release is of a commit, signed as users sign, and has what is in the binary: the CUE
		// module, and the policies.
		{"release", with(four, "nodemode/source", "release")},
		{"test", []string{anything, "test"}},
	}
}

// rowOf finds the row of a package: the longest that holds it.
func rowOf(table []row, name string) (row, bool) {
	var best row
	found := false
	for _, f := range table {
		if within(name, f.pkg) && len(f.pkg) > len(best.pkg) {
			best, found = f, true
		}
	}
	return best, found
}

// allows reports whether the row lets its package import another.
func (f row) allows(other string) bool {
	if within(other, f.pkg) && !slices.Contains(f.imports, "!"+other) {
		return true
	}
	allowed := false
	for _, entry := range f.imports {
		switch refused, is := strings.CutPrefix(entry, "!"); {
		case is && within(other, refused):
			return false
		case within(other, entry), entry == anything && !within(other, "test"):
			allowed = true
		}
	}
	return allowed
}

// forbiddenImports returns one line for each import that the table does not allow.
func forbiddenImports(g graph, table []row) []string {
	var broken []string
	for _, name := range g.packages() {
		f, ok := rowOf(table, name)
		if !ok {
			broken = append(broken, name+" is in no layer: give it a row in layers")
			continue
		}
		for _, path := range g[module+"/"+name].imports {
			if other, ours := ownPackage(path); ours && !f.allows(other) {
				broken = append(broken, fmt.Sprintf("%s imports %s: package %s may import only %v", name, other, f.pkg, f.imports))
			}
		}
	}
	return broken
}

func TestLayersHold(t *testing.T) {
	for _, b := range forbiddenImports(load(t), layers()) {
		t.Error(b)
	}
}

func TestForbiddenImportsAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		pkg, imports string
		broken       bool
	}{
		"a package imports a layer below":                  {"gate", "signing", false},
		"a package imports its own folder":                 {"policies", "policies/library", false},
		"a folder imports its package":                     {"schemas/genhooks", "schemas", false},
		"a package imports a layer above":                  {"signing", "policies", true},
		"layer 1 imports anything":                         {"hook", "api/v1alpha1", true},
		"the agent imports the gate":                       {"agent", "gate", true},
		"the agent imports the registry":                   {"agent/program/loader", "image", true},
		"what is loaded imports where it is attached":      {"agent/program/loader", "agent/attach", true},
		"pods import what is kept of programs":             {"agent/pods/containers", "agent/state/pins", true},
		"a step of a reconcile imports where it attaches":  {"agent/reconcile/act", "agent/attach", false},
		"the loop imports its client":                      {"agent", "agent/kube", true},
		"a part of a reconcile imports the loop":           {"agent/reconcile/accepted", "agent", true},
		"the agent imports pure bytecode":                  {"agent/program/loader", "bytecode/values", false},
		"the cluster's agent imports the controller":       {"agent/kube", "controller", true},
		"bytecode imports the registry below it":           {"bytecode", "image", true},
		"the format of images imports the registry":        {"image", "image/registry", true},
		"files on disk import the registry":                {"image/disk", "image/registry", true},
		"node mode joins both halves":                      {"nodemode", "agent", false},
		"the demo is not for packages below":               {"nodemode", "demo", true},
		"the command imports everything":                   {"cmd/skep", "nodemode", false},
		"the command imports a package of tests":           {"cmd/skep", "test/fixture/programs", true},
		"a package of tests imports another":               {"test/kernel", "test/fixture/programs", false},
		"a package that no row names":                      {"util", "hook", true},
		"a package whose name begins like another package": {"hooks", "hook", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := module + "/" + c.pkg
			g := graph{path: {path: path, imports: []string{module + "/" + c.imports}}}
			if got := forbiddenImports(g, layers()); (len(got) > 0) != c.broken {
				t.Errorf("broken = %v, want broken: %v", got, c.broken)
			}
		})
	}
}

// restriction is a module of others and the only packages that may import it.
type restriction struct {
	module   string
	packages []string
}

// restricted are the modules that few packages may import. The list of a package that may import
// something is short on purpose.
func restricted() []restriction {
	return []restriction{
		{"cuelang.org/go", []string{"schemas"}},
		{"github.com/sigstore", []string{"signing"}},
		{"github.com/open-policy-agent", []string{"policies"}},
		{"github.com/google/go-containerregistry", []string{"image", "signing", "controller/pull", "demo", "cmd", "release"}},
		{"github.com/go-git", []string{"nodemode", "demo"}},
		{"github.com/prometheus", []string{"listen", "nodemode", "controller", "gate/metrics", "agent/kube", "agent/metrics", "agent/readers/mapmetrics"}},
		{"github.com/spf13/cobra", []string{"cmd"}},
		{"github.com/vishvananda", []string{"agent", "nodemode", "demo"}},
		{"github.com/cilium/ebpf/link", []string{"agent"}},
		{"google.golang.org/grpc", []string{"agent/pods/containers", "agent/readers/csi"}},
		{"github.com/container-storage-interface", []string{"agent/readers/csi"}},
		{"k8s.io/kubelet", []string{"agent/readers/csi"}},
		{"k8s.io/cri-api", []string{"agent/pods/containers"}},
		{"github.com/secure-systems-lab", []string{"intent", "signing"}},
		// Its parts moved to the one above.
		{"github.com/theupdateframework", nil},
		// Nothing shells out. Two packages start their own binary again: for CUE and
		// Rego, and for a network namespace of the demo. Package release runs go build.
		{"os/exec", []string{"confined", "demo", "release"}},
		{"net/http", []string{"kubeauth", "listen", "image/transport", "image/registry", "signing", "nodemode", "controller", "demo", "cmd", "agent/kube"}},
		// For tests and the demo. Libraries link testing and httptest all the same.
		{"testing", nil},
		{"net/http/httptest", nil},
		{"net/http/pprof", []string{"cmd/skep-agent"}},
		{"github.com/google/go-containerregistry/pkg/registry", []string{"demo"}},
		{"plugin", nil},
		{"unsafe", []string{"agent", "confined", "skepmap"}}, // confined: a child gives up its rights; skepmap: ring buffers are shared memory
	}
}

// restrictedImports returns one line for each import of a restricted module by a package
// that may not import it.
func restrictedImports(g graph, rules []restriction) []string {
	var found []string
	for _, name := range g.packages() {
		if within(name, "test") {
			continue
		}
		for _, path := range g[module+"/"+name].imports {
			for _, r := range rules {
				if !within(path, r.module) || slices.ContainsFunc(r.packages, func(o string) bool { return within(name, o) }) {
					continue
				}
				found = append(found, fmt.Sprintf("%s imports %s: only %v may", name, path, r.packages))
			}
		}
	}
	return found
}

func TestRestrictedModulesStayInTheirPackages(t *testing.T) {
	for _, f := range restrictedImports(load(t), restricted()) {
		t.Error(f)
	}
}

func TestTrespassesAreSeen(t *testing.T) {
	one := func(name, imports string) graph {
		path := module + "/" + name
		return graph{path: {path: path, imports: []string{imports}}}
	}
	for name, c := range map[string]struct {
		g    graph
		want int
	}{
		"schemas imports CUE":             {one("schemas", "cuelang.org/go/cue"), 0},
		"a generator of schemas does too": {one("schemas/genhooks", "cuelang.org/go/cue"), 0},
		"the gate imports CUE":            {one("gate", "cuelang.org/go/cue/load"), 1},
		"the host imports cosign":         {one("nodemode", "github.com/sigstore/cosign/v2/pkg/cosign"), 1},
		"the agent imports OPA":           {one("agent", "github.com/open-policy-agent/opa/v1/rego"), 1},
		"a test imports anything":         {one("test/cases", "cuelang.org/go/cue"), 0},
		"the agent runs a command":        {one("agent/attach", "os/exec"), 1},
		"a module that begins alike":      {one("gate", "cuelang.org/gopher"), 0},
	} {
		if got := restrictedImports(c.g, restricted()); len(got) != c.want {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

// heavy lists what the agent must not link, through however many packages, but
// for the packages that are to.
func heavy() []restriction {
	return []restriction{
		{"github.com/open-policy-agent", nil},
		{"cuelang.org/go", nil},
		{"github.com/sigstore", nil},
		{"github.com/go-git", nil},
		{"github.com/google/go-containerregistry", nil},
		// Node mode knows no API server.
		{"k8s.io/client-go", []string{"agent/kube", "cmd/skep-agent"}},
		// Every kind of Kubernetes, of which the agent needs none.
		{"k8s.io/api", nil},
		{"k8s.io/client-go/kubernetes", nil},
		{"sigs.k8s.io/controller-runtime", nil},
	}
}

// heavyLinks returns, for each package of the agent and its command that reaches a
// heavy module, the way.
func heavyLinks(g graph) []string {
	agent := slices.DeleteFunc(g.packages(), func(name string) bool { return !within(name, "agent") && name != "cmd/skep-agent" })
	return links(g, agent, heavy())
}

// links returns, for each of the packages that reaches a restricted module and must not,
// the way.
func links(g graph, packages []string, rules []restriction) []string {
	var found []string
	for _, name := range packages {
		for _, h := range rules {
			if slices.ContainsFunc(h.packages, func(o string) bool { return within(name, o) }) {
				continue
			}
			way := g.chain(module+"/"+name, func(path string) bool { return within(path, h.module) })
			if way != nil {
				found = append(found, fmt.Sprintf("%s links %s: %s", name, h.module, strings.Join(way, " → ")))
			}
		}
	}
	return found
}

func TestTheAgentStaysSmall(t *testing.T) {
	for _, w := range heavyLinks(load(t)) {
		t.Error(w)
	}
}

// TestOnlyTheCommandLineHasAPage: controller, agent, mounter and the root process serve no HTML.
func TestOnlyTheCommandLineHasAPage(t *testing.T) {
	const page = "cmd/skep/internal/ui"
	g := load(t)
	pages := []restriction{{module + "/" + page, nil}}
	if links(g, []string{"cmd/skep"}, pages) == nil {
		t.Fatal("the command line has no page: the rule is wrong")
	}
	for _, l := range links(g, []string{"cmd/skep-controller", "cmd/skep-agent", "cmd/skep-mounter", "nodemode"}, pages) {
		t.Error(l)
	}
	for _, dir := range folders(t) {
		built, err := build.ImportDir(filepath.Join(root(t), dir), 0)
		if err != nil || dir == page {
			continue
		}
		for _, pattern := range built.EmbedPatterns {
			if files, _ := filepath.Glob(filepath.Join(root(t), dir, pattern)); slices.ContainsFunc(files, isPage) {
				t.Errorf("%s embeds %s: only %s has a page", dir, pattern, page)
			}
		}
	}
}

// isPage reports whether a file is a page for a browser, or a folder that has one.
func isPage(name string) bool {
	found := false
	_ = filepath.WalkDir(name, func(path string, _ fs.DirEntry, err error) error {
		found = found || slices.Contains([]string{".html", ".js", ".css"}, filepath.Ext(path))
		return err
	})
	return found
}

// TestNoProductionBinaryLinksTheDemo looks at what is for the demo and for tests alone.
func TestNoProductionBinaryLinksTheDemo(t *testing.T) {
	g := load(t)
	forTests := []restriction{
		{module + "/demo", nil},
		{module + "/examples", nil},
		{module + "/test", nil},
		{"github.com/google/go-containerregistry/pkg/registry", nil},
	}
	if links(g, []string{"cmd/skep-demo"}, forTests) == nil {
		t.Fatal("the demo links no demo: the rules are wrong")
	}
	for _, l := range links(g, []string{"cmd/skep", "cmd/skep-controller", "cmd/skep-agent", "cmd/skep-mounter"}, forTests) {
		t.Error(l)
	}
	for _, l := range links(g, []string{"cmd/skep-agent"}, []restriction{{"testing", nil}, {"net/http/httptest", nil}}) {
		t.Error(l)
	}
}

// TestTheMounterLinksNoNetwork looks at a process that is privileged: it has nothing that speaks to others than the agent.
func TestTheMounterLinksNoNetwork(t *testing.T) {
	others := []restriction{{"net/http", nil}, {"crypto/tls", nil}, {"google.golang.org", nil}, {"k8s.io", nil}}
	for _, part := range []string{"agent/pods", "agent/program", "agent/reconcile", "agent/state", "api", "intent", "image"} {
		others = append(others, restriction{module + "/" + part, nil})
	}
	for _, l := range links(load(t), []string{"cmd/skep-mounter"}, others) {
		t.Error(l)
	}
}

// TestTheCommandLineStaysSmall: all types of Kubernetes made up a quarter of it.
func TestTheCommandLineStaysSmall(t *testing.T) {
	types := []restriction{{"k8s.io/api/apps", nil}, {"k8s.io/client-go/discovery", nil}, {"github.com/google/gnostic-models", nil}}
	for _, l := range links(load(t), []string{"cmd/skep"}, types) {
		t.Error(l)
	}
}

func TestHeavyImportsAreSeenThroughOthers(t *testing.T) {
	agent, middle, opa := module+"/agent", "example.com/middle", "github.com/open-policy-agent/opa/v1/rego"
	g := graph{
		agent:  {path: agent, imports: []string{"example.com/light", middle}},
		middle: {path: middle, imports: []string{opa}},
		opa:    {path: opa},
	}
	want := []string{"agent links github.com/open-policy-agent: " + agent + " → " + middle + " → " + opa}
	if diff := cmp.Diff(want, heavyLinks(g)); diff != "" {
		t.Error(diff)
	}
	g[middle] = pkg{path: middle}
	if got := heavyLinks(g); got != nil {
		t.Errorf("found %v in a light agent", got)
	}
}

// purePackages decide and do no I/O.
func purePackages() []string {
	return []string{
		"api/v1alpha1", "hook", "image", "limit", "text", "bytecode", "bytecode/objectfile", "bytecode/plain", "bytecode/pointers",
		"bytecode/reach", "bytecode/values", "bytecode/values/series", "placement",
		"api/v1alpha1", "hook", "image", "limit", "text", "bytecode", "bytecode/answers", "bytecode/objectfile", "bytecode/plain", "bytecode/pointers",
		"bytecode/reach", "bytecode/values", "placement",
		"agent/reconcile/plan",
		"lifecycle", "controller/status", "controller/rollout",
	}
}

// impure lists what a package that only decides has no use for.
func impure() []string {
	return []string{
		"os", "net", "net/http", "os/exec", "os/signal", "syscall", "golang.org/x/sys/unix", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog",
	}
}

func TestPurePackagesDoNoIO(t *testing.T) {
	g := load(t)
	for _, name := range purePackages() {
		p, ok := g[module+"/"+name]
		if !ok {
			t.Errorf("package %s is gone: take its row out", name)
		}
		for _, path := range p.imports {
			if slices.Contains(impure(), path) {
				t.Errorf("%s imports %s: it only decides, and is given what it decides on", name, path)
			}
		}
	}
}

// readersModule is the folder of the module that readers of maps link, as other authors do in their programs.
const readersModule = "skepmap"

// readersModules are the modules that the module of readers may require.
func readersModules() []string { return []string{"github.com/cilium/ebpf", "golang.org/x/sys"} }

// TestTheModuleOfReadersStaysSmall holds that it imports and requires two modules, with its tests, and none of this one.
func TestTheModuleOfReadersStaysSmall(t *testing.T) {
	for _, fault := range readersFaults(load(t)) {
		t.Error(fault)
	}
	versions := map[string]map[string]string{}
	for _, name := range []string{"go.mod", readersModule + "/go.mod"} {
		raw, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := modfile.Parse(name, raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		versions[name] = map[string]string{"go": file.Go.Version}
		for _, r := range file.Require {
			versions[name][r.Mod.Path] = r.Mod.Version
		}
	}
	for path, version := range versions[readersModule+"/go.mod"] {
		if path != "go" && !slices.Contains(readersModules(), path) {
			t.Errorf("%s/go.mod requires %s: only %v are allowed", readersModule, path, readersModules())
		}
		if own := versions["go.mod"][path]; own != version {
			t.Errorf("%s/go.mod has %s %s, and go.mod %s", readersModule, path, version, own)
		}
	}
}

// readersFaults are the imports of the module of readers that it must not have.
func readersFaults(g graph) []string {
	var found []string
	all := slices.DeleteFunc(g.packages(), func(name string) bool { return !within(name, readersModule) })
	if len(all) == 0 {
		return []string{"there is no package below " + readersModule}
	}
	for _, name := range all {
		for _, path := range g[module+"/"+name].imports {
			host, _, _ := strings.Cut(path, "/")
			if strings.Contains(host, ".") && !within(path, module+"/"+readersModule) &&
				!slices.ContainsFunc(readersModules(), func(m string) bool { return within(path, m) }) {
				found = append(found, fmt.Sprintf("%s imports %s: only %v are allowed", name, path, readersModules()))
			}
		}
	}
	return found
}

func TestFaultsOfTheModuleOfReadersAreSeen(t *testing.T) {
	for path, want := range map[string]int{
		"net": 0, "github.com/cilium/ebpf/btf": 0, module + "/skepmap/protocol": 0, module + "/text": 1, "github.com/google/go-cmp/cmp": 1,
	} {
		name := module + "/" + readersModule
		if got := readersFaults(graph{name: {path: name, imports: []string{path}}}); len(got) != want {
			t.Errorf("%s: %v, want %d faults", path, got, want)
		}
	}
	if readersFaults(graph{}) == nil {
		t.Error("a module without packages has no fault")
	}
}

func TestTheFirstLayerImportsLittle(t *testing.T) {
	allowed := map[string][]string{
		"api/v1alpha1": {"k8s.io/apimachinery", "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"},
		"hook":         {"github.com/cilium/ebpf"},
	}
	g := load(t)
	for name, modules := range allowed {
		for _, path := range g[module+"/"+name].imports {
			host, _, _ := strings.Cut(path, "/")
			if strings.Contains(host, ".") && !slices.ContainsFunc(modules, func(m string) bool { return within(path, m) }) {
				t.Errorf("%s imports %s: layer 1 may import only the standard library and %v", name, path, modules)
			}
		}
	}
}
