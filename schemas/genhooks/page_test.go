package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
)

func TestEveryRowStandsOnceInItsSection(t *testing.T) {
	var b bytes.Buffer
	if err := writePage(&b, hook.All(), nil); err != nil {
		t.Fatal(err)
	}
	attached, refused, ok := strings.Cut(b.String(), "## Known, and not supported today")
	attached, _, begun := strings.Cut(attached, "## From a section")
	refused, seen, cut := strings.Cut(refused, "## Tried on kernels")
	if !ok || !begun || !cut {
		t.Fatal("the page has no section for sections, for the hooks that are not supported, or for what was tried")
	}
	for _, h := range hook.All() {
		in, out := attached, refused
		if !h.Attachable {
			in, out = refused, attached
		}
		if row := "\n| `" + h.Name + "` |"; strings.Count(in, row) != 1 || strings.Contains(out, row) {
			t.Errorf("%s is not once in its section and nowhere else", h.Name)
		}
		if row := "\n| `" + h.Name + "` |"; strings.Contains(seen, row) != h.Attachable {
			t.Errorf("%s is among the hooks that were tried: %v", h.Name, !h.Attachable)
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

func TestWhatWasSeenOnKernelsIsSaidWithItsReason(t *testing.T) {
	rows := []hook.Hook{{Name: "a", Attachable: true}, {Name: "b", Attachable: true}, {Name: "c"}, {Name: "d", Attachable: true}}
	kernels := []conformance.Kernel{
		{Name: "old", Hooks: map[string]conformance.Outcome{"a": conformance.Fires, "b": conformance.Later, "d": "unsupported: has no loader"}},
		{Name: "new", Hooks: map[string]conformance.Outcome{"a": conformance.Fires, "b": conformance.Forbidden, "d": conformance.Later}},
		{Name: "own", Hooks: map[string]conformance.Outcome{"a": conformance.BuiltWithout, "b": conformance.Fires}},
	}
	var b strings.Builder
	seen(&b, rows, kernels)
	want := tried + `| hook | old | new | own |
|---|---|---|---|
| ` + "`a`" + ` | yes | yes | no (1) |
| ` + "`b`" + ` | no (2) | no (3) | yes |
| ` + "`d`" + ` | no (4) | no (2) | no (5) |

1. This kernel was built without it.
2. A later kernel brought the hook; see its column above.
3. This kernel forbids it to every process, whatever its capabilities.
4. This kernel has no loader.
5. Not tried yet.
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
