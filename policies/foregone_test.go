package policies_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// tagged is what nobody resolved.
var tagged = policies.Unknown{Object: true, Digest: true}

// foregone fails the test where nothing came of it.
func foregone(t testing.TB, set *policies.Set, in policies.Input, u policies.Unknown) policies.Decision {
	t.Helper()
	d, err := set.Foregone(t.Context(), in, u)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// defined is the input with nothing that its image would tell.
func defined(in *policies.Input) {
	in.Image = policies.Image{Registry: in.Image.Registry, Repository: in.Image.Repository, Tag: in.Image.Tag}
	in.Signatures, in.Attestations, in.Bytecode = nil, nil, bytecode.Facts{}
}

// ruleCase is one policy of testdata/foregone.
type ruleCase struct{ name, rego, want string }

func ruleCases(t testing.TB) []ruleCase {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/foregone/rules.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all []ruleCase
	for i := 0; i+1 < len(archive.Files); i += 2 {
		name, ok := strings.CutSuffix(archive.Files[i].Name, ".rego")
		if archive.Files[i+1].Name != name+".want" || !ok {
			t.Fatalf("%s is followed by %s", archive.Files[i].Name, archive.Files[i+1].Name)
		}
		all = append(all, ruleCase{name: name, rego: string(archive.Files[i].Data), want: strings.TrimSpace(string(archive.Files[i+1].Data))})
	}
	return all
}

// own is a policy with the whole of its Rego, in the place of baseline.
func own(rego string) policies.Policy {
	p := policy("own", "")
	p.Spec.Rego = rego
	replaces(&p)
	return p
}

func TestWhatTheDefinitionAloneIsDeniedFor(t *testing.T) {
	for _, c := range ruleCases(t) {
		t.Run(c.name, func(t *testing.T) {
			p := own(c.rego)
			unload(&p)
			d := foregone(t, compile(t, p), input(defined), tagged)
			var got []string
			for _, r := range d.Denied {
				line := r.Message
				if r.Path != "" {
					line = r.Path + ": " + line
				}
				got = append(got, line)
			}
			if denied := strings.Join(got, "\n"); denied != c.want || d.Foregone != (c.want != "") || d.Unload != d.Foregone || len(d.Warnings) > 0 {
				t.Errorf("foregone %q, want %q; %+v", denied, c.want, d)
			}
		})
	}
}

// TestWhatIsForegoneIsDenied completes the input of every policy at random: what was
// denied by the definition alone is denied then too.
func TestWhatIsForegoneIsDenied(t *testing.T) {
	restricted := profile("restricted")
	replaces(&restricted)
	list := map[string]policies.Policy{"restricted": restricted, "baseline": profile("baseline")}
	for _, c := range ruleCases(t) {
		list[c.name] = own(c.rego)
	}
	for name, p := range list {
		t.Run(name, func(t *testing.T) {
			holds(t, p, rand.New(rand.NewPCG(4, 6)))
		})
	}
}

// FuzzForegone does so with policies that are made at random.
func FuzzForegone(f *testing.F) {
	for seed := range uint64(24) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(10, seed))
		holds(t, own(randomRego(random, 12)), random)
	})
}

// holds fails the test where a policy denies a part of an input, or has it unloaded, and
// not the whole that comes of it.
func holds(t *testing.T, p policies.Policy, random *rand.Rand) {
	t.Helper()
	unload(&p)
	set := compile(t, p)
	read := input(completed(random))
	read.Signatures, read.Attestations = nil, nil
	for _, c := range []struct {
		unknown  policies.Unknown
		known    policies.Input
		complete func(*rand.Rand) policies.Input
	}{
		{tagged, input(defined), func(r *rand.Rand) policies.Input { return input(completed(r)) }},
		{policies.Unknown{Object: true, Digest: true, Programs: true}, input(defined), func(r *rand.Rand) policies.Input { return input(refitted(r)) }},
		{policies.Unknown{}, read, func(r *rand.Rand) policies.Input {
			whole := read
			evidence(r, &whole)
			return whole
		}},
	} {
		known := foregone(t, set, c.known, c.unknown)
		for range 16 {
			whole := c.complete(random)
			full := decide(t, set, whole)
			if slices.ContainsFunc(full.Denied, func(r policies.Reason) bool { return strings.HasSuffix(r.Rule, "/error") }) {
				continue
			}
			if known.Unload && !full.Unload || known.UnloadUndefined && !full.UnloadUndefined {
				t.Fatalf("it is unloaded by a part alone: %+v, %+v\n%s", known, full, p.Spec.Rego)
			}
			for _, r := range known.Denied {
				if !slices.Contains(full.Denied, r) {
					t.Fatalf("%+v is foregone, and not denied of %+v\n%s", r, whole, p.Spec.Rego)
				}
			}
		}
	}
}

// refitted is completed with programs that an object has a say in.
func refitted(r *rand.Rand) func(*policies.Input) {
	return func(in *policies.Input) {
		completed(r)(in)
		programs := make([]v1alpha1.Program, 1+r.IntN(2))
		for i := range programs {
			programs[i] = v1alpha1.Program{Name: fmt.Sprint("p", i)}
			for range r.IntN(3) {
				priority := r.Int32N(2) * 500
				programs[i].Attach = append(programs[i].Attach, v1alpha1.Attachment{Hook: "xdp", Priority: &priority})
			}
		}
		in.Application.Spec.Programs = programs
	}
}

// evidence adds signatures and attestations at random, and now and then none.
func evidence(r *rand.Rand, in *policies.Input) {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	for range r.IntN(4) {
		in.Signatures = append(in.Signatures, signing.Signature{Signer: one("release", "other"), Kind: one("key", "keyless")})
	}
	for range r.IntN(3) {
		in.Attestations = append(in.Attestations, signing.Attestation{Signer: "release", PredicateType: one("x", "y"), Predicate: []byte(`{"a": 1}`)})
	}
}

// completed fills in what an image would tell, at random and now and then nothing.
func completed(r *rand.Rand) func(*policies.Input) {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	return func(in *policies.Input) {
		defined(in)
		in.Image.Digest = "sha256:" + strings.Repeat(one("0", "7", "f"), 64)
		in.Image.Size = r.Int64N(3) * 4096
		if r.IntN(2) == 0 {
			in.Image.Labels = map[string]string{"team": one("a", "b"), "x": "y"}
		}
		evidence(r, in)
		in.Bytecode = bytecode.Facts{Version: bytecode.FactsVersion, License: one("GPL", "MIT"), CPUs: r.IntN(3), MemoryBytes: r.Uint64N(3) * 4096}
		for i := range r.IntN(3) {
			in.Bytecode.Programs = append(in.Bytecode.Programs, bytecode.Program{
				Name: fmt.Sprint("p", i), Section: "xdp", Hook: one("xdp", "tcx/ingress"), License: one("GPL", "MIT"), GPLCompatible: r.IntN(2) == 0,
				Helpers: []string{one("bpf_map_lookup_elem", "bpf_send_signal")},
			})
		}
		for i := range r.IntN(3) {
			in.Bytecode.Maps = append(in.Bytecode.Maps, bytecode.Map{Name: fmt.Sprint("m", i), Type: one("Hash", "Arena"), MemoryBytes: r.Uint64N(2) * 4096})
		}
	}
}

// randomRego is a policy of some rules over what is known and what is not, joined in
// the ways that Rego has.
func randomRego(r *rand.Rand, rules int) string {
	var text strings.Builder
	text.WriteString("package skep.policy\n")
	helpers := 0
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var condition func(depth int) string
	body := func(depth int) string {
		lines := []string{condition(depth - 1)}
		for r.IntN(2) == 0 {
			lines = append(lines, condition(depth-1))
		}
		return strings.Join(lines, "\n\t")
	}
	condition = func(depth int) string {
		if depth <= 0 || r.IntN(4) == 0 {
			return pick(
				`input.image.registry == "registry.example.com"`, `input.image.tag != "v1"`, `input.namespace.name == "team-a"`,
				`not input.application.metadata.labels.owner`, `count(input.application.spec.programs) == 1`,
				`input.application.spec.programs[_].attach[_].priority == 0`, `startswith(input.application.spec.bytecode.image, "registry")`,
				`count(input.signatures) == 0`, `input.signatures[_].signer == "release"`, `not input.image.labels.team`, `input.bytecode.memoryBytes > 0`,
				`not startswith(input.image.digest, "sha256:0")`, `input.image.size < 10`, `input.bytecode.license != "GPL"`,
			)
		}
		helpers++
		name := fmt.Sprint("h", helpers)
		switch r.IntN(10) {
		case 0:
			fmt.Fprintf(&text, "\n%s if {\n\t%s\n}\n", name, body(depth))
			return name
		case 1:
			fmt.Fprintf(&text, "\n%s if {\n\t%s\n}\n", name, body(depth))
			return "not " + name
		case 2:
			fmt.Fprintf(&text, "\ndefault %[1]s := false\n\n%[1]s if {\n\t%[2]s\n}\n", name, body(depth))
			return pick(name, "not "+name, name+" == false")
		case 3:
			fmt.Fprintf(&text, "\n%[1]s contains 1 if {\n\t%[2]s\n}\n\n%[1]s contains 2 if {\n\t%[3]s\n}\n", name, body(depth), body(depth))
			return pick("count("+name+") == 1", "count("+name+") < 2", "1 in "+name, "not 2 in "+name, name+"[_] > 1")
		case 4:
			return fmt.Sprintf("count([1 |\n\t%s\n]) %s", body(depth), pick("== 0", "== 1", "> 0"))
		case 5:
			fmt.Fprintf(&text, "\n%[1]s := 1 if {\n\t%[2]s\n} else := 2 if {\n\t%[3]s\n} else := 3\n", name, body(depth), body(depth))
			return name + pick(" == 1", " == 2", " == 3", " != 2")
		case 6:
			fmt.Fprintf(&text, "\n%s(x) if {\n\tx != \"\"\n\t%s\n}\n", name, body(depth))
			return pick("", "not ") + name + pick("(input.image.registry)", "(input.image.digest)", `("x")`)
		case 7:
			return fmt.Sprintf("every s in %s {\n\ts != null\n\t%s\n}", pick("input.signatures", "input.application.spec.programs", "[1, 2]"), body(depth))
		case 8:
			fmt.Fprintf(&text, "\n%[1]s if {\n\t%[2]s\n}\n\n%[1]s if {\n\t%[3]s\n}\n", name, body(depth), body(depth))
			return pick(name, "not "+name)
		default:
			fmt.Fprintf(&text, "\n%[1]s[x] := y if {\n\tsome x, y in [1, 2]\n\t%[2]s\n}\n", name, body(depth))
			return pick(name+"[0] == 1", "not "+name+"[1]", "count("+name+") == 2")
		}
	}
	for i := range rules {
		fmt.Fprintf(&text, "\ndeny contains \"rule %d\" if {\n\t%s\n}\n", i, body(3))
	}
	return text.String()
}

// TestAnUnknownThatExplodesIsNoDenial has a policy that is cheap over a whole input, and
// has partial evaluation try all triples of helpers over a part of one.
func TestAnUnknownThatExplodesIsNoDenial(t *testing.T) {
	set := compile(t,
		policy("explodes", `deny contains "alike" if alike

alike if {
	a := input.bytecode.programs[_].helpers[_]
	b := input.bytecode.programs[_].helpers[_]
	c := input.bytecode.programs[_].helpers[_]
	data.helpers[a].minKernel == data.helpers[b].minKernel
	data.helpers[b].risk == data.helpers[c].risk
	data.helpers[c].gplOnly == data.helpers[a].gplOnly
	a != b
}`),
		policy("listed", `deny contains "not listed" if input.image.registry != "ghcr.io"`))
	for range 2 {
		if d := foregone(t, set, input(defined), tagged); ids(d.Denied) != "listed/deny" || !d.TimeDependent {
			t.Errorf("foregone: %+v", d)
		}
	}
	if d := decide(t, set, input()); ids(d.Denied) != "listed/deny" {
		t.Errorf("of a whole input: %+v", d.Denied)
	}
}

func TestBrokenPoliciesDenyADefinition(t *testing.T) {
	set, _ := engine.Compile(t.Context(), []policies.Policy{policy("bad", "deny contains"), policy("tried", "deny contains", audit)}, policies.Options{})
	if d := foregone(t, set, input(defined), tagged); ids(d.Denied) != "bad/error" || d.Unload || !d.Foregone {
		t.Errorf("%+v", d)
	}
}

// TestWhatIsForegoneUnloads has policies of both kinds deny a part of an input: what is
// unloaded is denied by one that unloads, by itself.
func TestWhatIsForegoneUnloads(t *testing.T) {
	signless := `deny contains "unsigned" if count(input.signatures) == 0`
	owned := `deny contains "no owner" if not input.application.metadata.labels.owner`
	large := `deny contains "large" if input.bytecode.memoryBytes > 1`
	for name, c := range map[string]struct {
		policies             []policies.Policy
		unknown              policies.Unknown
		denied               string
		mayUnload            bool
		unloads, undefinedly bool
	}{
		"it unloads":                   {[]policies.Policy{policy("a", no, unload, warns)}, tagged, "a/deny", true, true, true},
		"it keeps":                     {[]policies.Policy{policy("a", no)}, tagged, "a/deny", false, false, false},
		"it is tried out":              {[]policies.Policy{policy("a", no, unload, audit)}, tagged, "", false, false, false},
		"it reads what authors choose": {[]policies.Policy{policy("a", owned, unload)}, tagged, "a/deny", true, true, false},
		"it lacks evidence, and another one denies": {[]policies.Policy{policy("a", no), policy("b", signless, unload)}, tagged, "a/deny", true, false, false},
		"it only warns":             {[]policies.Policy{policy("a", no), policy("b", `warn contains "x"`, unload)}, tagged, "a/deny", false, false, false},
		"the bytecode is known":     {[]policies.Policy{policy("a", large, unload), policy("b", signless, unload)}, policies.Unknown{}, "a/deny", true, true, true},
		"the bytecode is not known": {[]policies.Policy{policy("a", large, unload), policy("b", signless, unload)}, tagged, "", true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			set := compile(t, c.policies...)
			in := input(defined)
			if !c.unknown.Object {
				in = input(unsigned, func(in *policies.Input) { in.Bytecode.MemoryBytes = 4096 })
			}
			if may := set.MayUnload(in.Application); may != c.mayUnload {
				t.Errorf("it may unload: %v", may)
			}
			d := foregone(t, set, in, c.unknown)
			if ids(d.Denied) != c.denied || d.Unload != c.unloads || d.UnloadUndefined != c.undefinedly {
				t.Errorf("%+v", d)
			}
		})
	}
	if set, _ := engine.Compile(t.Context(), []policies.Policy{policy("bad", "deny contains", unload)}, policies.Options{}); set.MayUnload(input().Application) {
		t.Error("a policy that does not compile may unload")
	}
}
