package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestMoreAtOneTargetThanTheKernelRunsIsDenied: once for a target, and only what every node has to attach counts.
func TestMoreAtOneTargetThanTheKernelRunsIsDenied(t *testing.T) {
	for sentence, c := range map[string]struct {
		programs int
		attach   func(i int) v1alpha1.Attachment
		denied   string
	}{
		"as many at a tracepoint": {63, tracepointOf(1), ""},
		"one more at a tracepoint": {66, tracepointOf(1), "spec.programs[63].attach[0]: an application has at most 63 programs of tracepoint at one target, " +
			"since the kernel runs 64 there, and this is number 64 (fix: attach fewer, or use raw_tp or tp_btf)"},
		"at several tracepoints": {126, tracepointOf(2), ""},
		"at a raw tracepoint":    {200, func(int) v1alpha1.Attachment { return v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"} }, ""},
		"on an interface, whatever the order is": {64, onInterface("tcx/ingress"),
			"spec.programs[63].attach[0]: an application has at most 63 programs of tcx/ingress at one target, since the kernel runs 63 there, " +
				"and this is number 64 (fix: attach fewer)"},
		"filters, of which the kernel runs any number": {100, onInterface("tc/ingress"), ""},
		"in a cgroup":     {64, func(int) v1alpha1.Attachment { return v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/a"} }, ""},
		"too many in one": {65, func(int) v1alpha1.Attachment { return v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/a"} }, "number 65 (fix: attach fewer)"},
		"by several hooks": {100, func(i int) v1alpha1.Attachment {
			return v1alpha1.Attachment{Hook: []string{"cgroup/bind4", "cgroup/bind6"}[i%2], Cgroup: "/a"}
		}, ""},
		"at a function, by hooks that share its trampoline": {38, func(i int) v1alpha1.Attachment { return atFunction(i, "tcp_connect") },
			"at most 37 programs of fentry, fexit, fmod_ret and lsm at one target, since the kernel runs 38 there, and this is number 38 " +
				"(fix: attach fewer, or use kprobe or kretprobe)"},
		"at as many functions": {60, func(i int) v1alpha1.Attachment { return atFunction(i, fmt.Sprint("f", i)) }, ""},
		"what a node may leave out": {70, func(i int) v1alpha1.Attachment {
			a := tracepointOf(1)(i)
			a.Optional = i%7 == 0
			return a
		}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			spec := &v1alpha1.BpfApplicationSpec{}
			for i := range c.programs {
				spec.Programs = append(spec.Programs, v1alpha1.Program{Name: fmt.Sprint("p", i), Attach: []v1alpha1.Attachment{c.attach(i)}})
			}
			r := &denials{}
			fitTargets(r, spec, spec.Programs)
			var said []string
			for _, reason := range r.reasons {
				said = append(said, fmt.Sprintf("%s: %s (fix: %s)", reason.Path, reason.Message, reason.Fix))
			}
			if got := strings.Join(said, "\n"); len(said) > 1 || (got == "") != (c.denied == "") || !strings.HasSuffix(got, c.denied) {
				t.Errorf("denied: %s, want %s", got, c.denied)
			}
		})
	}
}

// tracepointOf has programs take turns at so many tracepoints.
func tracepointOf(many int) func(int) v1alpha1.Attachment {
	return func(i int) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: fmt.Sprint("syscalls/", i%many)}
	}
}

func onInterface(name string) func(int) v1alpha1.Attachment {
	return func(i int) v1alpha1.Attachment {
		priority := int32(i)
		return v1alpha1.Attachment{Hook: name, Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}, Priority: &priority}
	}
}

func atFunction(i int, name string) v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: []string{"fexit", "fentry"}[i%2], Functions: &v1alpha1.Functions{Names: []string{name}}}
}
