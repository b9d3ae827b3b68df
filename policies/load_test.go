package policies_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// folder is a file system of the given files.
func folder(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, body := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(body)}
	}
	return fsys
}

const clusterPolicy = `# A comment first.
---
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfPolicy
metadata: {name: edge}
spec:
  profile: restricted
  parameters: {signers: [release]}
  match: {namespaces: [team-*]}
  mode: Audit
---
---
apiVersion: skep.dev/v1alpha1
kind: BpfPolicy
metadata: {name: own, namespace: team-a}
spec:
  rego: |
    package skep.policy
    deny contains "no"
`

func TestLoad(t *testing.T) {
	got, err := policies.Load(folder(map[string]string{
		"no-friday.rego":      "package skep.policy",
		"no-friday_test.rego": "package skep.policy_test",
		"sub/edge.yaml":       clusterPolicy,
		"README.md":           "not looked at",
		".git/config.yaml":    "nor: this",
		".hidden.rego":        "nor this",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("loaded %v", got)
	}
	want := policies.Policy{Name: "no-friday", File: "no-friday.rego", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy"}}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
	if got[1].String() != "edge" || got[1].Spec.Mode != v1alpha1.PolicyAudit || string(got[1].Spec.Parameters["signers"].Raw) != `["release"]` {
		t.Errorf("loaded %+v", got[1])
	}
	want = policies.Policy{Name: "own", Namespace: "team-a", File: "sub/edge.yaml: spec.rego", Spec: v1alpha1.BpfPolicySpec{
		Rego: "package skep.policy\ndeny contains \"no\"\n",
	}}
	if diff := cmp.Diff(want, got[2]); diff != "" {
		t.Error(diff)
	}
	if got, err := policies.Load(folder(nil)); err != nil || len(got) != 0 {
		t.Errorf("an empty folder: %v, %v", got, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	head := "apiVersion: skep.dev/v1alpha1\nkind: "
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"another kind": {
			map[string]string{"a.yaml": head + "BpfSigner\n"}, `a.yaml: document 1: kind is "BpfSigner"; a folder of policies holds ClusterBpfPolicy and BpfPolicy`,
		},
		"another version": {map[string]string{"a.yaml": "apiVersion: v1\nkind: ClusterBpfPolicy\n"}, `apiVersion is "v1"`},
		"a misspelt field": {
			map[string]string{"a.yaml": head + "ClusterBpfPolicy\nmetadata: {name: a}\nspec: {profil: baseline}\n"},
			`a.yaml: document 1: error unmarshaling JSON: while decoding JSON: json: unknown field "profil"`,
		},
		"a field that stands twice": {
			map[string]string{"a.yml": head + "BpfPolicy\nmetadata: {name: a, namespace: n}\nspec:\n  profile: baseline\n  profile: restricted\n"},
			`a.yml: document 1: `,
		},
		"a value of another type":      {map[string]string{"a.yaml": head + "BpfPolicy\nmetadata: {name: a, namespace: n}\nspec: []\n"}, `a.yaml: document 1: `},
		"YAML that is none":            {map[string]string{"a.yaml": "a: [\n"}, `a.yaml: document 1: `},
		"a document that is no object": {map[string]string{"a.yaml": "just words\n"}, `a.yaml: document 1: `},
		"a namespace where there is none": {
			map[string]string{"a.yaml": head + "ClusterBpfPolicy\nmetadata: {name: a, namespace: n}\nspec: {profile: baseline}\n"},
			`write a BpfPolicy for one namespace`,
		},
		"no namespace where there is one": {
			map[string]string{"a.yaml": "---\n" + head + "BpfPolicy\nmetadata: {name: a}\nspec: {profile: baseline}\n"},
			`write a ClusterBpfPolicy for the whole cluster`,
		},
		"a file that is too large":         {map[string]string{"a.rego": strings.Repeat(" ", 1<<20+1)}, `a.rego: more than 1048576 bytes`},
		"all that is wrong, and not first": {map[string]string{"a.yaml": head + "A\n", "b.yaml": head + "B\n"}, `kind is "B"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := policies.Load(folder(test.files))
			if err == nil || !strings.Contains(err.Error(), test.want) || got != nil {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestLoadReadsNoEndOfFiles(t *testing.T) {
	files := map[string]string{}
	for i := range 1001 {
		files[fmt.Sprintf("%d.rego", i)] = ""
	}
	if _, err := policies.Load(folder(files)); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Error(err)
	}
}

func TestLoadTellsWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := policies.Load(os.DirFS(filepath.Join(dir, "nowhere"))); err == nil {
		t.Error("a folder that is not there is read")
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "a.rego")); err != nil {
		t.Fatal(err)
	}
	if _, err := policies.Load(os.DirFS(dir)); err == nil || !strings.Contains(err.Error(), "a.rego") {
		t.Errorf("a link to nowhere: %v", err)
	}
}

func TestTest(t *testing.T) {
	report, err := engine.Test(t.Context(), folder(map[string]string{
		"friday.rego": "package skep.policy\n\ndeny contains \"not on fridays\" if input.requester.username == \"friday\"\n",
		"friday_test.rego": `package skep.policy_test

import data.skep.policy

test_friday if policy.deny == {"not on fridays"} with input as {"requester": {"username": "friday"}}

test_wrong if policy.deny == {"x"} with input as {"requester": {"username": "friday"}}

test_stops if to_number(data.hooks.xdp.name) == 1

test_says if {
	print("hello", data.hooks.xdp.shape)
	true
}

todo_test_later if false

test_cases[name] if {
	some name, user in {"one": "alice", "two": "bob"}
	policy.deny == set() with input as {"requester": {"username": user}}
}

test_slow if count(numbers.range(1, 1000)) == 1000
`,
		"quiet.yaml": "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfPolicy\nmetadata: {name: quiet}\nspec: {profile: baseline}\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]policies.Outcome{}
	for _, r := range report.Results {
		outcomes[r.Name] = r.Outcome
		if r.Policy != "friday" || r.File != "friday_test.rego" || r.Line < 5 {
			t.Errorf("%+v", r)
		}
		if r.Name == "test_says" && r.Output != "hello NetworkDevice\n" {
			t.Errorf("it printed %q", r.Output)
		}
		if r.Name == "test_stops" && !strings.Contains(r.Message, "to_number") {
			t.Errorf("it stopped by %q", r.Message)
		}
	}
	want := map[string]policies.Outcome{
		"test_friday": policies.Passed, "test_wrong": policies.Failed, "test_stops": policies.Errored, "test_says": policies.Passed,
		"todo_test_later": policies.Skipped, "test_cases": policies.Passed, "test_slow": policies.Passed,
	}
	if diff := cmp.Diff(want, outcomes); diff != "" {
		t.Error(diff)
	}
	if report.Passed() || strings.Join(report.Untested, " ") != "quiet" {
		t.Errorf("passed %v, untested %v", report.Passed(), report.Untested)
	}
}

func TestTestRefuses(t *testing.T) {
	good := "package skep.policy\n\ndeny contains \"x\"\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a test without a policy": {
			map[string]string{"b.rego": good, "a_test.rego": "package skep.policy_test"}, "a_test.rego tests policy a, which is not there",
		},
		"a policy that does not compile": {map[string]string{"a.rego": "package skep.policy\ndeny contains x"}, "a.rego:2:15"},
		"a test that does not parse":     {map[string]string{"a.rego": good, "a_test.rego": "package skep.policy_test\ntest_a if ("}, "a_test.rego:2:"},
		"a test that does not compile": {
			map[string]string{"a.rego": good, "a_test.rego": "package skep.policy_test\ntest_a if x"}, "a_test.rego:2:11: compile policy a: var x is unsafe",
		},
		"a test that reaches out": {
			map[string]string{"a.rego": good, "a_test.rego": "package skep.policy_test\ntest_a if http.send({})"}, "undefined function http.send",
		},
		"a test in the package of the data": {
			map[string]string{"a.rego": good, "a_test.rego": "package skep.lib\nbytes(_) := 1"}, "a_test.rego:1:1: compile policy a: the package is skep.lib",
		},
		"a folder that does not load": {map[string]string{"a.yaml": "a: ["}, "a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := engine.Test(t.Context(), folder(test.files)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}
