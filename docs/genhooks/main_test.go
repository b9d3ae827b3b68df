package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
)

func TestThePageIsCurrent(t *testing.T) {
	page, err := os.ReadFile("../hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := write(&got, hook.All()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(page), got.String()); diff != "" {
		t.Errorf("run go generate ./docs/... (-page +table):\n%s", diff)
	}
}

func TestEveryRowStandsOnceInItsSection(t *testing.T) {
	var b bytes.Buffer
	if err := write(&b, hook.All()); err != nil {
		t.Fatal(err)
	}
	attached, refused, ok := strings.Cut(b.String(), "## Known, and refused today")
	if !ok {
		t.Fatal("the page has no section for the hooks that are refused")
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

func TestEveryColumnIsTakenFromTheRow(t *testing.T) {
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

// full is a disk without room.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorKeepsItsCause(t *testing.T) {
	if err := write(full{}, hook.All()); !errors.Is(err, errFull) {
		t.Errorf("error: %v", err)
	}
}
