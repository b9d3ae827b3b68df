package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
)

func TestEveryRowStandsOnceInItsSection(t *testing.T) {
	var b bytes.Buffer
	if err := writePage(&b, hook.All()); err != nil {
		t.Fatal(err)
	}
	attached, refused, ok := strings.Cut(b.String(), "## Known, and not supported today")
	if !ok {
		t.Fatal("the page has no section for the hooks that are not supported")
	}
	for _, h := range hook.All() {
		in, out := attached, refused
		if !h.Attachable {
			in, out = refused, attached
		}
		if row := "\n| `" + h.Name + "` |"; strings.Count(in, row) != 1 || strings.Contains(out, row) {
			t.Errorf("%s is not once in its section and nowhere else", h.Name)
		}
	}
}

func TestEveryColumnOfThePageIsTakenFromTheRow(t *testing.T) {
	for want, h := range map[string]hook.Hook{
		"| `one` | `a`, `b/c` | XDP | NetworkDevice | 5.9 | Ordered | LinkUpdate | Traffic | yes |\n": {
			Name: "one", Sections: []string{"a", "b/c"}, ProgramType: ebpf.XDP, Shape: hook.NetworkDevice, MinKernel: "5.9",
			Namespaceable: true, Sharing: hook.Ordered, Replace: hook.ByLinkUpdate, Risk: hook.Traffic},
		"| `two` |  | Kprobe | KernelFunction | 4.1 | Parallel | Overlap | Observe |  |\n": {
			Name: "two", ProgramType: ebpf.Kprobe, Shape: hook.KernelFunction, MinKernel: "4.1",
			Sharing: hook.Parallel, Replace: hook.ByOverlap, Risk: hook.Observe},
	} {
		if diff := cmp.Diff(want, line(h)); diff != "" {
			t.Errorf("row of %s (-want +got):\n%s", h.Name, diff)
		}
	}
}

func TestEveryTargetIsExplained(t *testing.T) {
	for _, h := range hook.All() {
		if !strings.Contains(intro, string(h.Shape)) {
			t.Errorf("the page says nothing of target %s, which %s has", h.Shape, h.Name)
		}
	}
}
