package bytecode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// labelled are facts with a program or map of several kinds.
func labelled() bytecode.Facts {
	return bytecode.Facts{
		Programs: []bytecode.Program{
			{Name: "count", Type: "XDP", Hook: "xdp"},
			{Name: "shape", Type: "SchedCLS", Hook: "tcx/egress"},
			{Name: "classic", Type: "SchedCLS"},
			{Name: "filter", Type: "SchedCLS", Hook: "socket"},
			{Name: "watch", Type: "TracePoint", Hook: "tracepoint"},
			{Name: "enter", Type: "Kprobe", Hook: "kprobe.multi"},
			{Name: "leave", Type: "Kprobe", Hook: "uretprobe"},
			{Name: "typed", Type: "Tracing", Hook: "tp_btf"},
			{Name: "before", Type: "Tracing", Hook: "fentry"},
			{Name: "called", Type: "UnspecifiedProgram"},
		},
		Maps: []bytecode.Map{
			{Name: ".rodata", Type: "Array"},
			{Name: "counts", Type: "PerCPUArray"},
			{Name: "events", Type: "RingBuf"},
			{Name: "new", Type: "MapType(77)"},
		},
	}
}

func TestLabels(t *testing.T) {
	want := map[string]string{
		image.LabelPrograms: `{"before":"fentry","classic":"tc","count":"xdp","enter":"kprobe","filter":"socket_filter","leave":"uretprobe","shape":"tcx",` +
			`"typed":"tracing","watch":"tracepoint"}`,
		image.LabelMaps: `{"counts":"per_cpu_array","events":"ringbuf","new":"maptype(77)"}`,
	}
	if diff := cmp.Diff(want, bytecode.Labels(labelled())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	empty := map[string]string{image.LabelPrograms: "{}", image.LabelMaps: "{}"}
	if diff := cmp.Diff(empty, bytecode.Labels(bytecode.Facts{})); diff != "" {
		t.Errorf("an empty object (-want +got):\n%s", diff)
	}
}

func TestLabelsAgreeWithTheObjectTheyAreMadeOf(t *testing.T) {
	for _, name := range programs.Names() {
		f, err := bytecode.Inspect(bytes.NewReader(programs.Object(name)), bytecode.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if found := bytecode.CompareLabels(bytecode.Labels(f), f); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestCompareLabels(t *testing.T) {
	truth := bytecode.Labels(labelled())
	// with changes one entry of a true label; an empty type takes it away.
	with := func(label, name, kind string) map[string]string {
		labels, entries := maps.Clone(truth), map[string]string{}
		if err := json.Unmarshal([]byte(truth[label]), &entries); err != nil {
			t.Fatal(err)
		}
		if entries[name] = kind; kind == "" {
			delete(entries, name)
		}
		text, err := json.Marshal(entries)
		if err != nil {
			t.Fatal(err)
		}
		labels[label] = string(text)
		return labels
	}
	for name, test := range map[string]struct {
		labels map[string]string
		// want are path, claimed, actual and a part of the message.
		want [][4]string
	}{
		"no labels claim nothing":    {},
		"other labels claim nothing": {labels: map[string]string{"org.opencontainers.image.title": "x"}},
		"the truth":                  {labels: truth},
		"a program of another type": {labels: with(image.LabelPrograms, "count", "tc"), want: [][4]string{
			{`io.ebpf.programs["count"]`, "tc", "xdp", "claims that program"},
		}},
		"a program that is not there": {labels: with(image.LabelPrograms, "ghost", "xdp"), want: [][4]string{
			{`io.ebpf.programs["ghost"]`, "xdp", "", "does not have"},
		}},
		"a program left out": {labels: with(image.LabelPrograms, "enter", "")},
		"a map of another type": {labels: with(image.LabelMaps, "counts", "hash"), want: [][4]string{
			{`io.ebpf.maps["counts"]`, "hash", "per_cpu_array", "claims that map"},
		}},
		"a map that is not there": {labels: with(image.LabelMaps, "ghost", "hash"), want: [][4]string{
			{`io.ebpf.maps["ghost"]`, "hash", "", "does not have"},
		}},
		"a map left out":                   {labels: with(image.LabelMaps, "events", "")},
		"labels that leave everything out": {labels: map[string]string{image.LabelPrograms: "{}", image.LabelMaps: "{}"}},
		"a data section may be mentioned":  {labels: with(image.LabelMaps, ".rodata", "array")},
		"with its right type": {labels: with(image.LabelMaps, ".rodata", "hash"), want: [][4]string{
			{`io.ebpf.maps[".rodata"]`, "hash", "array", "claims that map"},
		}},
		"bpftool's spelling":                 {labels: with(image.LabelMaps, "counts", "percpu_array")},
		"cilium's spelling":                  {labels: with(image.LabelMaps, "counts", "PerCPUArray")},
		"the kernel's type of a kprobe":      {labels: with(image.LabelPrograms, "enter", "probe")},
		"tc for a program that TCX takes":    {labels: with(image.LabelPrograms, "shape", "tc")},
		"tcx for a program that tc takes":    {labels: with(image.LabelPrograms, "classic", "tcx")},
		"what Skep loads a socket filter as": {labels: with(image.LabelPrograms, "filter", "tc")},
		"tracepoint for one with BTF":        {labels: with(image.LabelPrograms, "typed", "tracepoint")},
		"kprobe for a uretprobe": {labels: with(image.LabelPrograms, "leave", "kprobe"), want: [][4]string{
			{`io.ebpf.programs["leave"]`, "kprobe", "uretprobe", "claims that program"},
		}},
		"a function of no type as a program": {labels: with(image.LabelPrograms, "called", "xdp"), want: [][4]string{
			{`io.ebpf.programs["called"]`, "xdp", "", "claims that program"},
		}},
		"what is no JSON": {labels: map[string]string{image.LabelPrograms: "xdp_pass"}, want: [][4]string{
			{image.LabelPrograms, "", "", "not a JSON object"},
		}},
		"JSON of another shape": {
			labels: map[string]string{image.LabelMaps: `{"counts":["hash"]}`}, want: [][4]string{{image.LabelMaps, "", "", "not a JSON object"}},
		},
		"the first version's labels": {labels: map[string]string{"io.ebpf.bpf_function_name": "count", "io.ebpf.program_type": "xdp"}},
		"the first version's labels, untrue": {labels: map[string]string{"io.ebpf.bpf_function_name": "count", "io.ebpf.program_type": "tc"}, want: [][4]string{
			{`io.ebpf.program_type["count"]`, "tc", "xdp", "claims that program"},
		}},
		"half of the first version's labels": {labels: map[string]string{"io.ebpf.program_type": "tc"}},
		"a null label mentions nothing":      {labels: map[string]string{image.LabelMaps: "null"}},
		"a name that is too long to be shown": {labels: with(image.LabelMaps, strings.Repeat("x", 200), "hash"), want: [][4]string{
			{`io.ebpf.maps["` + strings.Repeat("x", 64) + `…"]`, "hash", "", "does not have"},
		}},
		"a name with control characters in it": {labels: with(image.LabelMaps, "a\x1b[2J", "hash"), want: [][4]string{
			{`io.ebpf.maps["a\x1b[2J"]`, "hash", "", "does not have"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			found := bytecode.CompareLabels(test.labels, labelled())
			if len(found) != len(test.want) {
				t.Fatalf("found %+v, want %d", found, len(test.want))
			}
			for i, m := range found {
				if got := [3]string{m.Path, m.Claimed, m.Actual}; !slices.Equal(got[:], test.want[i][:3]) {
					t.Errorf("got %q, want %q", got, test.want[i][:3])
				}
				if !strings.Contains(m.Message, test.want[i][3]) || m.Fix == "" {
					t.Errorf("message %q lacks %q, or fix %q is empty", m.Message, test.want[i][3], m.Fix)
				}
			}
		})
	}
}

func TestNoMoreMismatchesAreToldThanAnybodyReads(t *testing.T) {
	claims := map[string]string{}
	for i := range 1000 {
		claims[fmt.Sprintf("ghost%03d", i)] = "xdp"
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{image.LabelPrograms: string(text), image.LabelMaps: string(text)}
	found := bytecode.CompareLabels(labels, labelled())
	want := fmt.Sprintf("the object contradicts %d more claims", 2000-64)
	if len(found) != 65 || found[0].Path != `io.ebpf.programs["ghost000"]` || !strings.Contains(found[64].Message, want) || found[64].Fix == "" {
		t.Errorf("%d, the last %+v, want 65 with %q", len(found), found[len(found)-1], want)
	}
}
