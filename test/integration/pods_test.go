package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// calls counts what an agent asks of what holds its kernel.
type calls struct {
	*memory
	n atomic.Int64
}

// Accept implements kube.Holder.
func (c *calls) Accept(envelopes ...intent.Envelope) error {
	c.n.Add(1)
	return c.memory.Accept(envelopes...)
}

// Report implements kube.Holder.
func (c *calls) Report() []agent.ApplicationStatus {
	c.n.Add(1)
	return c.memory.Report()
}

// Retrust implements kube.Holder.
func (c *calls) Retrust(t *intent.Trust) { c.n.Add(1); c.memory.Retrust(t) }

// Relabel implements kube.Holder.
func (c *calls) Relabel(labels map[string]string) { c.n.Add(1); c.memory.Relabel(labels) }

// Forget implements kube.Holder.
func (c *calls) Forget(there func(string) bool) { c.n.Add(1); c.memory.Forget(there) }

// Run implements kube.Holder. It takes no turn that nobody asked for, so that
// every call has a cause.
func (c *calls) Run(ctx context.Context) error {
	c.turn()
	<-ctx.Done()
	return nil
}

// told is what the API server tells of Pods.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (p *told) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *told) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && strings.Contains(r.URL.Path, "/pods") {
			response.Body = &overheard{Reader: io.TeeReader(response.Body, p), Closer: response.Body}
		}
		return response, err
	})
}

// overheard is a body that somebody else hears too.
type overheard struct {
	io.Reader
	io.Closer
}

// of are those Pods among names that were told of.
func (p *told) of(names ...string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return !bytes.Contains(p.text.Bytes(), []byte(name)) })
}

// costs are what was spent: the controller's looks where agents run, the turns
// of its other reconcilers, requests to the API server by the controller and by
// the node, and the calls on what holds the node's kernel.
type costs struct{ looks, turns, controller, node, calls int64 }

// since is what was spent after an earlier count.
func (s costs) since(before costs) costs {
	return costs{s.looks - before.looks, s.turns - before.turns, s.controller - before.controller, s.node - before.node, s.calls - before.calls}
}

// thrift is a controller that looks where agents run, and a node with an agent,
// of which all that they spend is counted.
type thrift struct {
	*cluster
	told             told
	controller, node traffic
	holder           *calls
}

func newThrift(t *testing.T) *thrift {
	w := &thrift{cluster: newCluster(t), holder: &calls{memory: newMemory("node-0")}}
	w.control(func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(w.controller.wrap)
		o.Config.Wrap(w.told.wrap)
		o.Agents.Selector, o.Interval = labels.SelectorFromSet(agentLabels()), time.Hour
	})
	w.cluster.node("node-0", nil)
	w.pod("node-0", agentLabels())
	folder := t.TempDir()
	one, err := simulated("node-0", folder, w.orders(folder, 1), &w.node, func(o *kube.Options) {
		o.Config.Wrap(w.told.wrap)
		o.Holder, o.InventoryInterval = w.holder, time.Hour
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- one.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := errors.Join(<-done, one.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// spent is what was spent until now.
func (w *thrift) spent() costs {
	w.t.Helper()
	s := costs{controller: w.controller.spent().Requests, node: w.node.spent().Requests, calls: w.holder.n.Load()}
	families, err := metrics.Registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			of := &s.turns
			for _, l := range m.GetLabel() {
				if l.GetValue() == "agents" {
					of = &s.looks
				}
			}
			*of += int64(m.GetCounter().GetValue())
		}
	}
	return s
}

// rests waits until nothing is spent for longer than anything is put off, and
// returns what was until then.
func (w *thrift) rests() costs {
	w.t.Helper()
	last, quiet := w.spent(), 0
	w.until("everything to come to rest", func() error {
		now := w.spent()
		if quiet++; now != last {
			last, quiet = now, 0
		}
		if quiet < 40 {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	return last
}

// TestPodsOfOthersCostNothing has twenty Pods that are none of Skep's become
// Running beside a hundred applications, on the node of an agent and in its
// namespace. Another Pod of an agent's comes after them and changes nothing: the
// API server tells of Pods in their order, so whoever was told of it was told of
// all that it is ever told.
func TestPodsOfOthersCostNothing(t *testing.T) {
	const applications, pods = 100, 20
	w := newThrift(t)
	w.create(w.Signer("team-a"))
	ref, _ := w.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	for i := range applications {
		w.create(application(fmt.Sprintf("app-%d", i), ref))
	}
	for i := range applications {
		w.condition(application(fmt.Sprintf("app-%d", i), ref), v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	}
	before := w.rests()
	if before.looks == 0 || before.turns < applications || before.controller == 0 || before.node == 0 || before.calls < applications {
		t.Fatalf("not all is counted: %+v", before)
	}
	var others []string
	for i := range pods {
		others = append(others, w.pod("node-0", map[string]string{"app": fmt.Sprint(i)}).Name)
	}
	own := w.pod("node-0", agentLabels())
	w.until("the controller to look where agents run", func() error {
		if len(w.told.of(own.Name)) == 0 || w.spent().looks == before.looks {
			return errors.New("it does not")
		}
		return nil
	})
	spent := w.rests().since(before)
	if heard := w.told.of(others...); len(heard) > 0 {
		t.Errorf("of %d Pods of others the API server told of %d: %v", pods, len(heard), heard)
	}
	// An agent's Pod comes, and becomes ready.
	if spent.looks > 2 || spent.turns != 0 || spent.calls != 0 {
		t.Errorf("%d Pods of others and one of an agent's cost %+v", pods, spent)
	}
	// A watch ends after minutes, and is begun again.
	if spent.controller > 5 || spent.node > 2 {
		t.Errorf("%d Pods of others and one of an agent's cost %+v", pods, spent)
	}
}
