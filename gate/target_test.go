package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

func TestTheBinaryOfASectionIsThatOfTheAttachment(t *testing.T) {
	for section, want := range map[string]*v1alpha1.UserBinary{
		"uprobe//bin/bash:readline":              {Path: "/bin/bash", Symbol: "readline"},
		"uretprobe//bin/bash:readline+0x10":      {Path: "/bin/bash", Symbol: "readline", Offset: 16},
		"uprobe//bin/bash:readline+x":            nil,
		"uprobe/libc.so.6:malloc":                {Path: "libc.so.6", Symbol: "malloc"},
		"uprobe.multi//usr/lib/libssl.so:SSL_*":  {Path: "/usr/lib/libssl.so", Symbols: &v1alpha1.Symbols{Names: []string{"SSL_*"}}},
		"uretprobe.multi.s//usr/lib/libssl.so:f": {Path: "/usr/lib/libssl.so", Symbols: &v1alpha1.Symbols{Names: []string{"f"}}},
		"usdt//usr/bin/python3:python:line":      {Path: "/usr/bin/python3", USDT: &v1alpha1.USDT{Provider: "python", Name: "line"}},
		"uprobe.multi/lib/libssl.so:f":           nil,
	} {
		h, target, ok := hook.FromSection(section)
		if !ok {
			t.Fatalf("section %s implies no hook", section)
		}
		var a v1alpha1.Attachment
		fillTarget(&a, h, target)
		if diff := cmp.Diff(want, a.Binary); diff != "" {
			t.Errorf("%s (-want +got):\n%s", section, diff)
		}
	}
}

func TestTheFunctionOfASectionIsThatOfTheAttachment(t *testing.T) {
	for section, want := range map[string]*v1alpha1.Functions{
		"kprobe/tcp_connect+0x10":  {Names: []string{"tcp_connect"}, Offset: 16},
		"fentry/tcp_connect":       {Names: []string{"tcp_connect"}},
		"fentry/veth:veth_xmit":    {Names: []string{"veth_xmit"}, Module: "veth"},
		"fexit.s/veth:veth_xmit":   {Names: []string{"veth_xmit"}, Module: "veth"},
		"fmod_ret/veth:veth_xmit":  {Names: []string{"veth_xmit"}, Module: "veth"},
		"kprobe.multi/nf_*":        {Names: []string{"nf_*"}},
		"lsm/veth:not_of_a_module": {Names: []string{"veth:not_of_a_module"}},
	} {
		h, target, ok := hook.FromSection(section)
		if !ok {
			t.Fatalf("section %s implies no hook", section)
		}
		var a v1alpha1.Attachment
		fillTarget(&a, h, target)
		if diff := cmp.Diff(want, a.Functions); diff != "" {
			t.Errorf("%s (-want +got):\n%s", section, diff)
		}
	}
}

// attachment reads one that is written as fields in YAML.
func attachment(t *testing.T, fields ...string) (a v1alpha1.Attachment) {
	t.Helper()
	fields = slices.DeleteFunc(fields, func(f string) bool { return f == "" })
	if err := yaml.UnmarshalStrict([]byte("{"+strings.Join(fields, ", ")+"}"), &a); err != nil {
		t.Fatalf("%s: %v", fields, err)
	}
	return a
}

// denied is what is denied of an attachment of an application of the cluster.
func denied(a v1alpha1.Attachment) error {
	r := &denials{}
	completeAttachment(r, v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication}, "at", a)
	return r.err()
}

func TestTheExamplesSayWhatTheirSectionsSay(t *testing.T) {
	for _, e := range hook.Examples() {
		implied, target, _ := hook.FromSection(e.Section)
		said := v1alpha1.Attachment{}
		if implied.Name == e.Hook && target != "" {
			fillTarget(&said, implied, target)
		}
		if diff := cmp.Diff(attachment(t, e.Said), said); diff != "" {
			t.Errorf("%s (-example +section):\n%s", e.Section, diff)
		}
		if err := denied(attachment(t, "hook: "+e.Hook, e.Said, e.Added)); err != nil {
			t.Errorf("%s: %v", e.Section, err)
		}
	}
}

func TestAnExampleOfItsTargetIsEnoughForEveryHook(t *testing.T) {
	for _, h := range hook.All() {
		if !h.Attachable {
			continue
		}
		if err := denied(attachment(t, "hook: "+h.Name, h.Needs())); err != nil {
			t.Errorf("%s with %q: %v", h.Name, h.Needs(), err)
		}
	}
}

func TestAHookThatIsNotAttachedIsDeniedForThatAlone(t *testing.T) {
	for _, h := range hook.All() {
		why, instead := h.Obstacle()
		denial := new(Denial)
		if err := denied(v1alpha1.Attachment{Hook: h.Name}); h.Attachable {
			continue
		} else if !errors.As(err, &denial) || len(denial.Reasons) != 1 || !strings.Contains(denial.Reasons[0].Message, why) ||
			denial.Reasons[0].Fix != "use "+instead {
			t.Errorf("%s: %v", h.Name, err)
		}
	}
}

func TestAnIteratorOverOneThingIsDenied(t *testing.T) {
	for section, want := range map[string]string{
		"iter/task": "", "iter.s/task_vma": "", "iter/bpf_map": "",
		"iter/bpf_map_elem": "use iter/bpf_map,", "iter.s/bpf_map_elem": "use iter/bpf_map,", "iter/bpf_sk_storage_map": "use iter/bpf_map,",
		"iter/sockmap": "use iter/bpf_map,", "iter/cgroup": "use iter/task,",
	} {
		h, target, _ := hook.FromSection(section)
		r := &denials{}
		fitHook(r, "at", h, bytecode.Program{Name: "dump", Section: section, Hook: h.Name, Target: target, Type: h.ProgramType.String()})
		switch {
		case want == "" && len(r.reasons) > 0:
			t.Errorf("%s is denied: %v", section, r.reasons)
		case want != "" && (len(r.reasons) != 1 || r.reasons[0].Rule != "shape/hook" || !strings.HasPrefix(r.reasons[0].Fix, want)):
			t.Errorf("%s: %v, want one reason with the fix %q", section, r.reasons, want)
		}
	}
}

func TestAMissingTargetIsShownByAnExample(t *testing.T) {
	for name, want := range map[string]string{
		"xdp":          "set interfaces, such as interfaces: {primary: true}, or pods",
		"netkit/peer":  "set interfaces, such as interfaces: {primary: true}",
		"cgroup/bind6": "set cgroup, such as cgroup: /system.slice, or pods",
		"kretsyscall":  "set functions, such as functions: {names: [openat]}",
		"perf_event":   "set perfEvent, such as perfEvent: {event: cpu-clock, frequency: 99}",
	} {
		denial := new(Denial)
		if err := denied(v1alpha1.Attachment{Hook: name}); !errors.As(err, &denial) || denial.Reasons[0].Fix != want {
			t.Errorf("%s: %v, want the fix %q", name, err, want)
		}
	}
}

// TestADenialOfWhatASectionSaysNamesIt: the definition has no such field, and may list several programs.
func TestADenialOfWhatASectionSaysNamesIt(t *testing.T) {
	for section, says := range map[string]string{
		"kprobe/tcp_connect+0x10":    "an offset may lead into another function of the kernel",
		"kretprobe/tcp_connect+0x10": "offset 16 is that in one function that is named, on hook kprobe",
		"uprobe//app:main+8":         "an offset may lie inside of an instruction",
	} {
		h, target, _ := hook.FromSection(section)
		fact := bytecode.Program{Name: "p", Section: section, Hook: h.Name, Target: target, Type: h.ProgramType.String()}
		id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "app"}
		var r denials
		filled := fitProgram(&r, id, 0, v1alpha1.Program{Name: "p", Attach: []v1alpha1.Attachment{{Pods: &v1alpha1.Pods{}}}}, fact)
		fitScope(&r, id, []v1alpha1.Program{filled}, bytecode.Facts{Programs: []bytecode.Program{fact}})
		var all []string
		for _, reason := range r.reasons {
			all = append(all, reason.Message)
		}
		want := fmt.Sprintf("program p of section %q: %s", section, says)
		if !slices.ContainsFunc(all, func(message string) bool { return strings.HasPrefix(message, want) }) {
			t.Errorf("denied by %q, want one that begins %q", all, want)
		}
	}
}
