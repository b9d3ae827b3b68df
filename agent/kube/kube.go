// Package kube is the agent as a client of the API server: it hands sealed
// intents to package agent, and reports in the node's BpfNode how they are doing.
//
// It believes nothing of what it watches but the seal of an intent, unloads
// nothing because something is absent, and needs no other component to bring back what ran:
// intents, objects, and the labels of the node are on its disk. It evaluates
// nothing and writes no object but the BpfNode of its own node.
//
// Size: receiving intents, fetching objects and publishing the BpfNode share one connection
// and one record of what was published.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach/profile"
	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/kubeauth"
)

// Holder holds a kernel to sealed intents: *agent.Agent, or what stands in for
// one where a thousand nodes are simulated.
type Holder interface {
	// Accept takes sealed intents, Report tells what became of them.
	Accept(envelopes ...intent.Envelope) error
	Report() []agent.ApplicationStatus
	// Forget drops what is only remembered of applications that are gone.
	Forget(there func(uid string) bool)
	// Relabel and Retrust replace the node's labels and the keys that count.
	Relabel(labels map[string]string)
	Retrust(t *intent.Trust)
	// Run holds the kernel until the context ends; Reconciled yields after a Reconcile.
	Run(ctx context.Context) error
	Reconciled() <-chan struct{}
}

// Options are what an agent of a cluster is told once.
type Options struct {
	// NodeName is the name of the agent's Node. Required.
	NodeName string
	// Version is the build's, for the BpfNode.
	Version string
	// Config reaches the API server. It needs no answer when the agent starts.
	// Required.
	Config *rest.Config
	// TrustFile holds the public keys whose seals count, in PEM. It is read again
	// when it changes. Required.
	TrustFile string
	// TrustInterval is how often it is looked at; default five seconds. The
	// kubelet brings a changed ConfigMap within a minute.
	TrustInterval time.Duration
	// Mirror is where objects come from.
	Mirror Mirror
	// RuntimeEndpoint is the socket of the node's container runtime, such as
	// unix:///run/containerd/containerd.sock, by which the agent finds the node's pods.
	// Empty means that no program is attached in pods.
	RuntimeEndpoint string
	// NRISocket is its socket for NRI plug-ins, such as /var/run/nri/nri.sock, by which programs are
	// attached before a container starts. Empty, or where there is none, they are soon after.
	NRISocket string
	// Kubelet is its folder, such as /var/lib/kubelet, at the kubelet's own path. It is used where Node.Mounter is set.
	Kubelet string
	// BpfmanVolumes answers pods that were written for bpfman's driver, too. It needs Node.VolumePins: they know no socket.
	BpfmanVolumes bool
	// Node are the options of the agent underneath; Trust, Labels, Fetch, Profile, Containers
	// and NamespaceLabels are filled in. StateDir is required.
	Node agent.Options
	// Holder stands in for the agent underneath; default is one by Node.
	Holder Holder
	// Profile is what the node's kernel can do; default is found out.
	Profile *v1alpha1.KernelProfile
	// Inventory lists the programs in the kernel; default is inventory.List.
	Inventory func(context.Context) (inventory.Inventory, error)
	// InventoryInterval is how often the kernel is asked for the ids of its programs,
	// which are listed where they changed and at each tenth time; default one minute.
	InventoryInterval time.Duration
	// Debounce bounds how long a change waits for others before it is written;
	// default 0.2 to 1 second.
	Debounce Jitter
	// Retry bounds the wait after a write that failed, doubled each time;
	// default one second to one minute.
	Retry Jitter
	// Again is how long an intent waits that could not be kept, as on a full
	// disk; default 30 seconds to a minute.
	Again Jitter
	// MapReads has the agent read maps for users of the cluster, as the controller seals their requests.
	MapReads bool
	// View has the agent describe the node for users of the cluster, as the controller seals their requests.
	View bool
	// Cost measures what programs cost, while the caller has it run; nil measures nothing.
	Cost *cost.Clock
	// InsecureMetrics serves metrics to every client; default is to those whom the API
	// server lets get the path.
	InsecureMetrics bool
	// Log is where the agent writes; default none.
	Log *slog.Logger
}

// Jitter is a wait of at least Least and at most Most.
type Jitter struct{ Least, Most time.Duration }

// next draws a wait.
func (j Jitter) next() time.Duration {
	return j.Least + time.Duration(rand.Float64()*float64(j.Most-j.Least)) //nolint:gosec // jitter guards no secret
}

// after is the wait after so many failures in a row, with a quarter of jitter.
func (j Jitter) after(failures int) time.Duration {
	wait := j.Least << min(failures-1, 16)
	return Jitter{min(wait, j.Most), min(wait+wait/4, j.Most)}.next()
}

// Agent is one node's agent.
type Agent struct {
	opts    Options
	api     *api
	holder  Holder
	closer  func() error
	self    *self
	intents *intents
	own     *own
	metrics *metrics
	// namespaces are those of the cluster, whose labels choose pods.
	namespaces *namespaces
	// changed wakes the reporter, and passed tells them that a turn ended.
	changed, passed chan struct{}
	health          health
	// volumes are those of pods that read maps; nil where there are none.
	volumes *volumes.Keeper
	// trust are the keys that count now.
	trust atomic.Pointer[intent.Trust]
	// guard is whom metrics are shown to; nil where to everybody.
	guard *kubeauth.Guard
	// viewer describes the node.
	viewer *nodeview.Viewer
}

// New makes an agent: it reads the trust and what is on disk, and locks the
// pins. It asks nothing of the API server. It fails as agent.New does.
func New(o Options) (*Agent, error) {
	if o.NodeName == "" || o.Config == nil || o.TrustFile == "" || o.Node.StateDir == "" {
		return nil, errors.New("make agent: NodeName, Config, TrustFile and Node.StateDir are needed")
	}
	if o.BpfmanVolumes && (o.Node.Mounter == "" || !o.Node.VolumePins) {
		return nil, errors.New("make agent: volumes for bpfman's pods (--volume-bpfman) need a mounter and pins (--mounter, --volume-pins): such pods know no socket")
	}
	fillDefaults(&o)
	trust, err := readTrust(o.TrustFile)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	a := &Agent{opts: o, metrics: newMetrics(), changed: make(chan struct{}, 1), passed: make(chan struct{}, 1), health: health{now: time.Now}}
	if a.api, err = newAPI(o.Config, o.NodeName); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	if !o.InsecureMetrics {
		if a.guard, err = newGuard(o.Config); err != nil {
			return nil, fmt.Errorf("make agent: %w", err)
		}
	}
	if o.Profile == nil {
		a.opts.Profile = new(profile.Of(o.Log))
	}
	a.self = openSelf(filepath.Join(o.Node.StateDir, labelsFile), o.NodeName, o.Log)
	a.namespaces = openNamespaces(filepath.Join(o.Node.StateDir, namespacesFile), a.wake, o.Log)
	if a.holder = o.Holder; a.holder == nil {
		agent, err := agent.New(a.node(trust.parsed))
		if err != nil {
			return nil, err
		}
		a.holder, a.closer, a.volumes = agent, agent.Close, agent.Volumes()
	}
	a.retrust(trust.parsed)
	if labels := a.self.labels(); labels != nil {
		a.holder.Relabel(labels)
	}
	a.intents = &intents{agent: a, known: map[string]seen{}, again: make(chan struct{}, 1)}
	a.own = &own{name: o.NodeName, changed: a.poke}
	a.metrics.watch(a)
	a.viewer = a.newViewer()
	return a, nil
}

// node are the options of the agent underneath.
func (a *Agent) node(trust *intent.Trust) agent.Options {
	o := a.opts.Node
	o.Node, o.Trust, o.Fetch = a.opts.NodeName, trust, a.fetch
	o.Observer, o.Profile = a.metrics.kernel, a.opts.Profile
	o.NamespaceLabels, o.MapMetrics = a.namespaces.labels, mapmetrics.New(a.opts.Log)
	a.metrics.registry.MustRegister(o.MapMetrics)
	if a.opts.RuntimeEndpoint != "" {
		o.Containers = o.RuntimeContainers(a.opts.RuntimeEndpoint, a.opts.NRISocket)
	}
	return o
}

// waker is a Holder that looks again at what is outside of the kernel and of its intents.
type waker interface{ Wake() }

// wake has the holder look again. It is called after New alone.
func (a *Agent) wake() {
	if w, ok := a.holder.(waker); ok {
		w.Wake()
	}
}

func fillDefaults(o *Options) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Node.Log = cmp.Or(o.Node.Log, o.Log)
	if o.TrustInterval == 0 {
		o.TrustInterval = 5 * time.Second
	}
	if o.InventoryInterval == 0 {
		o.InventoryInterval = time.Minute
	}
	for j, fallback := range map[*Jitter]Jitter{
		&o.Debounce: {200 * time.Millisecond, time.Second},
		&o.Retry:    {time.Second, time.Minute},
		&o.Again:    {30 * time.Second, time.Minute},
	} {
		if *j == (Jitter{}) {
			*j = fallback
		}
	}
	if o.Inventory == nil {
		of := inventory.Of(o.Node.BPFFS)
		o.Inventory = func(ctx context.Context) (inventory.Inventory, error) { return inventory.List(ctx, of) }
	}
}

// Close lets everything go. Programs stay.
func (a *Agent) Close() error {
	if a.closer == nil {
		return nil
	}
	return a.closer()
}

// Status tells how every application is doing, as the BpfNode does and in full.
func (a *Agent) Status() []agent.ApplicationStatus { return a.holder.Report() }

// Run holds the kernel to the intents and reports, until the context ends. What
// runs then stays. It returns nil when the context ends.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var (
		wait sync.WaitGroup
		err  error
	)
	for _, follow := range []func(context.Context){a.followSelf, a.followIntents, a.followNamespaces, a.followOwn, a.followTrust, a.followPasses, a.publish} {
		wait.Go(func() { follow(ctx) })
	}
	if a.self.await(ctx) {
		a.health.begins()
		err = a.holder.Run(ctx)
	}
	cancel()
	wait.Wait()
	return err
}

// poke wakes the reporter.
func (a *Agent) poke() { poke(a.changed) }

// poke leaves a word in a channel that holds one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
