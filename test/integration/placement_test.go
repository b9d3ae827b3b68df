package integration

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// resident is a real agent in this process, on this kernel, and what is counted
// of it: requests to the API server, connections to the mirror, and how often it
// looked at its kernel.
type resident struct {
	c       *cluster
	name    string
	api     traffic
	fetches atomic.Int64
	turns   atomic.Int64
}

// resident starts an agent on a node that it makes. A nil profile is found out.
func (c *cluster) resident(name string, served served, profile *v1alpha1.KernelProfile) *resident {
	c.t.Helper()
	r := &resident{c: c, name: name}
	n := c.node(name, nil)
	bpffs := fmt.Sprintf("/sys/fs/bpf/skep-test-%d-%s", os.Getpid(), name)
	config := rest.CopyConfig(c.plane.Config)
	config.Wrap(r.api.wrap)
	dir := c.t.TempDir()
	o := kube.Options{
		NodeName: n.Name, Version: "test", Config: config, TrustFile: filepath.Join(dir, "trust.pem"), Profile: profile,
		Mirror: kube.Mirror{URL: "https://" + r.toll(strings.TrimPrefix(served.url, "https://")),
			CAFile: filepath.Join(dir, "ca.pem"), TokenFile: filepath.Join(dir, "token"), ServerName: "example.com"},
		Node: agent.Options{BPFFS: bpffs, StateDir: filepath.Join(dir, "state"), SweepInterval: 100 * time.Millisecond, Clock: func() time.Time {
			r.turns.Add(1)
			return time.Now()
		}},
		// Others load programs while the tests run.
		Inventory: func(context.Context) (inventory.Inventory, error) { return inventory.Inventory{}, nil },
		Debounce:  kube.Jitter{Least: 50 * time.Millisecond, Most: 100 * time.Millisecond},
		Log:       slog.New(slog.DiscardHandler),
	}
	sealer, err := intent.ParseKey(c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	public, err := sealer.MarshalPublic()
	if err != nil {
		c.t.Fatal(err)
	}
	for file, body := range map[string][]byte{o.TrustFile: public, o.Mirror.CAFile: served.authority,
		o.Mirror.TokenFile: []byte(c.token("skep-agent", mirror.Audience))} {
		if err := os.WriteFile(file, body, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	r.run(o)
	return r
}

// run runs the agent until the test ends, and then takes away what is its own.
func (r *resident) run(o kube.Options) {
	t := r.c.t
	t.Helper()
	a, err := kube.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := agent.Cleanup(o.Node.BPFFS, o.Node.StateDir); err != nil {
			t.Error(err)
		}
		_ = os.Remove(o.Node.BPFFS)
	})
}

// toll is a way to a server on which connections are counted.
func (r *resident) toll(to string) string {
	t := r.c.t
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			r.fetches.Add(1)
			go func() {
				defer near.Close()
				far, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
				if err != nil {
					return
				}
				defer far.Close()
				go func() { _, _ = io.Copy(far, near); _ = far.(*net.TCPConn).CloseWrite() }()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return l.Addr().String()
}

// reported waits until the agent says of an application what is wanted, or, where
// that is nil, its first word.
func (r *resident) reported(app client.Object, want v1alpha1.NodeState) v1alpha1.NodeApplication {
	r.c.t.Helper()
	var said v1alpha1.NodeApplication
	r.c.until(fmt.Sprintf("%s to report %s", r.name, want), func() error {
		n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
		if err := r.c.Get(r.c.t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		if app == nil && n.Status.Agent.Version != "" {
			return nil
		}
		if app != nil {
			if of := n.Status.Of(string(app.GetUID())); of != nil && of.State == want {
				said = *of
				return nil
			}
		}
		return fmt.Errorf("it reports %+v", n.Status.Applications)
	})
	return said
}

func TestANodeThatLacksAHookIsToldSoAndItsAgentDoesNotTry(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	served, _ := c.serve(t.TempDir())
	c.conform()
	able := c.resident("able", served, nil)
	lacking := c.resident("lacking", served, &v1alpha1.KernelProfile{
		Release: "6.1.0", BTF: true, Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP", "TracePoint"},
	})
	able.reported(nil, "")
	lacking.reported(nil, "")
	before := lacking.api.spent().Writes

	c.create(c.Signer("team-a"))
	signed, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := application("app", signed)
	c.create(app)
	able.reported(app, v1alpha1.NodeLoaded)
	said := lacking.reported(app, v1alpha1.NodeUnsupported)
	ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")

	const why = "kernel 6.1.0 has no hook tracepoint"
	want := v1alpha1.NodeFailure{Node: "lacking", State: v1alpha1.NodeUnsupported, Message: why}
	if n := app.Status.Nodes; n.Summary != "1/2" || n.Unsupported != 1 || len(n.Failing) != 1 || n.Failing[0] != want {
		t.Errorf("nodes are %+v, want %+v failing", n, want)
	}
	if said.Message != why || said.Revision != "" {
		t.Errorf("the agent says %q, and runs %q", said.Message, said.Revision)
	}
	if want := "loaded on 1 of 2 nodes, 1 unsupported; lacking: " + why; ready.Message != want {
		t.Errorf("it says %q, want %q", ready.Message, want)
	}
	turns := lacking.turns.Load()
	c.until("the agent to go round again and again", func() error {
		if n := lacking.turns.Load() - turns; n < 20 {
			return fmt.Errorf("%d turns", n)
		}
		return nil
	})
	if n := lacking.api.spent().Writes - before; n != 1 {
		t.Errorf("%d writes, want one", n)
	}
	if n := lacking.fetches.Load(); n != 0 || able.fetches.Load() == 0 {
		t.Errorf("%d fetches, and %d where it runs", n, able.fetches.Load())
	}
}

// kernel has a node's agent say what its kernel can do.
func (c *cluster) kernel(node string, profile v1alpha1.KernelProfile) {
	c.t.Helper()
	n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	c.change(n, func() { n.Status.Kernel = profile })
}

func TestAProgramTypeIsNeededAndAHelperIsOnlyDoubted(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.conform()
	for name, profile := range map[string]v1alpha1.KernelProfile{
		"a-old":     {Release: "5.4.0-42-generic"},
		"b-lacking": {Release: "6.1.0", ProgramTypes: []string{"XDP"}},
		"c-old":     {Release: "5.7.19"},
		"d-young":   {Release: "6.1.0", ProgramTypes: []string{"TracePoint"}},
	} {
		c.node(name, nil)
		c.kernel(name, profile)
	}
	c.create(c.Signer("team-a"))
	signed, _ := c.Push("events:v1", programs.Object("tp_exec_events"), "team-a")
	app := application("events", signed)
	app.Spec.Programs[0].Name = "tp_exec_events"
	c.create(app)
	waiting := c.condition(app, v1alpha1.ConditionDeployed, metav1.ConditionFalse, "Progressing")
	lacks := "b-lacking: kernel 6.1.0 has no program type TracePoint"
	doubt := "a-old: kernel 5.4.0-42-generic may have no helper bpf_ringbuf_submit, which came with Linux 5.8"
	if want := "loaded on 0 of 4 nodes, 3 pending (a-old and 2 more), 1 unsupported; " + lacks + "; " + doubt + " (and 1 more)"; waiting.Message != want {
		t.Errorf("it says %q, want %q", waiting.Message, want)
	}
	if p := c.opened(app); p == nil || !p.Reaches("a-old") {
		t.Errorf("it is held back from what is only doubted: %+v", p)
	}

	c.answers("c-old", app, v1alpha1.NodeLoaded, "")
	c.answers("d-young", app, v1alpha1.NodeLoaded, "")
	c.summary(app, "2/4")
	if got := app.Status.Nodes.KernelWarning; got != doubt {
		t.Errorf("doubts %q, want %q", got, doubt)
	}
	c.answers("a-old", app, v1alpha1.NodeLoaded, "")
	ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	if want := "loaded on 3 of 4 nodes, 1 unsupported; " + lacks; ready.Message != want || app.Status.Nodes.KernelWarning != "" {
		t.Errorf("it says %q, doubts %q", ready.Message, app.Status.Nodes.KernelWarning)
	}
}
