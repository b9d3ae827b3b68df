package loader

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/need"
)

func opened(t testing.TB, p intent.Payload) intent.Opened {
	t.Helper()
	p.UID, p.Serial, p.ObjectDigest = "uid", 1, "sha256:x"
	if p.Application.Kind == "" {
		p.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "net", Name: "app"}
	}
	return seals.New(t).Open(t, p)
}

func TestPrepareAppliesTheIntent(t *testing.T) {
	entries := uint32(9)
	o := opened(t, intent.Payload{
		Variables: map[string]apiextensionsv1.JSON{"in_data": {Raw: []byte("77")}, "a_u8": {Raw: []byte("5")}},
		Maps:      map[string]v1alpha1.Map{"counts": {MaxEntries: &entries}},
		Programs:  []v1alpha1.Program{{Name: "xdp_variables", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}},
	})
	p, err := Prepare(o, programs.Object("xdp_variables"))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Spec.Maps["counts"].MaxEntries; got != 9 {
		t.Errorf("counts has %d entries", got)
	}
	if diff := cmp.Diff(map[string]bool{".data": true, ".rodata": true}, p.Set); diff != "" {
		t.Error(diff)
	}
	data, ok := p.Spec.Maps[".data"].Contents[0].Value.([]byte)
	if !ok || !strings.Contains(string(data), "\x4d\x00\x00\x00") {
		t.Errorf(".data = %v", data)
	}
	if p.Spec.Variables != nil {
		t.Error("the library would map data sections into memory")
	}
}

func TestPrepareMakesTheProgramsTheHooksWant(t *testing.T) {
	for sentence, c := range map[string]struct {
		object   string
		programs []v1alpha1.Program
		want     []string
		attach   ebpf.AttachType
		to       string
	}{
		"one program":                       {"xdp_count", program("count_packets", "xdp", ""), []string{"count_packets"}, ebpf.AttachXDP, ""},
		"others of the object are left out": {"tcx_count", program("count_egress", "tcx/egress", ""), []string{"count_egress@bounded"}, ebpf.AttachTCXEgress, ""},
		"a target that is not the section's": {
			"tp_btf_count", program("tp_btf_count", "tp_btf", "sched_switch"), []string{"tp_btf_count@tp_btf/sched_switch"}, ebpf.AttachTraceRawTp, "sched_switch",
		},
		"an attach type not the section's": {
			"cgroup_bind4", program("cgroup_bind4", "cgroup/connect4", ""), []string{"cgroup_bind4@cgroup/connect4"}, ebpf.AttachCGroupInet4Connect, "",
		},
		"what a prog array names comes along": {"xdp_tailcall", program("xdp_tailcall", "xdp", ""), []string{"xdp_tail", "xdp_tailcall"}, ebpf.AttachXDP, ""},
		"a program that attaches nowhere":     {"xdp_count", []v1alpha1.Program{{Name: "count_packets"}}, []string{"count_packets"}, ebpf.AttachXDP, ""},
		"an iterator keeps its own target":    {"iter_task", program("iter_task", "iter", ""), []string{"iter_task@iter"}, ebpf.AttachTraceIter, "task"},
		"a section without a target will do": {
			"tracepoint_bare", program("tracepoint_bare", "tracepoint", "a/b"), []string{"tracepoint_bare"}, ebpf.AttachNone, "",
		},
		"a pinned map is not the library's":  {"xdp_pinned", program("xdp_pinned", "xdp", ""), []string{"xdp_pinned"}, ebpf.AttachXDP, ""},
		"a section that says of no hook":     {"plain_sections", program("unspecified", "xdp", ""), []string{"unspecified"}, ebpf.AttachXDP, ""},
		"a section of libbpf before hooks":   {"plain_sections", program("classifies", "tcx/egress", ""), []string{"classifies@bounded"}, ebpf.AttachNone, ""},
		"an object without type information": {"xdp_nobtf", program("xdp_nobtf", "xdp", ""), []string{"xdp_nobtf"}, ebpf.AttachXDP, ""},
		"two hooks the kernel does not tell": {
			"uprobe_count", append(program("uprobe_count", "uprobe", ""), program("uprobe_count", "uretprobe", "")...), []string{"uprobe_count"}, ebpf.AttachNone, "",
		},
		"two targets of one BTF-typed program": {
			"tp_btf_count", append(program("tp_btf_count", "tp_btf", "a"), program("tp_btf_count", "tp_btf", "b")...),
			[]string{"tp_btf_count@tp_btf/a", "tp_btf_count@tp_btf/b"}, ebpf.AttachTraceRawTp, "a",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			p, err := Prepare(opened(t, intent.Payload{Programs: c.programs}), programs.Object(c.object))
			if err != nil {
				t.Fatal(err)
			}
			if got := names(p.Spec.Programs); got != strings.Join(c.want, ", ") {
				t.Errorf("programs are %s", got)
			}
			last := p.Spec.Programs[c.want[0]]
			if c.object == "xdp_tailcall" {
				last = p.Spec.Programs["xdp_tailcall"]
			}
			if last.AttachType != c.attach || last.AttachTo != c.to && c.to != "" {
				t.Errorf("attaches %v to %q", last.AttachType, last.AttachTo)
			}
			for name, m := range p.Spec.Maps {
				if m.Pinning != ebpf.PinNone {
					t.Errorf("map %s is pinned by the library", name)
				}
			}
		})
	}
}

func program(name, hook, tracepoint string) []v1alpha1.Program {
	return []v1alpha1.Program{{Name: name, Attach: []v1alpha1.Attachment{{Hook: hook, Tracepoint: tracepoint}}}}
}

func TestPrepareRefusesInTheDefinitionsWords(t *testing.T) {
	entries := uint32(5)
	for sentence, c := range map[string]struct {
		object []byte
		p      intent.Payload
		want   string
	}{
		"no ELF file":                  {[]byte("x"), intent.Payload{Programs: program("f", "xdp", "")}, "read object of net/app"},
		"a function that is not there": {programs.Object("xdp_count"), intent.Payload{Programs: program("f", "xdp", "")}, `no function "f"; it has count_packets`},
		"a hook of another type": {
			programs.Object("xdp_count"), intent.Payload{Programs: program("count_packets", "tcx/ingress", "")}, `section "xdp" makes it a XDP program`,
		},
		"an entry of a device map": {
			programs.Object("xdp_map_entries"), intent.Payload{Programs: program("at_device", "xdp", "")},
			`section "xdp/devmap" makes it a program for entries of a devmap`,
		},
		"one program of two types": {
			programs.Object("plain_sections"), intent.Payload{Programs: append(program("unspecified", "xdp", ""), program("unspecified", "tcx/ingress", "")...)},
			"its hooks make it XDP and SchedCLS",
		},
		"a hook nobody attaches": {programs.Object("xdp_count"), intent.Payload{Programs: program("count_packets", "struct_ops", "")}, `hook "struct_ops"`},
		"a map that is not there": {
			programs.Object("xdp_count"), intent.Payload{Programs: program("count_packets", "xdp", ""), Maps: map[string]v1alpha1.Map{"x": {}}},
			"maps.x: the object has no such map",
		},
		"the size of a data section": {
			programs.Object("xdp_count"), intent.Payload{Programs: program("count_packets", "xdp", ""), Maps: map[string]v1alpha1.Map{".bss": {MaxEntries: &entries}}},
			"maps..bss: a data section has one entry",
		},
		"values of another size": {
			programs.Object("xdp_count"), intent.Payload{Programs: program("count_packets", "xdp", ""), Maps: map[string]v1alpha1.Map{"counts": {ValueSize: &entries}}},
			"maps.counts: the object says that values have 8 bytes",
		},
		"a variable that is not there": {
			programs.Object("xdp_count"), intent.Payload{
				Programs: program("count_packets", "xdp", ""), Variables: map[string]apiextensionsv1.JSON{"x": {Raw: []byte("1")}},
			}, "variables.x",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			_, err := Prepare(opened(t, c.p), c.object)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Prepare = %v, want %q", err, c.want)
			}
		})
	}
}

// TestProgramsOfANamespaceOnTrafficAreBounded looks at what each of its programs answers to a packet: one that another tail calls, and one
// whose section says of no type, too.
func TestProgramsOfANamespaceOnTrafficAreBounded(t *testing.T) {
	need.Kernel(t)
	for kind, want := range map[string]int32{v1alpha1.KindBpfApplication: -1, v1alpha1.KindClusterBpfApplication: 0} {
		id := v1alpha1.Identity{Kind: kind, Name: "app"}
		p := intent.Payload{Application: id, Variables: map[string]apiextensionsv1.JSON{"verdict": {Raw: []byte("0")}}}
		names := []string{"by_itself", "by_tail_call", "of_no_type"}
		for _, name := range names {
			p.Programs = append(p.Programs, program(name, "tc/ingress", "")...)
		}
		prepared, err := Prepare(opened(t, p), programs.Object("tcx_verdict"))
		if err != nil {
			t.Fatal(err)
		}
		loaded := load(t, prepared, nil)
		instances := []string{"answers"}
		for _, name := range names {
			instances = append(instances, plan.InstanceOf(id, name, v1alpha1.Attachment{Hook: "tc/ingress"}, ""))
		}
		for _, name := range instances {
			if got, err := loaded.Programs[name].Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || int32(got) != want {
				t.Errorf("%s of a %s answers %d, want %d: %v", name, kind, int32(got), want, err)
			}
		}
	}
}
