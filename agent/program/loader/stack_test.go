package loader

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// stackOf loads one program of the object stack, in a scope where one is named.
func stackOf(t *testing.T, kind, name, scope string, at v1alpha1.Attachment) (*Revision, *ebpf.Program, error) {
	t.Helper()
	p := intent.Payload{Application: v1alpha1.Identity{Kind: kind, Name: "app"}, Programs: []v1alpha1.Program{{Name: name, Attach: []v1alpha1.Attachment{at}}}}
	loads, instance := plan.Loads, plan.Loads(p.Application, name, at)[0].Instance
	if scope != "" {
		loads, instance = inScopes(map[string]string{name: scope}), plan.InScope(instance, scope)
	}
	prepared, err := prepare(opened(t, p), programs.Object("stack"), loads, onThisKernel())
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := Load(prepared, nil, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, r.Programs[instance], nil
}

// copied is what a program of the object stack wrote into its maps, and how often it ran.
func copied(t *testing.T, r *Revision) (runs uint64, body []byte) {
	t.Helper()
	for _, name := range []string{"all", "part"} {
		if r.Maps[name] == nil {
			// The program writes into the other one.
			continue
		}
		one, err := r.Maps[name].LookupBytes(uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		body = append(body, one...)
	}
	bss, err := r.Maps[".bss"].LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(bss), body
}

// ways are the programs of the object stack that read what they never wrote.
func ways() []string {
	return []string{"whole", "in_function", "in_callback", "by_offset", "by_sum", "by_steps"}
}

// TestANamespaceReadsNothingThatTheKernelLeftOnItsStack runs programs of packets. As one of the
// cluster, at least one shows what was there.
func TestANamespaceReadsNothingThatTheKernelLeftOnItsStack(t *testing.T) {
	tasks.Root(t)
	shown := 0
	for _, hook := range []string{"xdp", "tcx/ingress", "cgroup_skb/egress"} {
		for _, name := range ways() {
			for _, kind := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
				r, p, err := stackOf(t, kind, name, "", v1alpha1.Attachment{Hook: hook})
				if err != nil {
					if kind == v1alpha1.KindBpfApplication {
						t.Errorf("load %s for %s: %v", name, hook, err)
					}
					continue
				}
				if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 3}); err != nil {
					t.Fatal(err)
				}
				runs, body := copied(t, r)
				clean := bytes.Equal(body, make([]byte, len(body)))
				if kind == v1alpha1.KindBpfApplication && (runs != 3 || !clean) {
					t.Errorf("%s at %s ran %d times and copied %x", name, hook, runs, body)
				}
				if kind != v1alpha1.KindBpfApplication && !clean {
					shown++
				}
			}
		}
	}
	if shown == 0 {
		t.Skip("SKIPPED the half of the cluster: this kernel lets no program read what it did not write, or left nothing there")
	}
}

// TestWhatALoopWroteStays runs a function whose first instruction is the target of a jump.
func TestWhatALoopWroteStays(t *testing.T) {
	tasks.Root(t)
	r, p, err := stackOf(t, v1alpha1.KindBpfApplication, "begins_in_loop", "", v1alpha1.Attachment{Hook: "xdp"})
	if err != nil {
		t.Fatalf("%v\n%s", err, LogOf(err))
	}
	if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
		t.Fatal(err)
	}
	if runs, _ := copied(t, r); runs != 1 {
		t.Errorf("it ran to its end %d times", runs)
	}
}

// TestAProgramThatNeedsTheWholeStackTwiceIsToldWhy has a function that reads below its argument.
func TestAProgramThatNeedsTheWholeStackTwiceIsToldWhy(t *testing.T) {
	tasks.Root(t)
	_, _, err := stackOf(t, v1alpha1.KindBpfApplication, "below_argument", "", v1alpha1.Attachment{Hook: "xdp"})
	if err == nil || !strings.Contains(err.Error(), "move the buffer into a map") {
		t.Errorf("it is loaded, or not told what to do: %v", err)
	}
}

// TestAGuardedProgramReadsNothingThatTheKernelLeftOnItsStack runs programs of tasks in a scope, whose
// guard uses the stack itself.
func TestAGuardedProgramReadsNothingThatTheKernelLeftOnItsStack(t *testing.T) {
	tasks.Root(t)
	for hook, c := range map[string]struct {
		at     v1alpha1.Attachment
		attach func(*ebpf.Program) (io.Closer, error)
	}{
		"kprobe": {v1alpha1.Attachment{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{"__x64_sys_getpgid"}}},
			func(p *ebpf.Program) (io.Closer, error) {
				return link.Kprobe("__x64_sys_getpgid", p, nil)
			}},
		"raw_tp": {v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"}, onSysEnter},
	} {
		for _, name := range ways() {
			t.Run(name+" at "+hook, func(t *testing.T) {
				cgroup := tasks.Cgroup(t, "skep-stack")
				task := tasks.Start(t, cgroup)
				r, p, err := stackOf(t, v1alpha1.KindBpfApplication, name, "s", c.at)
				if err != nil {
					t.Fatalf("%v\n%s", err, LogOf(err))
				}
				if err := r.Scopes()["s"].Set([]guard.Member{member(t, cgroup)[0]}); err != nil {
					t.Fatal(err)
				}
				l, err := c.attach(p)
				if err != nil {
					t.Skipf("SKIPPED: this kernel does not attach it: %v", err)
				}
				defer func() { _ = l.Close() }()
				task.Does("getpgid", 10)
				if runs, body := copied(t, r); runs < 10 || !bytes.Equal(body, make([]byte, len(body))) {
					t.Errorf("it ran %d times and copied %x", runs, body)
				}
			})
		}
	}
}
