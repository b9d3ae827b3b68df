package gate_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestANamespaceAttachesAProgramOnceToATarget has a program attached twice. A cluster may do so.
func TestANamespaceAttachesAProgramOnceToATarget(t *testing.T) {
	w := newWorld(t)
	pods := &v1alpha1.Pods{}
	tracepoint := func(name string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: name, Pods: pods}
	}
	functions := func(hook string, exclude []string, names ...string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Functions: &v1alpha1.Functions{Names: names, Exclude: exclude}, Pods: pods}
	}
	symbols := func(exclude []string, names ...string) v1alpha1.Attachment {
		chosen := &v1alpha1.Symbols{Names: names, Exclude: exclude}
		return v1alpha1.Attachment{Hook: "uprobe.multi", Binary: &v1alpha1.UserBinary{Path: "/app", Symbols: chosen}, Pods: pods}
	}
	symbol := v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/app", Symbol: "work"}, Pods: pods}
	some := symbol
	some.Pods = &v1alpha1.Pods{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	for sentence, c := range map[string]struct {
		object        string
		first, second v1alpha1.Attachment
		// says is the denial; empty where it is allowed.
		says string
	}{
		"a tracepoint": {
			"tracepoint_count", tracepoint("syscalls/sys_enter_getpgid"), tracepoint("syscalls/sys_enter_getpgid"),
			"is attached to tracepoint syscalls/sys_enter_getpgid by attach[0] already",
		},
		"two tracepoints": {"tracepoint_count", tracepoint("syscalls/sys_enter_getpgid"), tracepoint("syscalls/sys_enter_getsid"), ""},
		"a function among others": {
			"kprobe_count", functions("kprobe", nil, "__x64_sys_unlinkat", "__x64_sys_getpgid"), functions("kprobe", nil, "__x64_sys_getpgid"),
			"is attached to kprobe __x64_sys_getpgid by attach[0] already",
		},
		"other functions":         {"kprobe_count", functions("kprobe", nil, "__x64_sys_unlinkat"), functions("kprobe", nil, "__x64_sys_getpgid"), ""},
		"a function of a binary":  {"uprobe_count", symbol, symbol, "is attached to uprobe /app:work by attach[0] already"},
		"a function of some Pods": {"uprobe_count", symbol, some, ""},
		"a glob": {
			"uprobe_count", symbols([]string{"a", "b"}, "w*"), symbols([]string{"b", "a"}, "w*"),
			"uprobe.multi /app:w* without a, b by attach[0]",
		},
		// Only a node knows that they choose the same.
		"globs that exclude others": {"uprobe_count", symbols([]string{"a"}, "w*"), symbols([]string{"b"}, "w*"), ""},
		"one link and one for many": {"uprobe_count", symbols(nil, "work", "other"), symbols([]string{"x*"}, "work"), "/app:work by attach[0]"},
	} {
		t.Run(sentence, func(t *testing.T) {
			wide := app(w.signed(c.object), programOf(t, c.object), c.first, c.second)
			denied := ""
			for _, r := range mustEvaluate(t, w.evaluator(), namespaced(wide)).Decision().Denied {
				if r.Rule == "inspect/hook" {
					// No object here was built for the hooks of many functions.
					continue
				}
				if r.Rule != "inspect/scope" || r.Path != "spec.programs[0].attach[1]" || r.Fix == "" {
					t.Errorf("denied by %s at %s: %s", r.Rule, r.Path, r.Message)
				}
				denied += r.Message
			}
			if !strings.Contains(denied, c.says) || (denied == "") != (c.says == "") {
				t.Errorf("denied: %q, want %q", denied, c.says)
			}
			for _, r := range mustEvaluate(t, w.evaluator(), wide).Decision().Denied {
				if r.Rule != "inspect/hook" {
					t.Errorf("a cluster is denied it by %s: %s", r.Rule, r.Message)
				}
			}
		})
	}
}
