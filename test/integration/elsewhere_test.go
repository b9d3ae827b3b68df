package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/programs"
)

// TestWhatGoesWrongElsewhere holds Skep to what other operators of eBPF programs
// get wrong: see the prior art that the design cites.
func TestWhatGoesWrongElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: making nodes and loading programs needs root")
	}
	c := newCluster(t)
	served, _ := c.serve(t.TempDir())
	c.create(c.Signer("team-a"))
	m := c.machines(buildAgent(t), served, 1)[0]
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
		before, _ := m.counted()
		c.until("packets to be counted again", func() error {
			m.send(1)
			if now, _ := m.counted(); now == before {
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
		c.buried(second, "deleted")
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

	t.Run("what the verifier refuses is told in its words, and neither hammered nor written again and again", func(t *testing.T) {
		rejected := fleet(push("xdp_rejected"))
		rejected.Name, rejected.Spec.Programs[0].Name = "rejected", "xdp_rejected"
		c.create(rejected)
		failed := c.condition(rejected, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodesFailed")
		if !strings.Contains(failed.Message, m.name+": ") {
			t.Errorf("no node is named: %s", failed.Message)
		}
		t.Log(failed.Message)
		version := func() string {
			var n v1alpha1.BpfNode
			if err := c.Get(t.Context(), client.ObjectKey{Name: m.name}, &n); err != nil {
				t.Fatal(err)
			}
			return n.ResourceVersion
		}
		before, status := version(), rejected.ResourceVersion
		quiet := time.NewTimer(10 * time.Second)
		defer quiet.Stop()
		select {
		case <-quiet.C:
		case <-t.Context().Done():
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(rejected), rejected); err != nil {
			t.Fatal(err)
		}
		if now := version(); now != before || rejected.ResourceVersion != status {
			t.Errorf("within 10 s the node wrote (%s, %s) or the controller did (%s, %s)", before, now, status, rejected.ResourceVersion)
		}
		m.counts()
	})
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
