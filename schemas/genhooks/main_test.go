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

func TestGeneratedFileIsCurrent(t *testing.T) {
	want, err := os.ReadFile("../module/hooks_gen.cue")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := write(&got, hook.All(), hook.XDPVerdicts()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("run go generate ./schemas (-file +table):\n%s", diff)
	}
}

func TestEveryColumnIsTakenFromTheRow(t *testing.T) {
	rows := []hook.Hook{
		{Name: "one", ProgramType: ebpf.XDP, Shape: hook.NetworkDevice, Sharing: hook.Ordered, Namespaceable: true, MinKernel: "5.9"},
		{Name: "two", ProgramType: ebpf.TracePoint, Shape: hook.Tracepoint, Sharing: hook.Parallel, MinKernel: "4.7"},
	}
	var got bytes.Buffer
	if err := write(&got, rows, []hook.Verdict{{Name: "Pass"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"#Hook: \"one\" |\n\t\"two\"\n",
		"#NamespacedHook: \"one\"\n",
		"#Verdict: \"Pass\"\n",
		`"one": {shape: "NetworkDevice", ordered: true, chained: true, category: false, namespaceable: true, minKernel: "5.9"}`,
		`"two": {shape: "Tracepoint", ordered: false, chained: false, category: true, namespaceable: false, minKernel: "4.7"}`,
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q is not in:\n%s", want, got.String())
		}
	}
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorKeepsItsCause(t *testing.T) {
	if err := write(full{}, hook.All(), nil); !errors.Is(err, errFull) {
		t.Errorf("error: %v", err)
	}
}
