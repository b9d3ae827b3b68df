package examples_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/examples"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain lets the test binary render CUE in a child process.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Main(m)
}

// evidence is the folder of policies that belong to no program.
const evidence = "evidence"

// example is what is particular to one folder of examples.
type example struct {
	// applications is how many the folder defines.
	applications int
	// object is the file its images are built from, unless objects has another for an
	// application of that name.
	object  string
	objects map[string]string
	// spoil makes a definition that the folder's policy rejects by rule.
	spoil func(v1alpha1.Application)
	rule  string
}

func table() map[string]example {
	priority := int32(1)
	return map[string]example{
		"xdp-counter": {1, "xdp-counter/xdp_counter.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Programs[0].Attach[0].Priority = &priority
		}, "policy/front"},
		"tcx-firewall": {1, "tcx-firewall/tcx_firewall.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Variables["port"] = apiextensionsv1.JSON{Raw: []byte(`22`)}
		}, "policy/kept-ports"},
		"tcx-denylist": {1, "tcx-denylist/tcx_denylist.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Maps["networks"].Contents[0].Key.Raw = []byte(`{"prefixlen":1}`)
		}, "policy/long-prefixes"},
		"exec-snoop": {1, "exec-snoop/exec_snoop.bpf.o", nil, func(a v1alpha1.Application) {
			a.SetLabels(nil)
		}, "policy/owner"},
		"pod-execs": {2, "exec-snoop/exec_snoop.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Programs[0].Attach[0].Pods.NamespaceSelector = nil
		}, "policy/namespaces"},
		"shared-map": {2, "shared-map/count_sources.bpf.o", map[string]string{"sources-limit": "shared-map/limit_sources.bpf.o"}, func(a v1alpha1.Application) {
			sources := a.Body().Maps["sources"]
			sources.SharedWith = []string{"spy"}
			a.Body().Maps["sources"] = sources
		}, "policy/family"},
		"port-fleet": {10, "tcx-firewall/tcx_firewall.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Programs[0].Attach[0].Hook = "tcx/egress"
		}, "policy/fleet-hook"},
		"flow-agent": {1, "flow-agent/flow_agent.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Maps["aggregated_flows"].Export[0].ServiceAccounts = nil
		}, "policy/named-readers"},
		"node-firewall": {1, "node-firewall/node_firewall.bpf.o", nil, func(a v1alpha1.Application) {
			a.Body().Maps["ingress_node_firewall_statistics_map"].Export[0].Access = v1alpha1.MapWrite
		}, "policy/written"},
	}
}

// policiesOf is the folder of an example's policies: its own, or the folder policy where it has YAML of other kinds.
func policiesOf(name string) string {
	if _, err := fs.Stat(examples.FS, path.Join(name, "policy")); err == nil {
		return path.Join(name, "policy")
	}
	return name
}

func TestEveryFolderIsAnExample(t *testing.T) {
	entries, err := fs.ReadDir(examples.FS, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == evidence {
			continue
		}
		if _, ok := table()[e.Name()]; !ok {
			t.Errorf("%s has no row in table", e.Name())
		}
		policies := policiesOf(e.Name())
		for _, file := range []string{path.Join(e.Name(), "README.md"), path.Join(policies, "policy.rego"), path.Join(policies, "policy_test.rego")} {
			if _, err := fs.Stat(examples.FS, file); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestExamplesPassTheGateAndTheirPoliciesRefuse(t *testing.T) {
	keys, err := newAuthor()
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range table() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, keys, name, e)
			for _, app := range b.applications {
				v, err := b.evaluator.Evaluate(t.Context(), gate.Request{Application: app})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range v.Decision().Denied {
					t.Errorf("%s: %s", app.Identity(), gate.Sentence(r))
				}
				if s := v.Evidence(); !slices.Equal(s.Signers(), []string{keys.signer.Name}) {
					t.Errorf("%s: signed by %v", app.Identity(), s.Signers())
				}
			}
			app := b.applications[0]
			e.spoil(app)
			v, err := b.evaluator.Evaluate(t.Context(), gate.Request{Application: app})
			if err != nil {
				t.Fatal(err)
			}
			denied := v.Decision().Denied
			if len(denied) != 1 || denied[0].Rule != e.rule || denied[0].Path == "" || denied[0].Fix == "" {
				t.Errorf("denied by %+v, want %s with path and fix", denied, e.rule)
			}
		})
	}
}

func TestTheExamplesPolicyTestsPass(t *testing.T) {
	for _, name := range append(slices.Collect(maps.Keys(table())), evidence) {
		dir, err := fs.Sub(examples.FS, policiesOf(name))
		if err != nil {
			t.Fatal(err)
		}
		report, err := newEngine(t).Test(t.Context(), dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !report.Passed() || len(report.Untested) > 0 || len(report.Results) < 3 {
			t.Errorf("%s: %+v", name, report)
		}
	}
}

// bench is one example, packed, signed and ready to be evaluated.
type bench struct {
	applications []v1alpha1.Application
	evaluator    *gate.Evaluator
}

// author signs the images; signer is how others know them.
type author struct {
	key    *sign.PrivateKey
	signer v1alpha1.BpfSigner
}

func newAuthor() (author, error) {
	private, public, err := sign.GenerateKey(nil)
	if err != nil {
		return author{}, err
	}
	var a author
	a.signer.Name = "author"
	a.signer.Spec.Key = &v1alpha1.KeySigner{PublicKey: string(public)}
	a.key, err = sign.ParsePrivateKey(private, nil)
	return a, err
}

// newBench does what the example's page tells its reader to do, with an OCI
// layout in a folder of the test's own.
func newBench(t *testing.T, by author, name string, e example) bench {
	t.Helper()
	folder := t.TempDir()
	client := supply.Client(t, registry.Options{CacheDir: filepath.Join(folder, "cache")})
	apps, published := applications(t, name, e.applications), map[string]string{}
	for _, app := range apps {
		object := cmp.Or(e.objects[app.GetName()], e.object)
		if published[object] == "" {
			published[object] = fmt.Sprintf("%s%s:v%d", image.LayoutPrefix, filepath.Join(folder, "image"), len(published))
			publish(t, client, by.key, published[object], object)
		}
		app.Body().Bytecode.Image = published[object]
	}
	trust, err := signing.NewTrust([]v1alpha1.BpfSigner{by.signer})
	if err != nil {
		t.Fatal(err)
	}
	evaluator, err := gate.New(gate.Options{
		Images:   client,
		Trust:    trust,
		Policies: rules(t, name),
	})
	if err != nil {
		t.Fatal(err)
	}
	return bench{applications: apps, evaluator: evaluator}
}

// publish packs and signs an object.
func publish(t *testing.T, client *registry.Client, key *sign.PrivateKey, reference, file string) {
	t.Helper()
	object, err := fs.ReadFile(examples.FS, file)
	if err != nil {
		t.Fatal(err)
	}
	facts, err := bytecode.Inspect(strings.NewReader(string(object)), bytecode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	built, err := image.Build(object, image.BuildOptions{Labels: bytecode.Labels(facts)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Push(t.Context(), reference, built)
	if err != nil {
		t.Fatal(err)
	}
	if err := sign.Image(t.Context(), client, r, key, sign.Options{}); err != nil {
		t.Fatal(err)
	}
}

// rules are the example's own policy and the baseline.
func rules(t *testing.T, name string) *policies.Set {
	t.Helper()
	dir, err := fs.Sub(examples.FS, policiesOf(name))
	if err != nil {
		t.Fatal(err)
	}
	list, err := policies.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	set, err := newEngine(t).Compile(t.Context(), list, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// applications renders the example.
func applications(t *testing.T, name string, want int) []v1alpha1.Application {
	t.Helper()
	defs, err := schemas.Load(t.Context(), schemas.Options{Root: filepath.Join("../../examples", name)})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range defs.Problems {
		t.Error(p)
	}
	if len(defs.Applications) != want {
		t.Fatalf("%d applications, want %d", len(defs.Applications), want)
	}
	list := make([]v1alpha1.Application, 0, want)
	for _, d := range defs.Applications {
		list = append(list, d.Application)
	}
	return list
}

// newEngine evaluates policies for a test.
func newEngine(t *testing.T) *policies.Engine {
	engine := policies.NewEngine(policies.EngineOptions{})
	t.Cleanup(engine.Close)
	return engine
}
