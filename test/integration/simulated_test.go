package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// memory stands in for a kernel: what is sealed for the node is loaded at once.
type memory struct {
	node   string
	passed chan struct{}
	// attachments is how many each application is said to have.
	attachments int

	mu    sync.Mutex
	trust *intent.Trust
	held  map[string]intent.Opened
}

// newMemory is a kernel that holds nothing yet.
func newMemory(node string) *memory {
	return &memory{node: node, passed: make(chan struct{}, 1), held: map[string]intent.Opened{}}
}

// Accept implements kube.Holder.
func (m *memory) Accept(envelopes ...intent.Envelope) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range envelopes {
		o, err := m.trust.Open(e)
		if err != nil {
			return err
		}
		o = o.For(m.node)
		m.held[o.Payload().UID] = o
	}
	m.turn()
	return nil
}

// turn says that a turn is over.
func (m *memory) turn() {
	select {
	case m.passed <- struct{}{}:
	default:
	}
}

// Report implements kube.Holder. Its order is the same each time, as a real
// one's is: another order would be another report.
func (m *memory) Report() []agent.ApplicationStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []agent.ApplicationStatus
	for _, uid := range slices.Sorted(maps.Keys(m.held)) {
		o := m.held[uid]
		p := o.Payload()
		s := agent.ApplicationStatus{Application: p.Application, UID: uid, Serial: p.Serial, Version: p.VersionSerial(), Tombstone: p.Tombstone, Held: o.Held(),
			Wanted: o.Revision(), Revision: o.Revision(),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionTrue, Reason: "Deployed"}}}
		if p.Tombstone || len(p.Programs) == 0 {
			s.Wanted, s.Revision, s.Conditions[0].Status = "", "", metav1.ConditionFalse
		} else if m.attachments > 0 {
			s.Programs = []agent.ProgramStatus{{Name: "count", ID: 1, Links: m.links()}}
		}
		all = append(all, s)
	}
	return all
}

// links are attachments of an application.
func (m *memory) links() []agent.LinkStatus {
	all := make([]agent.LinkStatus, m.attachments)
	for i := range all {
		on := fmt.Sprintf("eth%d", i)
		all[i] = agent.LinkStatus{Hook: "tcx/ingress", Target: on, ID: uint32(i + 1), State: agent.Attached, On: plan.Target{Interface: on, Ifindex: i + 1}}
	}
	return all
}

// Retrust implements kube.Holder.
func (m *memory) Retrust(t *intent.Trust) { m.mu.Lock(); m.trust = t; m.mu.Unlock() }

// Relabel implements kube.Holder.
func (m *memory) Relabel(map[string]string) {}

// Forget implements kube.Holder.
func (m *memory) Forget(func(string) bool) {}

// Reconciled implements kube.Holder.
func (m *memory) Reconciled() <-chan struct{} { return m.passed }

// Run implements kube.Holder. It looks around as often as a real one.
func (m *memory) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		m.turn()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// traffic counts what goes to the API server and comes from it.
type traffic struct {
	requests, writes, sent, received atomic.Int64
}

// spent is what traffic counted; as JSON it goes from one process to the other.
type spent struct{ Requests, Writes, Sent, Received int64 }

func (t *traffic) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		t.requests.Add(1)
		if r.Method != http.MethodGet {
			t.writes.Add(1)
		}
		if r.ContentLength > 0 {
			t.sent.Add(r.ContentLength)
		}
		response, err := next.RoundTrip(r)
		if err == nil {
			response.Body = &counted{response.Body, &t.received}
		}
		return response, err
	})
}

func (t *traffic) spent() spent {
	return spent{t.requests.Load(), t.writes.Load(), t.sent.Load(), t.received.Load()}
}

// since is what was spent after an earlier count.
func (s spent) since(before spent) spent {
	return spent{s.Requests - before.Requests, s.Writes - before.Writes, s.Sent - before.Sent, s.Received - before.Received}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// counted is a body whose bytes are counted as they are read.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// simulatedEnv has the test binary be a number of agents instead, with the
// folder that has all they need to know.
const simulatedEnv = "SKEP_SIMULATED"

// orders is what the process of the agents is told.
type orders struct {
	Nodes             int
	Kubeconfig, Trust string
	// Mirror is where they ask for requests of users, if anywhere, and Authority the file of who signs its certificate.
	Mirror, Authority string
	// Attachments is how many each application has on a node.
	Attachments int
}

// simulate runs agents until its input ends. To each line it answers what they
// spent until then.
func simulate(folder string) error {
	body, err := os.ReadFile(filepath.Join(folder, "orders"))
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(body, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var count traffic
	var agents sync.WaitGroup
	for i := range o.Nodes {
		one, err := simulated(fmt.Sprintf("node-%d", i), folder, o, &count)
		if err != nil {
			cancel()
			return err
		}
		agents.Go(func() { _ = one.Run(ctx) })
		agents.Go(func() { one.ServeRequests(ctx) })
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := json.NewEncoder(os.Stdout).Encode(count.spent()); err != nil {
			cancel()
			return err
		}
	}
	cancel()
	agents.Wait()
	return nil
}

// simulated is the real agent loop over a kernel in memory.
func simulated(name, folder string, o orders, count *traffic, change ...func(*kube.Options)) (*kube.Agent, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Wrap(count.wrap)
	state := filepath.Join(folder, name)
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, err
	}
	holder := newMemory(name)
	holder.attachments = o.Attachments
	options := kube.Options{
		NodeName: name, Version: "simulated", Config: config, TrustFile: o.Trust, TrustInterval: time.Hour,
		Node:   agent.Options{StateDir: state},
		Holder: holder, View: o.Mirror != "",
		Mirror:  kube.Mirror{URL: o.Mirror, CAFile: o.Authority, TokenFile: filepath.Join(folder, name+".token")},
		Profile: &v1alpha1.KernelProfile{Release: "6.12.0", Architecture: "amd64", BTF: true},
		Inventory: func(context.Context) (inventory.Inventory, error) {
			return inventory.Inventory{}, nil
		},
	}
	for _, f := range change {
		f(&options)
	}
	return kube.New(options)
}

// agents is a process that simulates nodes.
type agents struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// simulates starts agents on so many nodes, which are there already. They
// believe the cluster's key.
func (c *cluster) simulates(nodes int, change ...func(folder string, o *orders)) *agents {
	t := c.t
	t.Helper()
	folder := t.TempDir()
	o := c.orders(folder, nodes)
	for _, f := range change {
		f(folder, &o)
	}
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "orders"), body, 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env, child.Stderr = append(os.Environ(), simulatedEnv+"="+folder), os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = child.Wait() })
	return &agents{t: t, in: in, out: bufio.NewScanner(out)}
}

// orders writes what so many agents need to believe the cluster's key.
func (c *cluster) orders(folder string, nodes int) orders {
	c.t.Helper()
	o := orders{Nodes: nodes, Kubeconfig: filepath.Join(folder, "kubeconfig"), Trust: filepath.Join(folder, "trust.pem")}
	sealer, err := intent.ParseKey(c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	public, err := sealer.MarshalPublic()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(o.Trust, public, 0o600), writeKubeconfig(c.plane.Config, o.Kubeconfig)); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// writeKubeconfig writes an admin's kubeconfig.
func writeKubeconfig(config *rest.Config, path string) error {
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["you"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["x"], file.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "you"}, "x"
	return clientcmd.WriteToFile(*file, path)
}

// spent asks for what they spent until now.
func (a *agents) spent() spent {
	a.t.Helper()
	var s spent
	if _, err := io.WriteString(a.in, "\n"); err != nil || !a.out.Scan() {
		a.t.Fatal(errors.Join(errors.New("the agents do not answer"), err, a.out.Err()))
	}
	if err := json.Unmarshal(a.out.Bytes(), &s); err != nil {
		a.t.Fatal(err)
	}
	return s
}
