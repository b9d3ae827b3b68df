package loader

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/need"
)

// variables prepares the object with a variable of every kind.
func variables(t *testing.T, set map[string]string) *Prepared {
	t.Helper()
	raw := map[string]apiextensionsv1.JSON{}
	for name, value := range set {
		raw[name] = apiextensionsv1.JSON{Raw: []byte(value)}
	}
	p, err := Prepare(opened(t, intent.Payload{Variables: raw, Programs: program("xdp_variables", "xdp", "")}), programs.Object("xdp_variables"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestVariablesAreCarriedWithoutTheRightToAskForTheirTypes(t *testing.T) {
	need.Kernel(t)
	was, now := variables(t, nil), variables(t, map[string]string{"in_data": "77"})
	old := load(t, was, nil)
	next := load(t, now, old)
	section := func(m *ebpf.Map) []byte {
		t.Helper()
		value, err := m.LookupBytes(uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	// What the programs wrote into every byte of .data.
	written := bytes.Repeat([]byte{1}, len(section(old.Maps[".data"])))
	if err := old.Maps[".data"].Put(uint32(0), written); err != nil {
		t.Fatal(err)
	}
	var carried map[string][]string
	var err error
	drop.Capabilities(t, func() { _, err = CarryVariables(now, nil, old, next) }, unix.CAP_SYS_ADMIN)
	if err == nil || !strings.Contains(err.Error(), "lacks CAP_SYS_ADMIN") {
		t.Errorf("CarryVariables without the old object = %v", err)
	}
	drop.Capabilities(t, func() { carried, err = CarryVariables(now, was, old, next) }, unix.CAP_SYS_ADMIN)
	if err != nil {
		t.Fatal(err)
	}
	if got := carried[".data"]; !slices.Contains(got, "data_config") || slices.Contains(got, "in_data") {
		t.Errorf("carried %v", carried)
	}
	got := section(next.Maps[".data"])
	if !bytes.Contains(got, []byte{77, 0, 0, 0}) || bytes.Count(got, []byte{1}) < len(got)-8 {
		t.Errorf(".data = %v", got)
	}
	// With the right, the kernel tells the same.
	again, err := CarryVariables(now, nil, old, next)
	if err != nil || !slices.Equal(again[".data"], carried[".data"]) {
		t.Errorf("CarryVariables by the kernel's types = %v, %v", again, err)
	}
}
