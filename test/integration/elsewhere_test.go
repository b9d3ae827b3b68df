package integration

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatGoesWrongElsewhere holds Skep to what other operators of eBPF programs
// get wrong: see the prior art that the design cites.
func TestWhatGoesWrongElsewhere(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	machines, _ := c.begin(1)
	m := machines[0]
	push := func(object string) string {
		ref, _ := c.Push(object+":v1", programs.Object(object), "team-a")
		return ref
	}
	app := fleet(push("xdp_count"))
	c.create(app)
	c.summary(app, "1/1")
	m.counts()
	// changes waits until a change of the definition runs on the node.
	changes := func(edit func()) {
		t.Helper()
		serial := app.Status.Serial
		c.change(app, edit)
		c.until("the change to be loaded", func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				return err
			}
			if n := app.Status.Nodes; app.Status.Serial == serial || n == nil || n.Summary != "1/1" {
				return fmt.Errorf("serial %d, nodes %+v, conditions %v", app.Status.Serial, n, app.Status.Conditions)
			}
			return nil
		})
	}

	t.Run("global data that changes is loaded", func(t *testing.T) {
		changes(func() { app.Spec.Variables = map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte("1000000")}} })
		before, _ := m.counted()
		m.send(1000)
		if now, _ := m.counted(); now-before > 10 {
			t.Errorf("%d of 1000 packets were counted; the new value samples one of a million", now-before)
		}
		changes(func() { app.Spec.Variables = nil })
		m.counts()
	})

	t.Run("what is lost behind the agent's back comes back", func(t *testing.T) {
		m.detach()
		m.inNode("sh", "-c", "rm -rf "+bpffsOf+"/skep/*/* 2>/dev/null || true")
		c.until("packets to be counted again", func() error {
			// The counter may be back before what counts.
			before, counters := m.counted()
			m.send(1)
			if now, _ := m.counted(); counters == 0 || now == before {
				return errors.New("none is")
			}
			return nil
		})
		m.counts()
		c.summary(app, "1/1")
	})

	t.Run("a node without an agent is counted apart, and keeps nothing from being ready or deleted", func(t *testing.T) {
		alone := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alone", Labels: map[string]string{"role": "edge"}}}
		c.create(alone)
		c.summary(app, "1/2")
		if app.Status.Nodes.Unreachable != 1 {
			t.Errorf("nodes %+v", app.Status.Nodes)
		}
		c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
		second := fleet(app.Spec.Bytecode.Image)
		second.Name = "second"
		c.create(second)
		c.summary(second, "1/2")
		if err := c.Delete(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		c.unloaded(second, "deleted")
		if err := c.Delete(t.Context(), alone); err != nil {
			t.Fatal(err)
		}
		c.summary(app, "1/1")
	})

	t.Run("a pattern that is none is refused, and does not mean every interface", func(t *testing.T) {
		bad := fleet(app.Spec.Bytecode.Image)
		bad.Name, bad.Spec.Programs[0].Attach[0].Interfaces.Names = "bad", []string{"eth["}
		c.create(bad)
		denied := c.condition(bad, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
		if !strings.Contains(denied.Message, `"eth["`) || c.opened(bad) != nil {
			t.Errorf("%s; sealed %+v", denied.Message, c.opened(bad))
		}
	})

	t.Run("an interface that is not there yet is waited for", func(t *testing.T) {
		late := fleet(app.Spec.Bytecode.Image)
		late.Name, late.Spec.Programs[0].Attach[0].Interfaces.Names = "late", []string{"late0"}
		c.create(late)
		c.condition(late, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
		m.inNode("ip", "link", "add", "late0", "type", "veth", "peer", "name", "late1")
		c.summary(late, "1/1")
		m.inNode("ip", "link", "del", "late0")
	})

	t.Run("a list of programs changes, and what runs changes with it", func(t *testing.T) { m.lists(push("tcx_count")) })

	t.Run("what the verifier refuses is told in its words, tried ever more seldom, and not written again and again", func(t *testing.T) {
		rejected := fleet(push("xdp_rejected"))
		rejected.Name, rejected.Spec.Programs[0].Name = "rejected", "xdp_rejected"
		c.create(rejected)
		failed := c.condition(rejected, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodesFailed")
		if !strings.Contains(failed.Message, m.name+": ") {
			t.Errorf("no node is named: %s", failed.Message)
		}
		t.Log(failed.Message)
		report := func() (n v1alpha1.BpfNode) {
			if err := c.Get(t.Context(), client.ObjectKey{Name: m.name}, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before, status := report(), rejected.ResourceVersion
		tries := m.tries(rejected, 4)
		for i := range tries[1:] {
			// Its back-off is one second at first, and twice that each time: 4 tries in 7
			// seconds. What a load itself takes differs.
			if gap := tries[i+1].Sub(tries[i]); gap < 500*time.Millisecond<<i {
				t.Errorf("try %d came %s after the one before: %v", i+2, gap, tries)
			}
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(rejected), rejected); err != nil {
			t.Fatal(err)
		}
		// Programs of others on this machine are another cause to write.
		now := report()
		others := now.Status.Counts != before.Status.Counts || !slices.Equal(now.Status.Unmanaged, before.Status.Unmanaged)
		if now.ResourceVersion != before.ResourceVersion && !others || rejected.ResourceVersion != status {
			t.Errorf("in %d tries the node wrote (%s, %s) or the controller did (%s, %s)",
				len(tries), before.ResourceVersion, now.ResourceVersion, status, rejected.ResourceVersion)
		}
		m.counts()
	})
}

// tries waits until the agent has failed so often to load an application, while
// interfaces come and go, which wakes it. It returns when each failed.
func (m *machine) tries(app client.Object, n int) (failed []time.Time) {
	m.c.t.Helper()
	m.c.until(fmt.Sprintf("%d tries", n), func() error {
		m.inNode("sh", "-c", "ip link add busy0 type veth peer name busy1 && ip link del busy0")
		said, err := os.ReadFile(m.log.Name())
		if err != nil {
			return err
		}
		failed = nil
		for line := range strings.Lines(string(said)) {
			if !strings.Contains(line, " msg=load application="+app.GetName()+" ") || !strings.Contains(line, " error=") {
				continue
			}
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				m.c.t.Fatal(err)
			}
			failed = append(failed, at)
		}
		if len(failed) < n {
			return fmt.Errorf("it failed at %v", failed)
		}
		return nil
	})
	return failed
}

// lists changes which programs of an object an application lists, one way after
// the other, and holds the node to each list.
func (m *machine) lists(image string) {
	c, t := m.c, m.c.t
	t.Helper()
	one := func(name, hook string) v1alpha1.Program {
		return v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}}}
	}
	in, out := one("count_ingress", "tcx/ingress"), one("count_egress", "tcx/egress")
	app := fleet(image)
	app.Name, app.Spec.Programs = "listed", []v1alpha1.Program{in}
	c.create(app)
	for _, step := range []struct {
		name string
		list []v1alpha1.Program
	}{
		{"one", []v1alpha1.Program{in}},
		{"one is added", []v1alpha1.Program{in, out}},
		{"the first is removed", []v1alpha1.Program{out}},
		{"the one is another", []v1alpha1.Program{in}},
		{"one is added before it", []v1alpha1.Program{out, in}},
		{"they change places", []v1alpha1.Program{in, out}},
	} {
		t.Log(step.name)
		c.change(app, func() { app.Spec.Programs = step.list })
		c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
		var want []string
		for _, p := range step.list {
			want = append(want, "link "+p.Name, "program "+p.Name)
		}
		slices.Sort(want)
		c.until(step.name, func() error {
			if got := m.holds(app); !slices.Equal(got, want) {
				return fmt.Errorf("the node holds %v, want %v", got, want)
			}
			if got, sealed := m.revisions(app), c.open(app).Revision(); !slices.Equal(got, []string{sealed}) {
				return fmt.Errorf("revisions %v are pinned, %s is sealed", got, sealed)
			}
			return nil
		})
	}
	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	m.forgets(app)
}

// holds lists the programs of an application that are pinned on a machine, and
// those that its pinned links run.
func (m *machine) holds(app client.Object) (names []string) {
	m.c.t.Helper()
	m.pinned(func(path string) {
		if !strings.Contains(path, string(app.GetUID())) {
			return
		}
		if p, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
			names = append(names, "program "+m.named(p))
			return
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			m.c.t.Fatal(err)
		}
		p, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			m.c.t.Fatal(err)
		}
		names = append(names, "link "+m.named(p))
	})
	slices.Sort(names)
	return names
}

// named is the name of a program, which is closed.
func (m *machine) named(p *ebpf.Program) string {
	m.c.t.Helper()
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		m.c.t.Fatal(err)
	}
	return info.Name
}

// detach severs every link on the machine by hand, as bpftool link detach does.
func (m *machine) detach() {
	m.c.t.Helper()
	severed := 0
	m.pinned(func(name string) {
		l, err := link.LoadPinnedLink(name, nil)
		if err != nil {
			return
		}
		defer l.Close()
		if err := l.Detach(); err != nil {
			m.c.t.Errorf("detach %s: %v", name, err)
		}
		severed++
	})
	if severed == 0 {
		m.c.t.Error("there was no link to sever")
	}
}
