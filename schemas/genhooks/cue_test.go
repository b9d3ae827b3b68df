package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

func TestEveryColumnOfTheSchemaIsTakenFromTheRow(t *testing.T) {
	rows := []hook.Hook{
		{Name: "one", ProgramType: ebpf.XDP, Shape: hook.NetworkDevice, Sharing: hook.Ordered, Namespaceable: true, MinKernel: "5.9"},
		{Name: "two", ProgramType: ebpf.TracePoint, Shape: hook.Tracepoint, Sharing: hook.Parallel, MinKernel: "4.7"},
		{Name: "three", ProgramType: ebpf.Netfilter, Shape: hook.NetworkNamespace, Sharing: hook.Ordered, MinKernel: "6.4"},
	}
	var got bytes.Buffer
	if err := writeCUE(&got, rows, []hook.Verdict{{Name: "Pass"}}, []hook.Event{{Name: "cpu-clock"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"#Hook: \"one\" |\n\t\"two\" |\n\t\"three\"\n",
		"#NamespacedHook: \"one\"\n",
		"#Verdict: \"Pass\"\n",
		"#Event: \"cpu-clock\"\n",
		`"one": {shape: "NetworkDevice", ordered: true, chained: true, category: false, namespaceable: true, minKernel: "5.9"}`,
		`"two": {shape: "Tracepoint", ordered: false, chained: false, category: true, namespaceable: false, minKernel: "4.7"}`,
		`"three": {shape: "NetworkNamespace", ordered: false, chained: false, category: false, netfilter: true, namespaceable: false, minKernel: "6.4"}`,
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q is not in:\n%s", want, got.String())
		}
	}
}
