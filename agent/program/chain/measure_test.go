package chain_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/program/chain"
)

// TestWhatMembersTakeAddsUp measures members alone, and compares their sum with
// what a chain of them takes.
func TestWhatMembersTakeAddsUp(t *testing.T) {
	var members []chain.Member
	maps, functions, moves := 1, 1, 0
	for _, object := range []string{"xdp_gpl", "xdp_maps", "xdp_subprog", "xdp_proprietary", "xdp_variables", "xdp_kfunc"} {
		m := member(t, object, object)
		m.Facts.GPLCompatible = object != "xdp_proprietary"
		profile, err := chain.Measure([]chain.Member{m})
		if err != nil {
			t.Fatal(err)
		}
		need, ok := profile.Need(m.Program)
		if !ok {
			t.Fatalf("%s was not measured", object)
		}
		if need.Closed != !m.Facts.GPLCompatible || need.GPLOnly != (len(m.Facts.GPLOnly) > 0) {
			t.Errorf("%s: %+v, and its facts are %+v", object, need, m.Facts)
		}
		if twice, ok := profile.Need(m.Program, m.Program); !ok || twice != need {
			t.Errorf("%s twice takes %+v, once %+v", object, twice, need)
		}
		maps, functions, members = maps+need.Maps, functions+need.Functions, append(members, m)
		moves += need.Moves
		if need.Translated < len(m.Object.Programs[m.Program].Instructions) || need.Moves == 0 {
			t.Errorf("%s takes %d instructions that are moved %d times", object, need.Translated, need.Moves)
		}
	}
	linked, err := chain.Link(members, chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if linked.Usage.Maps != maps || linked.Usage.Subprograms != functions {
		t.Errorf("a chain takes %+v, its members %d maps and %d functions", linked.Usage, maps, functions)
	}
}

func TestWhatIsNotThereCannotBeMeasured(t *testing.T) {
	m := member(t, "a", "xdp_pass")
	m.Program = "nope"
	if p, err := chain.Measure([]chain.Member{m}); err == nil {
		t.Errorf("it takes %+v", p)
	}
	if n, ok := (chain.Profile{}).Need("nope"); ok {
		t.Errorf("it takes %+v", n)
	}
}

// TestProgramsOfOneObjectShareItsMaps: each has functions of its own.
func TestProgramsOfOneObjectShareItsMaps(t *testing.T) {
	object := object(t, "shared")
	in := func(program string) edit {
		return func(_ testing.TB, m *chain.Member) { m.Object, m.Program, m.Application = object, program, "app" }
	}
	members := []chain.Member{member(t, "one", "xdp_pass", in("one")), member(t, "two", "xdp_pass", in("two"))}
	profile, err := chain.Measure(members)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := profile.Need("one")
	both, ok := profile.Need("one", "two")
	if !ok || both.Maps != one.Maps || both.Functions != 2*one.Functions {
		t.Errorf("one takes %+v, both %+v", one, both)
	}
	linked, err := chain.Link(members, chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if linked.Usage.Maps != 1+both.Maps || linked.Usage.Subprograms != 1+both.Functions {
		t.Errorf("a chain of both takes %+v, and they %+v", linked.Usage, both)
	}
}

// TestARefusalNamesNoOtherTenant rejects one tenant's member for another's.
func TestARefusalNamesNoOtherTenant(t *testing.T) {
	for sentence, c := range map[string]struct {
		mine, other string
		want        bool
	}{
		"another namespace's":          {"a", "b", false},
		"the cluster's":                {"a", "", false},
		"of the same namespace":        {"a", "a", true},
		"the cluster's own is refused": {"", "b", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			one, two := member(t, "secret-name", "xdp_gpl"), member(t, "new", "xdp_proprietary")
			one.Facts.GPLOnly, two.Facts.GPLCompatible = []string{"bpf_trace_printk"}, false
			one.Tenant, two.Tenant, two.New = c.other, c.mine, true
			_, err := chain.Link([]chain.Member{one, two}, chain.Options{})
			if err == nil {
				t.Fatal("it fits")
			}
			if named := strings.Contains(err.Error(), "secret-name"); named != c.want {
				t.Errorf("it is told %q", err)
			}
		})
	}
}
