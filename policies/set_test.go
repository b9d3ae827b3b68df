package policies_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// input is one that baseline allows.
func input(change ...func(*policies.Input)) policies.Input {
	in := policies.Input{
		Application: policies.Application{
			Kind:     v1alpha1.KindBpfApplication,
			Metadata: policies.Metadata{Name: "counter", Namespace: "team-a", Labels: map[string]string{"tier": "edge"}},
			Spec: v1alpha1.BpfApplicationSpec{
				Bytecode: v1alpha1.Bytecode{Image: "registry.example.com/bpf/counter:v1"},
				Programs: []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{
					Hook: "xdp", Pods: &v1alpha1.Pods{}, Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}, Priority: new(int32),
				}}}},
			},
		},
		Namespace: policies.Namespace{Name: "team-a"},
		Image: policies.Image{
			Registry: "registry.example.com", Repository: "bpf/counter", Tag: "v1", Size: 4096,
			Digest: "sha256:4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865",
		},
		Signatures: []signing.Signature{{Signer: "release", Kind: "key"}},
		Bytecode: bytecode.Facts{Version: bytecode.FactsVersion, License: "GPL", CPUs: 4, Programs: []bytecode.Program{{
			Name: "count", Section: "xdp", Hook: "xdp", Type: "XDP", License: "GPL", GPLCompatible: true,
			Helpers: []string{"bpf_map_lookup_elem"},
		}}},
		Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for _, c := range change {
		c(&in)
	}
	return in
}

func unsigned(in *policies.Input) { in.Signatures = nil }
func clusterScoped(in *policies.Input) {
	in.Application.Kind = v1alpha1.KindClusterBpfApplication
	in.Application.Metadata.Namespace, in.Namespace.Name = "", ""
}

// policy is a cluster-wide one with the Rego after the package clause.
func policy(name, body string, change ...func(*policies.Policy)) policies.Policy {
	p := policies.Policy{Name: name, Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\n" + body + "\n"}}
	for _, c := range change {
		c(&p)
	}
	return p
}

// profile is a cluster-wide policy with a profile.
func profile(name string) policies.Policy {
	return policies.Policy{Name: name, Spec: v1alpha1.BpfPolicySpec{Profile: name}}
}

func in(namespace string) func(*policies.Policy) {
	return func(p *policies.Policy) { p.Namespace = namespace }
}

func audit(p *policies.Policy)  { p.Spec.Mode = v1alpha1.PolicyAudit }
func warns(p *policies.Policy)  { p.Spec.Admission = v1alpha1.AdmissionWarn }
func unload(p *policies.Policy) { p.Spec.Running = v1alpha1.RunningUnload }

func replaces(p *policies.Policy) { p.Replaces = []v1alpha1.BuiltinPolicy{v1alpha1.PolicyBaseline} }

// listing gives the profile restricted the lists by which it allows the input.
func listing(p policies.Policy) policies.Policy {
	for name, value := range map[string]string{
		"images": `["registry.example.com/bpf/*"]`, "signers": `["release"]`, "hooks": `["xdp"]`, "interfaces": `["eth*"]`,
		"priorities": `[{"namespaces": ["team-*"], "min": 0, "max": 99}]`,
	} {
		parameter(name, value)(&p)
	}
	return p
}

func namespaces(globs ...string) func(*policies.Policy) {
	return func(p *policies.Policy) { p.Spec.Match = &v1alpha1.PolicyMatch{Namespaces: globs} }
}

func parameter(name, value string) func(*policies.Policy) {
	return func(p *policies.Policy) {
		if p.Spec.Parameters == nil {
			p.Spec.Parameters = map[string]apiextensionsv1.JSON{}
		}
		p.Spec.Parameters[name] = apiextensionsv1.JSON{Raw: []byte(value)}
	}
}

func labelled(key, value string) func(*policies.Policy) {
	return func(p *policies.Policy) {
		p.Spec.Match = &v1alpha1.PolicyMatch{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
	}
}

// compile fails the test where a policy is broken.
func compile(t testing.TB, list ...policies.Policy) *policies.Set {
	t.Helper()
	set, err := engine.Compile(t.Context(), list, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// decide fails the test where nothing was decided.
func decide(t testing.TB, set *policies.Set, in policies.Input) policies.Decision {
	t.Helper()
	d, err := set.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ids are the rules of the reasons, in their order.
func ids(reasons []policies.Reason) string {
	names := make([]string, 0, len(reasons))
	for _, r := range reasons {
		names = append(names, r.Rule)
	}
	return strings.Join(names, " ")
}

const (
	no    = `deny contains "no"`
	quiet = `deny contains "never" if input.application.kind == "Nothing"`
)

func TestWhichPoliciesJudge(t *testing.T) {
	for name, test := range map[string]struct {
		policies []policies.Policy
		in       policies.Input
		covering string
	}{
		"with no policy at all baseline evaluates":             {nil, input(), "baseline"},
		"a cluster-wide policy stands beside baseline":         {[]policies.Policy{policy("a", quiet)}, input(), "a baseline"},
		"a namespaced policy stands beside baseline":           {[]policies.Policy{policy("a", quiet, in("team-a"))}, input(), "baseline team-a/a"},
		"a namespaced policy evaluates no other namespace":     {[]policies.Policy{policy("a", quiet, in("team-b"))}, input(), "baseline"},
		"a namespaced policy evaluates nothing cluster-wide":   {[]policies.Policy{policy("a", quiet, in("team-a"))}, input(clusterScoped), "baseline"},
		"a namespaced policy cannot reach out by its match":    {[]policies.Policy{policy("a", quiet, in("team-b"), namespaces("*"))}, input(), "baseline"},
		"a glob of namespaces matches":                         {[]policies.Policy{policy("a", quiet, namespaces("x", "team-*"))}, input(), "a baseline"},
		"no glob of namespaces matches the cluster scope":      {[]policies.Policy{policy("a", quiet, namespaces("*", ""))}, input(clusterScoped), "baseline"},
		"without namespaces the cluster scope is matched":      {[]policies.Policy{policy("a", quiet)}, input(clusterScoped), "a baseline"},
		"a policy chosen by labels evaluates too":              {[]policies.Policy{policy("a", quiet, labelled("tier", "edge"))}, input(), "a baseline"},
		"a selector that does not match leaves the policy out": {[]policies.Policy{policy("a", quiet, labelled("tier", "core"))}, input(), "baseline"},
		"a policy that replaces baseline takes its place":      {[]policies.Policy{policy("a", quiet, replaces)}, input(), "a"},
		"what a replacement does not match keeps baseline":     {[]policies.Policy{policy("a", quiet, replaces, namespaces("team-b"))}, input(), "baseline"},
		"a replacement of namespaces leaves the cluster scope": {
			[]policies.Policy{policy("a", quiet, replaces, namespaces("*"))}, input(clusterScoped), "baseline",
		},
		"a replacement leaves no other policy out": {
			[]policies.Policy{policy("a", quiet, replaces), policy("b", quiet), policy("c", quiet, in("team-a"))}, input(), "a b team-a/c",
		},
		"a policy called baseline with the profile configures it": {[]policies.Policy{profile("baseline")}, input(), "baseline"},
		"what configures baseline is replaced as well":            {[]policies.Policy{profile("baseline"), policy("a", quiet, replaces)}, input(), "a"},
		"restricted stands beside baseline":                       {[]policies.Policy{listing(profile("restricted"))}, input(), "baseline restricted"},
		"all that match evaluate, in the order of their names": {
			[]policies.Policy{policy("b", quiet), policy("a", quiet, in("team-a")), policy("a", quiet)}, input(), "a b baseline team-a/a"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(t, compile(t, test.policies...), test.in)
			if got := strings.Join(d.Policies, " "); got != test.covering || !d.Allowed() {
				t.Errorf("evaluated by %q, want %q; denied: %v", got, test.covering, d.Denied)
			}
		})
	}
}

// TestAddingAPolicyAllowsNothing adds policies that say nothing, each in another way,
// to what baseline denies.
func TestAddingAPolicyAllowsNothing(t *testing.T) {
	lax := func(p *policies.Policy) {
		parameter("exemptNamespaces", `["*", ""]`)(p)
		parameter("maxMapMemory", `"1Ti"`)(p)
	}
	named := func(name string, p policies.Policy, change ...func(*policies.Policy)) policies.Policy {
		p.Name = name
		for _, c := range change {
			c(&p)
		}
		return p
	}
	for name, p := range map[string]policies.Policy{
		"of the cluster":                           policy("a", quiet),
		"of the namespace":                         policy("a", quiet, in("team-a")),
		"by namespaces":                            policy("a", quiet, namespaces("*")),
		"by labels":                                policy("a", quiet, labelled("tier", "edge")),
		"that is tried out":                        policy("a", quiet, audit),
		"that only warns":                          policy("a", `warn contains "never" if input.application.kind == "Nothing"`),
		"called baseline, with Rego":               policy("baseline", quiet),
		"with the profile and lax parameters":      named("a", profile("baseline"), lax),
		"called baseline, of the namespace":        named("baseline", profile("baseline"), lax, in("team-a")),
		"called baseline, that is tried out":       named("baseline", profile("baseline"), lax, audit),
		"called baseline, by labels":               named("baseline", profile("baseline"), lax, labelled("tier", "edge")),
		"called baseline, for other namespaces":    named("baseline", profile("baseline"), lax, namespaces("team-b")),
		"that replaces baseline for others":        policy("a", quiet, replaces, namespaces("team-b")),
		"restricted with lax parameters":           named("a", listing(profile("restricted")), lax),
		"called baseline, with profile restricted": named("baseline", listing(profile("restricted")), lax),
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(t, compile(t, p), input(unsigned))
			if !strings.Contains(ids(d.Denied), "baseline/signed") {
				t.Errorf("evaluated by %v, denied by %q", d.Policies, ids(d.Denied))
			}
		})
	}
}

func TestBaselineIsConfigured(t *testing.T) {
	exempt := profile("baseline")
	parameter("exemptNamespaces", `["team-*"]`)(&exempt)
	part := profile("baseline")
	parameter("maxMapMemory", `1`)(&part)
	namespaces("team-b")(&part)
	soft := profile("baseline")
	unload(&soft)
	warns(&soft)
	large := func(in *policies.Input) { in.Bytecode.Maps = []bytecode.Map{{Name: "m", MemoryBytes: 4096}} }
	elsewhere := func(in *policies.Input) { in.Application.Metadata.Namespace, in.Namespace.Name = "team-b", "team-b" }
	for name, test := range map[string]struct {
		policy policies.Policy
		in     policies.Input
		want   string
	}{
		"an exempt namespace is denied nothing":   {exempt, input(unsigned), ""},
		"the cluster scope is not exempt":         {exempt, input(unsigned, clusterScoped), "baseline/signed"},
		"parameters hold where it matches":        {part, input(large, elsewhere), "baseline/map-memory"},
		"and the defaults hold elsewhere":         {part, input(large), ""},
		"elsewhere it denies what it always does": {part, input(unsigned), "baseline/signed"},
		"it says how it denies":                   {soft, input(unsigned), "baseline/signed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(t, compile(t, test.policy), test.in)
			if ids(d.Denied) != test.want || strings.Join(d.Policies, " ") != "baseline" {
				t.Errorf("evaluated by %v, denied %+v", d.Policies, d.Denied)
			}
			if denied := len(d.Denied) > 0; d.Unload != (denied && test.policy.Spec.Running == v1alpha1.RunningUnload) ||
				d.AdmissionWarn != (denied && test.policy.Spec.Admission == v1alpha1.AdmissionWarn) {
				t.Errorf("unload %v, warn %v", d.Unload, d.AdmissionWarn)
			}
		})
	}
}

func TestReplacesIsForAdminsOfTheCluster(t *testing.T) {
	other := func(p *policies.Policy) { p.Replaces = []v1alpha1.BuiltinPolicy{"restricted"} }
	for name, test := range map[string]struct {
		policy policies.Policy
		says   string
	}{
		"a policy of a namespace":   {policy("a", quiet, replaces, in("team-a")), "a policy of a namespace replaces nothing"},
		"a policy chosen by labels": {policy("a", quiet, replaces, labelled("tier", "edge")), "authors choose labels"},
		"a policy in mode Audit":    {policy("a", quiet, replaces, audit), "mode Audit replaces nothing"},
		"of what is not built in":   {policy("a", quiet, other), `no built-in policy is named "restricted"; there is baseline`},
		"one that does not compile": {policy("a", "deny contains", replaces), "a.rego:4"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := engine.Compile(t.Context(), []policies.Policy{test.policy}, policies.Options{})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("no error says %q: %v", test.says, err)
			}
			if d := decide(t, set, input(unsigned)); !slices.Contains(d.Policies, "baseline") || !strings.Contains(ids(d.Denied), "baseline/signed") {
				t.Errorf("evaluated by %v, denied %v", d.Policies, ids(d.Denied))
			}
		})
	}
}

func TestWhatAnAuthorIsCautionedOf(t *testing.T) {
	for name, test := range map[string]struct {
		policy policies.Policy
		says   string
	}{
		"a policy that is added":               {policy("a", quiet), ""},
		"one that configures baseline":         {profile("baseline"), ""},
		"one that replaces it":                 {policy("a", quiet, replaces), "policy a replaces baseline for every application: "},
		"one that replaces it for some":        {policy("a", quiet, replaces, namespaces("x", "y-*")), "policy a replaces baseline in namespaces x, y-*: "},
		"one that seems to configure it":       {policy("baseline", quiet), "a policy called baseline sets the parameters"},
		"one of a namespace that is called so": {policy("baseline", quiet, in("team-a")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(test.policy.Cautions(), "\n")
			if !strings.HasPrefix(got, test.says) || test.says == "" && got != "" || strings.Contains(got, "\n") {
				t.Errorf("%q, want %q", got, test.says)
			}
		})
	}
}

func TestWhatADenialDoes(t *testing.T) {
	for name, test := range map[string]struct {
		policies []policies.Policy
		want     policies.Decision
	}{
		"a denial refuses and keeps what runs": {
			[]policies.Policy{policy("a", no)},
			policies.Decision{Denied: []policies.Reason{{Rule: "a/deny", Message: "no"}}}},
		"in audit mode it is only recorded": {
			[]policies.Policy{policy("a", no, audit, unload, warns)},
			policies.Decision{Audited: []policies.Reason{{Rule: "a/deny", Message: "no"}}}},
		"where every denying policy warns at admission so does the decision": {
			[]policies.Policy{policy("a", no, warns), policy("b", quiet)},
			policies.Decision{Denied: []policies.Reason{{Rule: "a/deny", Message: "no"}}, AdmissionWarn: true}},
		"one denying policy that does not warn is enough to deny at admission": {
			[]policies.Policy{policy("a", no, warns), policy("b", no)},
			policies.Decision{Denied: []policies.Reason{{Rule: "a/deny", Message: "no"}, {Rule: "b/deny", Message: "no"}}}},
		"a policy that unloads does so where it denies": {
			[]policies.Policy{policy("a", no, unload), policy("b", no)},
			policies.Decision{
				Denied: []policies.Reason{{Rule: "a/deny", Message: "no"}, {Rule: "b/deny", Message: "no"}}, Unload: true, UnloadUndefined: true, UnloadByCluster: true,
				UnloadUndefinedByCluster: true,
			}},
		"a policy that unloads does nothing where another denies": {
			[]policies.Policy{policy("a", quiet, unload, warns), policy("b", no)},
			policies.Decision{Denied: []policies.Reason{{Rule: "b/deny", Message: "no"}}}},
		"a warning does not refuse": {
			[]policies.Policy{policy("a", `warn contains {"msg": "hm", "path": "p", "fix": "r"}`)},
			policies.Decision{Warnings: []policies.Reason{{Rule: "a/warn", Path: "p", Message: "hm", Fix: "r"}}}},
		"a member names its rule": {
			[]policies.Policy{policy("a", `deny contains {"msg": "m", "rule": "friday"}`, in("team-a")), policy("b", quiet)},
			policies.Decision{Denied: []policies.Reason{{Rule: "team-a/a/friday", Message: "m"}}}},
		"reasons are in order and none stands twice": {
			[]policies.Policy{policy("b", `deny contains "2"
deny contains "1"
deny contains {"msg": "1"}`), policy("a", `deny contains {"msg": "m", "path": "z"}
deny contains {"msg": "m", "path": "b"}`)},
			policies.Decision{Denied: []policies.Reason{
				{Rule: "a/deny", Path: "b", Message: "m"}, {Rule: "a/deny", Path: "z", Message: "m"},
				{Rule: "b/deny", Message: "1"}, {Rule: "b/deny", Message: "2"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(t, compile(t, test.policies...), input())
			got.Policies = nil
			want := test.want
			for _, reasons := range [][]policies.Reason{want.Denied, want.Audited} {
				for i, r := range reasons {
					policy := r.Rule[:strings.LastIndex(r.Rule, "/")]
					reasons[i].Fix = "the rule names no fix; ask the owner of policy " + policy
				}
			}
			if want.Denied == nil {
				want.Denied = []policies.Reason{}
			}
			if want.Warnings == nil {
				want.Warnings = []policies.Reason{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestABrokenPolicyDeniesOnlyWithinItsMatch(t *testing.T) {
	for name, broken := range map[string]policies.Policy{
		"that does not parse":      policy("bad", `deny contains`),
		"that does not compile":    policy("bad", `deny contains x`),
		"with a glob that is none": policy("bad", quiet, namespaces("[")),
		"with a selector that is none": policy("bad", quiet, func(p *policies.Policy) {
			p.Spec.Match = &v1alpha1.PolicyMatch{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}}
		}),
		"with neither profile nor Rego":  {Name: "bad"},
		"with a parameter that is none":  policy("bad", quiet, parameter("a", "{")),
		"that stops in its evaluation":   policy("bad", `deny contains "x" if to_number(input.image.tag) == 1`),
		"that gives two values for one":  policy("bad", "deny contains \"x\" if f == 1\nf := 1 if input.image.tag\nf := 2 if input.image.digest"),
		"that puts a number into a set":  policy("bad", `deny contains 1`),
		"that puts no message into it":   policy("bad", `deny contains {"msg": " "}`),
		"that puts no string as message": policy("bad", `deny contains {"msg": 7}`),
		"that has a warning of no kind":  policy("bad", `warn contains 1`),
	} {
		t.Run(name, func(t *testing.T) {
			set, err := engine.Compile(t.Context(), []policies.Policy{broken}, policies.Options{})
			if set == nil {
				t.Fatal(err)
			}
			d := decide(t, set, input())
			if ids(d.Denied) != "bad/error" || d.Denied[0].Fix == "" || strings.Contains(d.Denied[0].Message, "v1") {
				t.Errorf("denied: %+v", d.Denied)
			}
			if d.Unload || d.TimeDependent {
				t.Errorf("a failure unloads or passes: %+v", d)
			}
			broken.Namespace = "team-b"
			set, _ = engine.Compile(t.Context(), []policies.Policy{broken}, policies.Options{})
			if d := decide(t, set, input()); !d.Allowed() {
				t.Errorf("another namespace is refused: %+v", d.Denied)
			}
		})
	}
}

func TestAFailingPolicyTakesNothingAway(t *testing.T) {
	set := compile(t, policy("a", `deny contains "x" if to_number(input.image.tag) == 1`, unload))
	if d := decide(t, set, input()); d.Allowed() || d.Unload {
		t.Errorf("a policy that failed unloads: %+v", d)
	}
}

func TestAPolicyThatNeverEndsDeniesInTime(t *testing.T) {
	for name, body := range map[string]string{
		"a range without end": `deny contains "x" if count(numbers.range(1, 1000000000000)) == 1`,
		"a product of ranges": `deny contains "x" if count([1 | some a in numbers.range(1, 9999); some b in numbers.range(1, 9999); ` +
			`some c in numbers.range(1, 9999); a * b * c == -1]) == 1`,
		"a regular expression": `deny contains "x" if regex.match("((((a{0,50}){0,10}){0,2}b?)*)*c$", concat("", ` +
			`["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" | some _ in numbers.range(1, 40000)]))`,
		"a walk over walks": "big := [input | some _ in numbers.range(1, 3000)]\ndeny contains \"x\" if { walk(big, [p, _]); walk(big, [p, v]); v == \"zz\" }",
		"a graph that goes round": "web := {sprintf(\"%d\", [n]): [sprintf(\"%d\", [m]) | some m in numbers.range(1, 3000)] | some n in numbers.range(1, " +
			"3000)}\ndeny contains \"x\" if count(graph.reachable(web, {\"1\"})) == 1",
	} {
		t.Run(name, func(t *testing.T) {
			set, err := engine.Compile(t.Context(), []policies.Policy{policy("slow", body, replaces, namespaces("team-a"))},
				policies.Options{Timeout: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for range 4 {
				d := decide(t, set, input())
				if ids(d.Denied) != "slow/error" || !d.TimeDependent {
					t.Errorf("denied: %+v, time dependent: %v", d.Denied, d.TimeDependent)
				}
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("four decisions of 50 ms took %s", took)
			}
			if d := decide(t, set, input(func(in *policies.Input) { in.Application.Metadata.Namespace = "team-b" })); strings.Contains(ids(d.Denied), "slow") {
				t.Errorf("another namespace is refused: %+v", d.Denied)
			}
		})
	}
}

func TestNothingIsDecidedWithoutAContext(t *testing.T) {
	set := compile(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := set.Decide(ctx, input()); !errors.Is(err, context.Canceled) || len(d.Policies) != 0 {
		t.Errorf("with a context that ended: %+v, %v", d, err)
	}
}

func TestWhatAPolicySaysIsBounded(t *testing.T) {
	set := compile(t, policy("a", `deny contains sprintf("%d", [n]) if some n in numbers.range(1, 1000)
warn contains {"msg": long, "path": long, "fix": long, "rule": long}
long := concat("", ["ééééé" | some _ in numbers.range(1, 1000)])`))
	d := decide(t, set, input())
	if len(d.Denied) != 65 || !strings.Contains(d.Denied[len(d.Denied)-1].Message+ids(d.Denied), "") {
		t.Errorf("%d reasons", len(d.Denied))
	}
	rest := 0
	for _, r := range d.Denied {
		if r.Message == "and 936 more reasons" {
			rest++
		}
	}
	if rest != 1 {
		t.Errorf("%d reasons count the rest", rest)
	}
	w := d.Warnings[0]
	for _, text := range []string{w.Message, w.Path, w.Fix, w.Rule} {
		if len(text) > 1100 || !strings.HasSuffix(text, "é…") {
			t.Errorf("%d bytes, ending %q", len(text), text[len(text)-6:])
		}
	}
}

func TestTimeDependence(t *testing.T) {
	for rego, want := range map[string]bool{
		quiet:                                  false,
		no:                                     false,
		`deny contains "x" if input.now == ""`: true,
		`deny contains "x" if input["now"] == ""`:                                 true,
		"import input.now as clock\ndeny contains \"x\" if clock == \"\"":         true,
		"import input as doc\ndeny contains \"x\" if doc.now == \"\"":             true,
		"import input as doc\ndeny contains \"x\" if doc.version == \"\"":         false,
		`deny contains "x" if { some k in ["now"]; input[k] == "" }`:              true,
		`deny contains "x" if { doc := input; doc.now == "" }`:                    true,
		`deny contains "x" if f(input)` + "\nf(x) if x.now == \"\"":               true,
		`deny contains "x" if { walk(input, [_, v]); v == 7 }`:                    true,
		`deny contains "x" if count(input) == 0`:                                  true,
		`deny contains "x" if json.marshal({"a": [input]}) == ""`:                 true,
		`deny contains "x" if { some k, v in input; k == v }`:                     true,
		`deny contains "x" if data.hooks[input.now]`:                              true,
		`deny contains "x" if data.hooks[input.application.kind]`:                 false,
		`deny contains "x" if object.get(input, "now", "") == ""`:                 true,
		`deny contains "x" if input.application.metadata.labels["now"] == "now"`:  false,
		`deny contains "x" if $"{input.now}" == ""`:                               true,
		"deny contains \"x\" if y\ny if { every z in [1] { input.now != z } }":    true,
		"deny contains \"x\" if data.skep.policy.y\ny if input.now":               true,
		"deny contains \"x\" if [1 | input.now == \"\"] == []":                    true,
		"warn contains input.now":                                                 true,
		`deny contains {"msg": input.now} if input.application.kind == "Nothing"`: true,
	} {
		t.Run(rego, func(t *testing.T) {
			if got := decide(t, compile(t, policy("a", rego)), input()).TimeDependent; got != want {
				t.Errorf("time dependent is %v, want %v", got, want)
			}
		})
	}
	for _, name := range policies.Profiles() {
		if decide(t, compile(t, profile(name)), input()).TimeDependent {
			t.Errorf("profile %s depends on the time", name)
		}
	}
}

func TestWhichPoliciesNeedAllOfTheEvidence(t *testing.T) {
	for rego, want := range map[string]bool{
		quiet: false,
		no:    false,
		`deny contains "x" if count(input.signatures) == 0`:                                                false,
		`deny contains "x" if not count(input.signatures) > 0`:                                             false,
		`deny contains "x" if count(input.signatures) != 0`:                                                false,
		"deny contains \"x\" if y\ny if count(input.signatures) == 0":                                      false,
		`deny contains "x" if count(input["signatures"]) == 0`:                                             false,
		`deny contains "x" if input.application.metadata.labels.attestations`:                              false,
		`deny contains "x" if count(input.signatures) == 1`:                                                true,
		`deny contains "x" if count(input.signatures) > 1`:                                                 true,
		`deny contains "x" if count(input.signatures) < 2`:                                                 true,
		`deny contains "x" if 1 < count(input.signatures)`:                                                 true,
		`deny contains "x" if count(input.signatures) == count(input.bytecode.programs)`:                   true,
		`deny contains "x" if count(input.signatures[0]) == 0`:                                             true,
		`deny contains "x" if count(input.attestations) == 0`:                                              true,
		`deny contains "x" if count(input.signatures) == 0 with input.signatures as input.attestations`:    true,
		`deny contains "x" if { some s in input.signatures; s.signer == "bad" }`:                           true,
		`deny contains "x" if { some a in input.attestations; a.predicateType == "bad" }`:                  true,
		`warn contains "x" if input.attestations[_].predicateType == "bad"`:                                true,
		`deny contains "x" if input["attestations"][0]`:                                                    true,
		`deny contains "x" if { some k in ["attestations"]; count(input[k]) > 0 }`:                         true,
		`deny contains "x" if { doc := input; count(doc.attestations) > 0 }`:                               true,
		"import input.attestations as seen\ndeny contains \"x\" if count(seen) > 0":                        true,
		"import input as doc\ndeny contains \"x\" if count(doc.attestations) > 0":                          true,
		`deny contains "x" if f(input)` + "\nf(x) if count(x.attestations) > 0":                            true,
		`deny contains "x" if { walk(input, [_, v]); v == "bad" }`:                                         true,
		`deny contains "x" if $"{input.attestations}" != ""`:                                               true,
		"deny contains \"x\" if y\ny if { every a in input.attestations { a.signer == \"b\" } }":           true,
		"deny contains \"x\" if count([1 | some a in input.attestations]) > 0":                             true,
		"deny contains {\"msg\": input.attestations[0].signer} if input.application.kind == \"Nothing\"":   true,
		"deny contains \"x\" if not y\ny if { input.version } else if { input.attestations[0] }":           true,
		"deny contains \"x\" if y == 1\ndefault y := 0\ny := 1 if { input.signatures[0].signer == \"b\" }": true,
	} {
		t.Run(rego, func(t *testing.T) {
			if got := decide(t, compile(t, policy("a", rego)), input()).AllEvidence; got != want {
				t.Errorf("needs all of the evidence: %v, want %v", got, want)
			}
		})
	}
	elsewhere := policy("a", `deny contains "x" if count(input.attestations) > 0`, func(p *policies.Policy) {
		p.Spec.Match = &v1alpha1.PolicyMatch{Namespaces: []string{"elsewhere"}}
	})
	if decide(t, compile(t, elsewhere), input()).AllEvidence {
		t.Error("a policy that does not evaluate the application makes it need all of the evidence")
	}
}

func TestWhatUnloadsWithoutADefinition(t *testing.T) {
	unload := func(p *policies.Policy) { p.Spec.Running = v1alpha1.RunningUnload }
	for rego, want := range map[string]bool{
		no: true,
		`deny contains "x" if input.application.metadata.name != "never"`:                  true,
		`deny contains "x" if input.application.spec.bytecode.image != "never"`:            true,
		`deny contains "x" if count(input.signatures) != 99`:                               true,
		`deny contains "x" if not input.application.metadata.labels.owner`:                 false,
		`deny contains "x" if not input.application.metadata.annotations.owner`:            false,
		`deny contains "x" if count(input.application.metadata) != 99`:                     false,
		`deny contains "x" if count(input.application) != 99`:                              false,
		`deny contains "x" if { some k in ["metadata"]; input.application[k] != "never" }`: false,
		`deny contains "x" if input.requester.username != "never"`:                         false,
		`deny contains "x" if count(input) != 99`:                                          false,
	} {
		d := decide(t, compile(t, policy("a", rego, unload)), input())
		if !d.Unload || d.UnloadUndefined != want {
			t.Errorf("%s: unload %v, without a definition %v, want %v", rego, d.Unload, d.UnloadUndefined, want)
		}
	}
	selected := policy("a", no, unload, func(p *policies.Policy) {
		p.Spec.Match = &v1alpha1.PolicyMatch{Selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gone", Operator: metav1.LabelSelectorOpDoesNotExist}},
		}}
	})
	if d := decide(t, compile(t, selected), input()); !d.Unload || d.UnloadUndefined {
		t.Errorf("matched by a label that is not there: unload %v, without a definition %v", d.Unload, d.UnloadUndefined)
	}
	kept := decide(t, compile(t, policy("a", no), policy("b", `deny contains "x" if not input.requester.username`, unload)), input())
	if kept.Unload || kept.UnloadUndefined {
		t.Errorf("a policy that keeps what runs unloads: %+v", kept)
	}
}

// TestNoProfileRefusesForASignature holds the profiles to what lets them read
// signatures of a part of the evidence.
func TestNoProfileRefusesForASignature(t *testing.T) {
	parameters := func(p *policies.Policy) {
		p.Spec.Parameters = map[string]apiextensionsv1.JSON{"signers": {Raw: []byte(`["listed"]`)}}
	}
	for _, name := range policies.Profiles() {
		p := profile(name)
		parameters(&p)
		set := compile(t, p)
		for _, first := range []string{"listed", "other"} {
			part := input(func(in *policies.Input) { in.Signatures = []signing.Signature{{Signer: first}} })
			before := decide(t, set, part)
			if before.AllEvidence {
				t.Errorf("profile %s needs all of the evidence", name)
			}
			for _, second := range []string{"listed", "other", "third"} {
				all := part
				all.Signatures = append(slices.Clone(part.Signatures), signing.Signature{Signer: second})
				for _, r := range decide(t, set, all).Denied {
					if !slices.ContainsFunc(before.Denied, func(b policies.Reason) bool { return b.Rule == r.Rule }) {
						t.Errorf("profile %s: signed by %s too, what %s signed is refused by %s", name, second, first, r.Rule)
					}
				}
			}
		}
	}
}

func TestTheClock(t *testing.T) {
	friday := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	rego := `deny contains input.now if time.weekday(time.parse_rfc3339_ns(input.now)) == "Friday"`
	set, err := engine.Compile(t.Context(), []policies.Policy{policy("a", rego)}, policies.Options{
		Now: func() time.Time { return friday.In(time.FixedZone("x", 3600)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	d := decide(t, set, input(func(in *policies.Input) { in.Now = time.Time{} }))
	if d.Allowed() || d.Denied[0].Message != "2026-01-02T12:00:00Z" {
		t.Errorf("on a friday: %+v", d)
	}
	if d := decide(t, set, input(func(in *policies.Input) { in.Now = friday.Add(24 * time.Hour) })); !d.Allowed() {
		t.Errorf("on a saturday: %+v", d)
	}
}

func TestParametersAreThePolicysOwn(t *testing.T) {
	rego := `deny contains json.marshal(input.parameters)`
	set := compile(t, policy("a", rego, parameter("word", `"one"`)), policy("b", rego, parameter("word", `{"two": 2}`)), policy("c", rego))
	d := decide(t, set, input(func(in *policies.Input) {
		in.Parameters = map[string]json.RawMessage{"word": json.RawMessage(`"forged"`)}
	}))
	got := []string{d.Denied[0].Message, d.Denied[1].Message, d.Denied[2].Message}
	if diff := cmp.Diff([]string{`{"word":"one"}`, `{"word":{"two":2}}`, `{}`}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRevision(t *testing.T) {
	a, b := policy("a", quiet), policy("b", no)
	base := compile(t, a, b).Revision()
	if other := compile(t, b, a).Revision(); other != base {
		t.Errorf("another order gives another revision: %s, %s", base, other)
	}
	moved := a
	moved.File = "elsewhere.rego"
	if other := compile(t, moved, b).Revision(); other != base {
		t.Errorf("another file gives another revision")
	}
	seen := map[string]bool{base: true}
	for name, list := range map[string][]policies.Policy{
		"no policy":         nil,
		"one fewer":         {a},
		"another name":      {policy("c", quiet), b},
		"another namespace": {policy("a", quiet, in("x")), b},
		"another mode":      {policy("a", quiet, audit), b},
		"another match":     {policy("a", quiet, namespaces("x")), b},
		"another parameter": {policy("a", quiet, parameter("x", "1")), b},
		"a profile":         {profile("baseline")},
	} {
		rev := compile(t, list...).Revision()
		if seen[rev] {
			t.Errorf("%s has the revision of another", name)
		}
		seen[rev] = true
	}
}

// TestARevisionIsThatOfANamespace changes policies, and tells in which namespaces that
// makes another revision.
func TestARevisionIsThatOfANamespace(t *testing.T) {
	cluster, own, others := policy("a", quiet), policy("a", quiet, in("own")), policy("a", quiet, in("others"))
	base := compile(t, cluster, own, others)
	for name, c := range map[string]struct {
		list []policies.Policy
		want map[string]bool
	}{
		"nothing":                 {[]policies.Policy{others, own, cluster}, map[string]bool{}},
		"another's":               {[]policies.Policy{cluster, own, policy("a", no, in("others"))}, map[string]bool{"others": true}},
		"one that goes":           {[]policies.Policy{cluster, others}, map[string]bool{"own": true}},
		"one that comes":          {[]policies.Policy{cluster, own, others, policy("a", quiet, in("third"))}, map[string]bool{"third": true}},
		"one moves to another":    {[]policies.Policy{cluster, own, policy("a", quiet, in("third"))}, map[string]bool{"others": true, "third": true}},
		"a policy of the cluster": {[]policies.Policy{policy("a", no), own, others}, nil},
	} {
		set := compile(t, c.list...)
		if diff := cmp.Diff(c.want, set.Differs(base)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, namespace := range []string{"", "own", "others", "third", "none"} {
			if same := set.RevisionIn(namespace) == base.RevisionIn(namespace); same == (c.want == nil || c.want[namespace]) {
				t.Errorf("%s: in %q the revision is the same: %t", name, namespace, same)
			}
		}
		if same := set.Revision() == base.Revision(); same != (c.want != nil && len(c.want) == 0) {
			t.Errorf("%s: the revision is the same: %t", name, same)
		}
	}
}

func TestDecideIsSafeForConcurrentUse(t *testing.T) {
	set := compile(t, profile("baseline"), policy("a", `deny contains input.application.metadata.name`))
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			name := strings.Repeat("x", i+1)
			d, err := set.Decide(t.Context(), input(func(in *policies.Input) { in.Application.Metadata.Name = name }))
			if err != nil || d.Denied[0].Message != name {
				t.Errorf("%d: %+v, %v", i, d, err)
			}
		})
	}
	wait.Wait()
}

func TestFromObjects(t *testing.T) {
	spec := v1alpha1.BpfPolicySpec{Profile: "baseline"}
	got := policies.FromObjects(
		[]v1alpha1.ClusterBpfPolicy{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: spec, Replaces: []v1alpha1.BuiltinPolicy{"baseline"}},
		}},
		[]v1alpha1.BpfPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n"}, Spec: spec}})
	want := []policies.Policy{{Name: "a", Spec: spec, Replaces: []v1alpha1.BuiltinPolicy{"baseline"}}, {Name: "a", Namespace: "n", Spec: spec}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want[0].String() != "a" || want[1].String() != "n/a" {
		t.Errorf("named %s and %s", want[0], want[1])
	}
}

func TestAnUnsignedImageThatPassesIsWarnedOf(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		in     policies.Input
		warned bool
	}{
		"unsigned and allowed": {quiet, input(unsignedImage), true},
		"unsigned and denied":  {no, input(unsignedImage), false},
		"signed and allowed":   {quiet, input(), false},
	} {
		d := decide(t, compile(t, policy("a", test.policy, replaces)), test.in)
		warned := len(d.Warnings) == 1 && d.Warnings[0].Rule == "policy/unsigned" && d.Warnings[0].Fix != ""
		if warned != test.warned {
			t.Errorf("%s: warnings %v, want one of policy/unsigned: %v", name, d.Warnings, test.warned)
		}
	}
}

// unsignedImage is an input without any signature that counts.
func unsignedImage(in *policies.Input) { in.Signatures = nil }

func TestWhatIsTooLargeToBeJudgedIsRefused(t *testing.T) {
	large := input(func(in *policies.Input) {
		in.Application.Metadata.Annotations = map[string]string{"note": strings.Repeat("x", 4<<20)}
	})
	for name, set := range map[string]*policies.Set{
		"by baseline": compile(t), "by one that allows all": compile(t, policy("open", "deny contains \"no\" if false")),
	} {
		d := decide(t, set, large)
		if ids(d.Denied) != "policy/input" || d.Denied[0].Fix == "" || !strings.Contains(d.Denied[0].Message, "at most 4194304 are evaluated") {
			t.Errorf("%s: %+v", name, d.Denied)
		}
		if d.Unload || d.AdmissionWarn || d.TimeDependent || len(d.Policies) != 0 {
			t.Errorf("%s: what runs is kept, what is written refused, and another time it is as large: %+v", name, d)
		}
	}
}
