package grants_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/agent/readers/grants"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestGrantsOfWhatIsLoaded runs the cases of testdata: the application, its maps by the newest intent, those by the intent of
// the version that runs if that is an older one, and a line for each map that is loaded: its name, type, and what else is known of it.
func TestGrantsOfWhatIsLoaded(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		var p intent.Payload
		if err := yaml.UnmarshalStrict(a.Files[0].Data, &p); err != nil {
			t.Fatal(err)
		}
		runs, rest := p, a.Files[1:]
		if rest[0].Name == "runs.yaml" {
			runs = intent.Payload{Application: p.Application, ObjectDigest: "sha256:older"}
			if err := yaml.UnmarshalStrict(rest[0].Data, &runs.Maps); err != nil {
				t.Fatal(err)
			}
			rest = rest[1:]
		}
		var loaded []grants.Loaded
		for line := range strings.Lines(string(rest[0].Data)) {
			loaded = append(loaded, parse(t, strings.Fields(line)))
		}
		granted, refused := grants.Of(p, runs, loaded)
		var got strings.Builder
		for _, m := range granted {
			for _, g := range m.Grants {
				fmt.Fprintf(&got, "%s %s: namespaces %v, service accounts %v, groups %v\n", g.Access, m.Name, g.Namespaces, g.ServiceAccounts, g.Groups)
			}
		}
		for _, r := range refused {
			fmt.Fprintf(&got, "no %s of %s: %s\n", r.Access, r.Map, r.Reason)
		}
		return []txtar.File{golden.Part("want", got.String())}
	})
}

// parse reads a loaded map.
func parse(t *testing.T, words []string) grants.Loaded {
	l := grants.Loaded{Name: words[0]}
	for l.Type.String() != words[1] {
		if l.Type++; l.Type > ebpf.Arena {
			t.Fatalf("no type %s", words[1])
		}
	}
	l.IsFrozen, l.IsTaken = slices.Contains(words, "frozen"), slices.Contains(words, "taken")
	for word, flag := range map[string]uint32{"rdonly": unix.BPF_F_RDONLY, "wronly": unix.BPF_F_WRONLY} {
		if slices.Contains(words, word) {
			l.Flags |= flag
		}
	}
	return l
}

// TestNothingIsWrittenThatIsNotListed asks for each access to a map of each type.
func TestNothingIsWrittenThatIsNotListed(t *testing.T) {
	tables := []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray, ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie}
	want := map[v1alpha1.MapAccess][]ebpf.MapType{
		v1alpha1.MapRead: append(slices.Clone(tables), ebpf.StackTrace), v1alpha1.MapWrite: tables, v1alpha1.MapConsume: {ebpf.RingBuf}, "Look": nil,
	}
	for to, types := range want {
		for kind := ebpf.UnspecifiedMap; kind <= ebpf.Arena+8; kind++ {
			p := intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"},
				Maps: map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{{Access: to, Groups: []string{"adm"}}}}}}
			granted, refused := grants.Of(p, p, []grants.Loaded{{Name: "m", Type: kind}})
			if has := len(granted) == 1; has != slices.Contains(types, kind) || has == (len(refused) == 1) {
				t.Errorf("%s of %s: granted %v, refused %v", to, kind, granted, refused)
			}
		}
	}
}

// TestMetricsOfAnOlderVersionAreItsOwn has the newest intent ask for metrics of maps of a version that it is not of.
func TestMetricsOfAnOlderVersionAreItsOwn(t *testing.T) {
	counter := func(name string) v1alpha1.Map {
		return v1alpha1.Map{Metrics: &v1alpha1.MapMetrics{Name: name, Type: v1alpha1.MapCounter}}
	}
	newest := intent.Payload{ObjectDigest: "sha256:newest", Maps: map[string]v1alpha1.Map{"same": counter("a_total"), "other": counter("b_total"),
		"denied": counter("c_total"), "new": counter("d_total")}}
	older := intent.Payload{ObjectDigest: "sha256:older", Maps: map[string]v1alpha1.Map{"same": counter("a_total"), "other": counter("other_total"),
		"denied": counter("c_total"), "withdrawn": counter("e_total")}}
	now := older
	now.Maps = map[string]v1alpha1.Map{"same": counter("a_total"), "other": counter("other_total")}
	newest.Previous = &now
	names := func(runs intent.Payload) []string { return slices.Sorted(maps.Keys(grants.Metrics(newest, runs))) }
	if got := names(older); !slices.Equal(got, []string{"same"}) {
		t.Errorf("the older version has metrics of %v", got)
	}
	if got := names(newest); len(got) != len(newest.Maps) {
		t.Errorf("the newest has metrics of %v", got)
	}
	newest.Tombstone = true
	if got := names(older); len(got) > 0 {
		t.Errorf("what is gone has metrics of %v", got)
	}
}
