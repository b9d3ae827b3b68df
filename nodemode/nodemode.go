// Package nodemode is node mode: one host, no cluster. It brings definitions in
// from a git repository or a folder, lets the gate evaluate them, seals what is
// allowed, and hands it to the agent in the same process.
//
// It is the only package that joins the controller's half and the agent's. It decides
// nothing that the gate or the agent decides: it says when, and what of the answers is kept.
//
// Size: the steps of a sync share the state of one loop.
package nodemode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/agent/metrics/programs"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/nodemode/diskmemory"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/policies"
)

// DefaultNamespaceShare is the default of Options.NamespaceShare.
const DefaultNamespaceShare = agent.DefaultNamespaceShare

// Options says where definitions come from, who decides, and where state is
// kept.
type Options struct {
	// Source is a git URL (https, ssh, file) or a folder. Needed.
	Source string
	// Ref is a branch, a tag or a full commit hash; empty means the
	// repository's HEAD. It is not for folders.
	Ref string
	// Path is the folder of the definitions within the source.
	Path string
	// Auth tells a git server who asks.
	Auth source.GitAuth
	// Policies, Replaces and Signers are those of settings.Options.
	Policies, Replaces, Signers []string
	// State is a folder of the host's own: keys, caches, sealed intents and the
	// socket. Needed.
	State string
	// BPFFS is the folder of the pins; empty means the agent's default.
	BPFFS string
	// MapsDir has the readers' folders of applications that grant maps to groups of the host; empty makes none.
	MapsDir string
	// CgroupRoot is the cgroup2 mount; empty means where it is mounted.
	CgroupRoot string
	// RuntimeEndpoint is the socket of the host's container runtime, whose pods definitions
	// choose; empty means the units of systemd and the cgroups of the host.
	RuntimeEndpoint string
	// NRISocket is its socket for NRI plug-ins, by which programs are attached before a
	// container starts; empty means soon after.
	NRISocket string
	// NamespaceShare is how much of what programs share on a hook of an interface, and
	// of MapMemory, one namespace may have, in percent; zero means DefaultNamespaceShare, 100 all of it.
	NamespaceShare int
	// SharedTargets bounds what namespaces have at targets that tasks of others run, too; a bound of zero is the agent's default.
	SharedTargets quota.Limits
	// MapMemory is what the maps of all applications may take together, in bytes; zero
	// sets no limit.
	MapMemory int64
	// Interval is how often the source is asked and everything evaluated again.
	// Zero means 30 seconds.
	Interval time.Duration
	// Labels are the node's, beside the well-known ones of the host.
	Labels map[string]string
	// InsecureRegistries are reached over plain http.
	InsecureRegistries []string
	// EvaluationTimeout bounds what registries may take for one evaluation, however
	// slowly they answer. Zero means two minutes.
	EvaluationTimeout time.Duration
	// AllowedRegistries are the registries that definitions may name; see
	// registry.Options. Empty means every one at a public address.
	AllowedRegistries []string
	// RegistryBackoff is how long to wait before a registry is asked again; see
	// registry.Options.
	RegistryBackoff time.Duration
	// Cost measures what programs cost while Run runs; nil measures nothing.
	Cost *cost.Clock
	// DryRun evaluates and loads nothing.
	DryRun bool
	// Version is the build's, for those who look at the host.
	Version string
	// Log gets what happens; nil discards it.
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// settings are the options of settings.Load.
func (o Options) settings() settings.Options {
	return settings.Options{Policies: o.Policies, Replaces: o.Replaces, Signers: o.Signers}
}

// source are the options of the source.
func (o Options) source() source.Options {
	return source.Options{Address: o.Source, Ref: o.Ref, Path: o.Path, Auth: o.Auth, State: o.State}
}

// Host is node mode on one host.
type Host struct {
	opts   Options
	lock   *os.File
	images *registry.Client
	sealer *intent.Sealer
	// memory keeps what registries offered as signatures.
	memory *diskmemory.Memory
	// agent is nil on a dry run, and viewer describes the host.
	agent   *agent.Agent
	viewer  *nodeview.Viewer
	metrics *metrics

	// settingsChanged receives a value after policies or signers changed; nil where they are not watched.
	settingsChanged <-chan struct{}
	// What follows belongs to the goroutine that syncs.
	settings settingsState
	catalog  catalog
	tags     map[string]*tag
	// read is when definitions were first read as they are, by UID.
	read   map[string]read
	pruned time.Time
	began  time.Time
	// rounds is how often act has begun.
	rounds int
	// unloaded are the applications that a policy had unloaded, by UID, weighed
	// is the revision of settings whose effect is weighed, or was.
	unloaded map[string]unload
	weighed  weighing
	// defined is what definitions say of what runs, for the next start.
	defined keptDefinitions
	// versions are the last ones of each application.
	versions histories
	// origin is the source from which absence counts; another one's is held by unload protection.
	origin source.Origin

	// evaluations asks registries beside the goroutine that syncs.
	evaluations *evaluations.Queue

	// mu guards what the socket reads and writes.
	mu     sync.Mutex
	status Status
	// published are the versions as the status shows them.
	published map[string][]v1alpha1.ApplicationVersion
	// confirmed are the revisions that a human let through unload protection.
	confirmed map[string]bool
	// requested is when another look at an application was asked for, by UID.
	requested map[string]time.Time
	wake      chan struct{}
	// engine evaluates policies in processes of their own.
	engine *policies.Engine
}

// New opens the state, reads the settings and starts the agent's half. It
// fetches nothing yet. Settings that cannot be read are an error here, while
// later ones that cannot be read leave those active.
func New(ctx context.Context, o Options) (_ *Host, err error) {
	if o.Interval < 0 {
		return nil, fmt.Errorf("start: interval %s is negative: give how long to wait between two looks, such as 30s", o.Interval)
	}
	o.Interval = cmp.Or(o.Interval, 30*time.Second)
	o.Now = clock.OrSystem(o.Now)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	h := &Host{
		opts: o, metrics: newMetrics(), tags: map[string]*tag{}, read: map[string]read{}, confirmed: map[string]bool{},
		requested: map[string]time.Time{},
		wake:      make(chan struct{}, 1), began: o.Now(), unloaded: map[string]unload{}, evaluations: evaluations.NewQueue(o.Now),
	}
	h.metrics.registry.MustRegister(shortfall{h.Status})
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.openState(); err != nil {
		return nil, err
	}
	h.engine = policies.NewEngine(policies.EngineOptions{})
	h.catalog = catalog{path: o.Path, log: o.Log, places: map[string]string{}, waited: 5 * time.Second}
	if h.catalog.source, err = source.New(o.source()); err != nil {
		return nil, err
	}
	h.images, err = registry.NewClient(registry.Options{
		CacheDir: filepath.Join(o.State, "bytecode"), CacheBytes: maxCacheBytes, InsecureRegistries: o.InsecureRegistries, UserAgent: "skep",
		AllowedRegistries: allowedRegistries(o.AllowedRegistries), Answered: h.metrics.gate.Answered, Backoff: o.RegistryBackoff,
	}.ForInspection())
	if err != nil {
		return nil, fmt.Errorf("open registries: %w", err)
	}
	if !o.DryRun {
		if err := h.openAgent(); err != nil {
			return nil, err
		}
	}
	h.viewer = newViewer(h)
	kept := keptIn(o, settingsFile, settingsType, h.sealer)
	h.settings = settingsState{reader: settings.NewReader(o.settings(), h.engine), log: o.Log, now: o.Now, kept: kept, gate: gate.Options{
		Images:   h.images,
		Memory:   h.memory,
		Observer: h.metrics.gate,
		CPUs:     possibleCPUs(),
		Now:      o.Now,
		Timeout:  o.EvaluationTimeout,
		StaleFor: staleFor,
	}}
	h.settings.restore(ctx)
	h.defined.open(o, h.sealer)
	openVersions(h)
	err = h.settings.open(ctx)
	if err != nil && len(h.live()) > 0 {
		// What this host was given before comes back all the same.
		h.settings.fail(err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// What lies in the state folder beside keys and caches: what the agent keeps, the signers and policies that were read
// last, what definitions say of what runs, and the lock.
const (
	agentFolder     = "agent"
	settingsFile    = "settings.json"
	definitionsFile = "definitions.json"
	historyFile     = "history.json"
	lockFile        = "lock"
)

// openState makes the state folder, locks it, and reads the sealing key or
// makes one on first use.
func (h *Host) openState() error {
	h.memory = &diskmemory.Memory{Dir: filepath.Join(h.opts.State, "memory"), MaxBytes: maxMemoryBytes}
	if err := os.MkdirAll(h.opts.State, 0o700); err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	if err := pins.CloseToOthers(h.opts.State); err != nil {
		return fmt.Errorf("open state %s: %w", h.opts.State, err)
	}
	if err := os.MkdirAll(h.memory.Dir, 0o700); err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(h.opts.State, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	h.lock = lock
	if err := alone(lock); err != nil {
		return fmt.Errorf("open state %s: %w; stop that one or name another --state", h.opts.State, err)
	}
	h.origin = readOrigin(h.opts.State)
	path := filepath.Join(h.opts.State, "seal.key")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if data, err = intent.GenerateKey(); err == nil {
			err = atomicfile.Write(path, data)
		}
	}
	if err != nil {
		return fmt.Errorf("open sealing key: %w", err)
	}
	h.sealer, err = intent.ParseKey(data)
	return err
}

// openAgent starts the half that knows the kernel.
func (h *Host) openAgent() error {
	trust, err := intent.NewTrust(h.sealer.Public())
	if err != nil {
		return err
	}
	o := agent.Options{
		BPFFS:      h.opts.BPFFS,
		MapsDir:    h.opts.MapsDir,
		StateDir:   filepath.Join(h.opts.State, agentFolder),
		Trust:      trust,
		Fetch:      h.object,
		CgroupRoot: h.opts.CgroupRoot, NamespaceShare: h.opts.NamespaceShare, MapMemory: h.opts.MapMemory,
		SharedTargets: h.opts.SharedTargets,
		Labels:        hostLabels(h.opts.Labels),
		Log:           h.opts.Log,
		Clock:         h.opts.Now,
		Observer:      h.metrics.agent,
		MapMetrics:    mapmetrics.New(h.opts.Log),
	}
	h.metrics.registry.MustRegister(o.MapMetrics)
	if o.Containers = o.HostContainers(); h.opts.RuntimeEndpoint != "" {
		o.Containers = o.RuntimeContainers(h.opts.RuntimeEndpoint, h.opts.NRISocket)
	}
	if h.agent, err = agent.New(o); err != nil {
		return err
	}
	h.metrics.registry.MustRegister(programs.New(programs.Options{Status: h.agent.Status, Clock: h.opts.Cost}))
	return nil
}

// Close lets everything go. What is loaded stays.
func (h *Host) Close() error {
	var errs []error
	if h.agent != nil {
		errs = append(errs, h.agent.Close())
	}
	if h.engine != nil {
		h.engine.Close()
	}
	if h.lock != nil {
		errs = append(errs, h.lock.Close())
	}
	return errors.Join(errs...)
}

// Run syncs until ctx ends: at once, at every interval, and soon after a
// folder, a policy or a signer changed. listen, where not nil, serves metrics
// and health. Programs stay when it returns, and a Left in the state folder.
func (h *Host) Run(ctx context.Context, listen net.Listener) error {
	if err := forget(h.opts.State); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	fail := make(chan error, 3)
	start := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				fail <- err
			}
		})
	}
	if h.agent != nil {
		start(h.agent.Run)
	}
	if h.opts.Cost != nil {
		group.Go(func() { h.opts.Cost.Run(ctx) })
	}
	start(h.serveSocket)
	if listen != nil {
		start(func(ctx context.Context) error { return h.serveMetrics(ctx, listen) })
	}
	settings, source := h.opts.watchSettings(), h.opts.watchSource(h.catalog.source)
	h.settingsChanged = settings.changed
	// Neither is waited for at the end: a disk that hangs may keep it.
	go settings.run(ctx)
	go source.run(ctx)
	err := h.loop(ctx, fail, source.changed)
	cancel()
	group.Wait()
	h.evaluations.Wait()
	if h.agent != nil {
		leave(h)
	}
	return err
}

// gathered is how long answers of registries are gathered before they are acted
// on: at a start there are many.
const gathered = 50 * time.Millisecond

// loop syncs whenever there is a reason to, until ctx ends. moved receives a value after the source changed.
func (h *Host) loop(ctx context.Context, fail <-chan error, moved <-chan struct{}) error {
	h.Sync(ctx)
	next := time.NewTimer(h.opts.Interval)
	defer next.Stop()
	var gather <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-fail:
			return err
		case <-h.evaluations.Ended():
			if gather == nil {
				gather = time.After(gathered)
			}
			continue
		case <-gather:
			gather = nil
			h.act(ctx, h.opts.Now(), false)
			continue
		case <-next.C:
		case <-h.settingsChanged:
		case <-moved:
		case <-h.wake:
		}
		h.Sync(ctx)
		next.Reset(h.opts.Interval)
	}
}

// Once syncs once and waits until the agent has done, or tried once, what
// follows from it. It leaves a Left in the state folder, unless it loads nothing.
func (h *Host) Once(ctx context.Context) (Status, error) {
	h.catalog.waited = fetchTimeout
	if h.agent == nil {
		h.whole(ctx)
		return h.Status(), ctx.Err()
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- h.agent.Run(run) }()
	h.whole(ctx)
	err := h.agent.Settled(ctx)
	stop()
	err = errors.Join(err, <-done)
	settleVersions(h)
	leave(h)
	return h.Status(), err
}

// whole syncs once and acts on every answer that the sync had registries asked
// for.
func (h *Host) whole(ctx context.Context) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	settings := h.opts.watchSettings()
	h.settingsChanged = settings.changed
	// A disk that hangs may keep it.
	go settings.run(watching)
	h.Sync(ctx)
	for ctx.Err() == nil {
		if idle := h.evaluations.Idle(); idle {
			// An answer that came before this look was signalled before it.
			select {
			case <-h.evaluations.Ended():
			case <-h.wake:
			default:
				return
			}
		} else {
			select {
			case <-h.evaluations.Ended():
			case <-h.wake:
			case <-h.settingsChanged:
				h.settings.refresh(ctx)
				revoke(ctx, h)
			case <-ctx.Done():
				return
			}
		}
		h.act(ctx, h.opts.Now(), false)
	}
}

// DryRun reports whether the host evaluates and loads nothing.
func (h *Host) DryRun() bool { return h.agent == nil }

// allowedRegistries are those that definitions may name: whoever writes one must not
// have a process of root ask what it reaches inside.
func allowedRegistries(listed []string) []string {
	if len(listed) == 0 {
		return []string{transport.AnyPublic}
	}
	return listed
}
