package placement_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// wants is an intent for one function on hooks.
func wants(function string, hooks ...string) intent.Payload {
	p := v1alpha1.Program{Name: function}
	for _, h := range hooks {
		p.Attach = append(p.Attach, v1alpha1.Attachment{Hook: h})
	}
	return intent.Payload{Programs: []v1alpha1.Program{p}}
}

// facts are those of one of the test programs.
func facts(t *testing.T, object string) *bytecode.Facts {
	t.Helper()
	f, err := bytecode.Inspect(bytes.NewReader(programs.Object(object)), bytecode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &f
}

func TestNeedsAreThoseOfTheIntentAndOfWhatItLoads(t *testing.T) {
	helper := func(name string) bytecode.Helper {
		h, ok := bytecode.LookupHelper(name)
		if !ok {
			t.Fatalf("no helper %s", name)
		}
		return h
	}
	for sentence, c := range map[string]struct {
		payload intent.Payload
		facts   *bytecode.Facts
		want    placement.Needs
	}{
		"of the intent alone, its hooks and their types, each once": {wants("f", "uprobe", "uretprobe", "xdp", "xdp"), nil,
			placement.Needs{Hooks: []string{"uprobe", "uretprobe", "xdp"}, ProgramTypes: []string{"Kprobe", "XDP"}}},
		"a function that is loaded and not attached": {wants("count_packets"), facts(t, "xdp_count"),
			placement.Needs{ProgramTypes: []string{"XDP"}, MapTypes: []string{"Array", "PerCPUArray"}, Helper: helper("bpf_map_lookup_elem")}},
		"a function that relocates by the kernel's BTF": {wants("xdp_core", "xdp"), facts(t, "xdp_core"),
			placement.Needs{
				Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP"}, MapTypes: []string{"Array", "PerCPUArray"}, BTF: true, Helper: helper("bpf_map_lookup_elem"),
			}},
		"a function that the object lacks": {wants("other", "xdp"), facts(t, "xdp_pass"),
			placement.Needs{Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP"}}},
		"the youngest of its helpers": {wants("tp_exec_events", "tracepoint"), facts(t, "tp_exec_events"),
			placement.Needs{
				Hooks: []string{"tracepoint"}, ProgramTypes: []string{"TracePoint"}, MapTypes: []string{"RingBuf"}, Helper: helper("bpf_ringbuf_submit"),
			}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(c.want, placement.Of(c.payload, c.facts)); diff != "" {
				t.Errorf("Of (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	profile := v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP", "Kprobe"}, MapTypes: []string{"Hash"},
		Denied: []v1alpha1.DeniedHooks{{Hooks: []string{"uprobe"}, Reason: "grant CAP_SYS_ADMIN"}}}
	all := placement.Needs{Hooks: []string{"xdp", "lsm", "uprobe"}, ProgramTypes: []string{"XDP", "LSM", "Kprobe"}, MapTypes: []string{"Hash", "Arena"}, BTF: true}
	for want, c := range map[string]struct {
		needs   placement.Needs
		profile v1alpha1.KernelProfile
	}{
		"": {placement.Needs{Hooks: []string{"xdp"}, ProgramTypes: []string{"Kprobe"}, MapTypes: []string{"Hash"}}, profile},
		"kernel 6.1.0 has no hook lsm, program type LSM, map type Arena, BTF; the agent may not attach to hook uprobe: grant CAP_SYS_ADMIN": {all, profile},
		"kernel 6.1.0 has no program type SkLookup":                    {placement.Needs{ProgramTypes: []string{"SkLookup"}}, profile},
		"the agent may not attach to hook uprobe: grant CAP_SYS_ADMIN": {placement.Needs{Hooks: []string{"uprobe"}}, profile},
	} {
		if got := c.needs.Missing(c.profile); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for sentence, unknown := range map[string]v1alpha1.KernelProfile{
		"an agent that said nothing":      {},
		"an agent that knew fewer things": {Release: "6.1.0", BTF: true},
	} {
		if got := all.Missing(unknown); got != "" {
			t.Errorf("%s: %q", sentence, got)
		}
	}
}

func TestOneSetOfAnAlternativeIsEnough(t *testing.T) {
	p := wants("a", "fentry")
	p.Programs = append(p.Programs, wants("b", "kprobe").Programs[0], wants("c", "xdp").Programs[0], wants("d", "lsm").Programs[0],
		v1alpha1.Program{Name: "e", Attach: []v1alpha1.Attachment{{Hook: "xdp"}, {Hook: "iter", Optional: true}}})
	p.Programs[3].Optional = true
	p.Alternatives = []v1alpha1.Alternative{{Name: "connect", AnyOf: []v1alpha1.ProgramSet{{Programs: []string{"a"}}, {Programs: []string{"b"}}}}}
	for sentence, c := range map[string]struct {
		hooks []string
		want  string
	}{
		"the first":  {[]string{"xdp", "fentry"}, ""},
		"the second": {[]string{"xdp", "kprobe"}, ""},
		"none": {
			[]string{"xdp"}, "none of alternative connect can run (a: kernel 6.1.0 has no hook fentry; b: kernel 6.1.0 has no hook kprobe)",
		},
		"what no set has, and nothing else": {[]string{"kprobe"}, "kernel 6.1.0 has no hook xdp"},
	} {
		if got := placement.Of(p, nil).Missing(v1alpha1.KernelProfile{Release: "6.1.0", Hooks: c.hooks}); got != c.want {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
	}
}

func TestAnOldKernelIsDoubted(t *testing.T) {
	needs := placement.Needs{Helper: bytecode.Helper{Name: "bpf_x", MinKernel: "6.2"}}
	for release, want := range map[string]string{
		"6.1.0-13-amd64": "kernel 6.1.0-13-amd64 may have no helper bpf_x, which came with Linux 6.2",
		"6.2.0":          "", "6.10.1": "", "": "",
	} {
		if got := needs.Doubt(release); got != want {
			t.Errorf("%s: %q, want %q", release, got, want)
		}
	}
	if got := (placement.Needs{}).Doubt("4.1.0"); got != "" {
		t.Errorf("without a helper: %q", got)
	}
}
