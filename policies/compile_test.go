package policies_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// broken compiles one policy that must not compile.
func broken(t *testing.T, p policies.Policy) *policies.CompileError {
	t.Helper()
	_, err := engine.Compile(t.Context(), []policies.Policy{p}, policies.Options{})
	var ce *policies.CompileError
	if !errors.As(err, &ce) {
		t.Fatalf("compile: %v", err)
	}
	return ce
}

func TestCompileErrorsSayWhere(t *testing.T) {
	for name, test := range map[string]struct {
		policy policies.Policy
		want   string
	}{
		"a word that is none":    {policy("a", `deny contain "x"`), `a.rego:3:`},
		"a variable nobody sets": {policy("a", `deny contains x if true`), `a.rego:3:15: compile policy a: var x is unsafe`},
		"a misspelt part of the input": {
			policy("a", "deny contains \"x\" if {\n  input.aplication.kind == \"x\"\n}"),
			`a.rego:4:3: compile policy a: undefined ref: input.aplication.kind; input.aplication.kind; have: "aplication"; want (one of): ["application"`,
		},
		"a misspelt part deep down":  {policy("a", `deny contains "x" if { some p in input.bytecode.programs; p.helper == "x" }`), `a.rego:3:`},
		"a misspelt field of a spec": {policy("a", `deny contains "x" if input.application.spec.programs[_].attach[_].hoook == "xdp"`), `a.rego:3:`},
		"a variable nobody uses":     {policy("a", `deny contains "x" if { y := 1 }`), `a.rego:3:`},
		"a rule that calls itself": {
			policy("a", "deny contains \"x\" if f\nf if g\ng if f"), `a.rego:4:1: compile policy a: rule data.skep.policy.f is recursive`,
		},
		"another package": {
			policies.Policy{Name: "a", Spec: v1alpha1.BpfPolicySpec{Rego: "package main\n\ndeny contains \"x\""}},
			`a.rego:1:1: compile policy a: the package is main; a policy is of package skep.policy`,
		},
		"the library's package": {
			policies.Policy{Name: "a", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.lib\n\nbytes(_) := 0"}}, `the package is skep.lib`,
		},
		"no entry point":                {policy("a", `denied contains "x"`), `a.rego:1:1: compile policy a: the policy has neither of the sets deny and warn`},
		"an entry point that is true":   {policy("a", `deny := true`), `a.rego:3:1: compile policy a: deny is a set`},
		"an entry point that is a map":  {policy("a", `deny["x"] := true`), `a.rego:3:1: compile policy a: deny is a set`},
		"an entry point with a name":    {policy("a", `deny.friday contains "x"`), `a.rego:3:1: compile policy a: deny is a set`},
		"an entry point that is called": {policy("a", `warn(x) := x`), `a.rego:3:1: compile policy a: warn is a set`},
		"a default entry point":         {policy("a", "default deny := false\ndeny contains \"x\""), `deny is a set`},
		"a misspelt key of a reason": {
			policy("a", `deny contains {"msg": "x", "remdy": "y"}`), `a.rego:3:28: compile policy a: an object in deny has the keys [msg path fix rule], not "remdy"`,
		},
		"a reason without a message": {policy("a", `deny contains {"path": "x"}`), `an object in deny needs the key "msg"`},
		"the file it came from":      {policy("a", `deny contains`, func(p *policies.Policy) { p.File = "dir/a.yaml: spec.rego" }), `dir/a.yaml: spec.rego:4:1: `},
		"a namespaced policy":        {policy("a", `deny contains`, in("n")), `n/a.rego:4:1: `},
		"neither profile nor Rego":   {policies.Policy{Name: "a"}, `compile policy a: spec: give profile or rego`},
		"both":                       {policy("a", no, func(p *policies.Policy) { p.Spec.Profile = "baseline" }), `profile and rego exclude each other`},
		"a profile that is none":     {profile("strict"), `compile policy strict: spec.profile: no profile is named "strict"; there are [baseline restricted]`},
		"a mode that is none":        {policy("a", no, func(p *policies.Policy) { p.Spec.Mode = "audit" }), `spec.mode: "audit" is neither Enforce nor Audit`},
		"an admission that is none":  {policy("a", no, func(p *policies.Policy) { p.Spec.Admission = "No" }), `spec.admission`},
		"a running that is none":     {policy("a", no, func(p *policies.Policy) { p.Spec.Running = "Stop" }), `spec.running`},
		"no name":                    {policy("", no), `metadata.name`},
		"a glob that is none":        {policy("a", no, namespaces("a", "[")), `spec.match.namespaces[1]: glob "["`},
		"a parameter that is none":   {policy("a", no, parameter("x", "{")), `spec.parameters`},
		"a parameter that is not set": {
			policy("a", `deny contains "x" if not startswith("a", input.parameters.people)`, parameter("poeple", `"b"`)),
			`a.rego:3:42: compile policy a: input.parameters.people is not set, and what is undefined denies nothing: set spec.parameters.people, ` +
				`or read it with a default, by object.get(input.parameters, "people", …)`,
		},
		"a parameter where none is set": {
			policy("a", "import input.parameters as p\n\ndeny contains \"x\" if count(input.signatures) < p[\"least\"]"),
			`compile policy a: input.parameters.least is not set`,
		},
		"a parameter that a rule reads": {
			policy("a", "deny contains \"x\" if few\n\nfew if input.parameters.most.of > 3"), `a.rego:5:8: compile policy a: input.parameters.most is not set`,
		},
		"brackets too deep": {
			policy("a", `deny contains x if x := `+strings.Repeat("[y | y := ", 3000)+"1"+strings.Repeat("]", 3000)),
			`a.rego:3:1: compile policy a: brackets stand in each other more than 64 deep`,
		},
		"too much of it": {policy("a", no+strings.Repeat("\n# x", 70000)), `spec.rego: 280040 bytes, at most 262144 are read`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := broken(t, test.policy).Error(); !strings.Contains(got, test.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestOneBrokenPolicyDoesNotBreakTheOthers(t *testing.T) {
	set, err := engine.Compile(t.Context(), []policies.Policy{
		policy("c", `deny contains`, in("team-b")), policy("a", no), policy("b", `deny contains x`), policy("b", no),
	}, policies.Options{})
	for _, part := range []string{"compile policy team-b/c", "compile policy b: there is another policy of that name", "b.rego:3:1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v\nlacks %q", err, part)
		}
	}
	d := decide(t, set, input())
	if got := ids(d.Denied); got != "a/deny b/error" {
		t.Errorf("denied by %s", got)
	}
}

func TestAPolicyReachesNothingOutside(t *testing.T) {
	for call, function := range map[string]string{
		`http.send({"method": "get", "url": "http://localhost"})`: "http.send",
		`net.lookup_ip_addr("localhost")`:                         "net.lookup_ip_addr",
		`net.cidr_expand("10.0.0.0/8")`:                           "net.cidr_expand",
		`opa.runtime()`:                                           "opa.runtime",
		`rand.intn("x", 7)`:                                       "rand.intn",
		`uuid.rfc4122("x")`:                                       "uuid.rfc4122",
		`time.now_ns()`:                                           "time.now_ns",
		`json.match_schema({}, {"$ref": "http://localhost"})`:     "json.match_schema",
		`json.verify_schema({"$ref": "http://localhost"})`:        "json.verify_schema",
		`rego.parse_module("a", "b")`:                             "rego.parse_module",
		`trace("x")`:                                              "trace",
		`io.jwt.decode("x")`:                                      "io.jwt.decode",
		`crypto.x509.parse_certificates("x")`:                     "crypto.x509.parse_certificates",
		`providers.aws.sign_req({}, {}, 1)`:                       "providers.aws.sign_req",
		`yaml.unmarshal("x")`:                                     "yaml.unmarshal",
		`bits.lsh(1, 1000000000000)`:                              "bits.lsh",
		`regex.globs_match("a", "b")`:                             "regex.globs_match",
		`graph.reachable_paths({}, [])`:                           "graph.reachable_paths",
		`strings.render_template("x", {})`:                        "strings.render_template",
	} {
		t.Run(function, func(t *testing.T) {
			got := broken(t, policy("a", `deny contains "x" if `+call)).Error()
			if !strings.Contains(got, "undefined function "+function) {
				t.Error(got)
			}
		})
	}
}

func TestASchemaThatIsElsewhereIsNotFetched(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer server.Close()
	rego := fmt.Sprintf("# METADATA\n# scope: rule\n# schemas:\n#  - input: {\"$ref\": %q}\n%s", server.URL, quiet)
	set := compile(t, policy("a", rego))
	if d := decide(t, set, input()); !d.Allowed() || asked != 0 {
		t.Errorf("asked %d times, denied: %+v", asked, d.Denied)
	}
}

func TestPrintSaysNothingOutsideTests(t *testing.T) {
	if d := decide(t, compile(t, policy("a", `deny contains "x" if { print(input); input.version == "v0" }`)), input()); !d.Allowed() {
		t.Errorf("%+v", d.Denied)
	}
}

func TestCapabilities(t *testing.T) {
	capabilities, err := ast.LoadCapabilitiesJSON(bytes.NewReader(policies.Capabilities()))
	if err != nil {
		t.Fatal(err)
	}
	if capabilities.AllowNet == nil || len(capabilities.AllowNet) != 0 {
		t.Errorf("allow_net is %v, want an empty list", capabilities.AllowNet)
	}
	for _, builtin := range capabilities.Builtins {
		i := slices.IndexFunc(ast.Builtins, func(b *ast.Builtin) bool { return b.Name == builtin.Name })
		if i < 0 || ast.Builtins[i].Nondeterministic || builtin.Nondeterministic {
			t.Errorf("%s is not known or not deterministic", builtin.Name)
		}
	}
}

func TestPoliciesSeeTheTables(t *testing.T) {
	set := compile(t, policy("a", `import data.skep.lib
deny contains json.marshal(object.filter(data.hooks.xdp, ["name", "namespaceable", "risk", "sharing", "shape", "minKernel", "attachable"]))
deny contains json.marshal(data.helpers.bpf_probe_write_user)
deny contains lib.reason("r", "p", "m", "x")`))
	var got []string
	for _, r := range decide(t, set, input()).Denied {
		got = append(got, r.Rule+" "+r.Message)
	}
	want := []string{
		`a/deny {"attachable":true,"minKernel":"5.9","name":"xdp","namespaceable":true,"risk":"Traffic","shape":"NetworkDevice","sharing":"Ordered"}`,
		`a/deny {"gplOnly":true,"id":36,"minKernel":"4.8","name":"bpf_probe_write_user","risk":"WritesUserMemory"}`,
		`a/r m`,
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		gotJSON, _ := json.MarshalIndent(got, "", " ")
		t.Errorf("policies see %s", gotJSON)
	}
}

// FuzzCompile holds that no Rego brings the compiler down, and that what does
// not compile denies.
func FuzzCompile(f *testing.F) {
	for _, source := range policies.Source() {
		f.Add(source)
	}
	f.Add("package skep.policy\n\ndeny contains \"x\"")
	f.Add("package skep.policy\n\ndeny contains {\"msg\": input.now}")
	f.Add("package skep.policy\n\n" + strings.Repeat("[", 5000))
	f.Add("package skep.policy\n\n" + compileBomb())
	f.Add("package skep.policy\n\n" + productBomb)
	f.Fuzz(func(t *testing.T, source string) {
		p := policies.Policy{Name: "a", Spec: v1alpha1.BpfPolicySpec{Rego: source}}
		set, err := engine.Compile(t.Context(), []policies.Policy{p}, policies.Options{})
		if set == nil {
			t.Fatal(err)
		}
		if err == nil {
			return
		}
		if d := decide(t, set, input()); d.Allowed() {
			t.Errorf("%v, and all is allowed", err)
		}
	})
}
