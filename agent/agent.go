// Package agent takes sealed intents, keeps them across restarts, and keeps the
// kernel of one node as they say.
//
// It is the loop: observe, end what is to go, choose versions, admit, fit chains, plan, act, report; see
// reconcileOnce. Its parts are packages below it, in this order of imports:
//
//   - decide holds what is decided for applications, and the verbs that change it;
//   - admission grants limits, and rejects, leaves out and postpones by those verbs;
//   - prepare brings versions into the kernel, for decide to choose them;
//   - chainfit loads the chains of interfaces, of what was admitted;
//   - act does what was planned, and alone ends anything.
//
// What it keeps here is what a lock protects (accepted), what lasts (env, loop), and what one
// reconcile has (reconcile). It evaluates no intent beyond its seal and its serial, and links
// neither policies nor signatures.
//
// Size: what a lock protects, what lasts and what one reconcile has are one state.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/changes"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/observe"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/starts"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/intent"
)

// Options are what an agent is told once.
type Options struct {
	// BPFFS is the directory for pins, on a BPF file system; default
	// /sys/fs/bpf/skep. One agent holds it.
	BPFFS string
	// StateDir keeps sealed intents and objects, so that a node comes back by
	// itself. Required.
	StateDir string
	// Node is the node's name, by which rollouts come to it; empty where there
	// are none.
	Node string
	// Trust are the keys whose seals count. Required.
	Trust *intent.Trust
	// Fetch returns the object with the digest (sha256:…). What it returns is
	// hashed again. It is called beside the agent's own work, for one digest at
	// a time, and ends when its context does. Required.
	Fetch func(ctx context.Context, objectDigest string) ([]byte, error)
	// FetchTimeout bounds one Fetch; default one minute.
	FetchTimeout time.Duration
	// CgroupRoot is the mount point of cgroup2; default is where it is mounted.
	CgroupRoot string
	// HostRoot is the folder that has the node's files where the agent does not
	// see them as its own: binaries and network namespaces are found below it.
	HostRoot string
	// Labels are the node's; an intent whose selector they do not match is not
	// for this node. Nil means that every intent is.
	Labels map[string]string
	// Profile is what the node's kernel can do: what needs more is neither fetched
	// nor tried. Nil means that this is not known, and that all is tried.
	Profile *v1alpha1.KernelProfile
	// Log is where the agent writes; default none.
	Log *slog.Logger
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// SweepInterval is how often every link is looked at; default one second. Where
	// nothing is left to do, everything else (pins, interfaces, cgroups, binaries) is
	// looked at when the kernel reports a change, and by the first sweep 30 seconds after it
	// was looked at last.
	SweepInterval time.Duration
	// BackOff bounds how long a failing application waits; default one second
	// to five minutes.
	BackOff BackOff
	// NamespaceShare is how much of the limits that programs share on a hook of an
	// interface (maps and functions of an XDP chain, programs on TCX), and of MapMemory,
	// the applications of one namespace may have together, in percent; default 50. 100
	// sets no bound. Cluster-scoped applications have none, and what runs is never
	// taken away by it.
	NamespaceShare int
	// MapMemory is what the maps of all applications may take together when they are
	// full, in bytes; 0 sets no limit. The kernel charges them to the agent. What is
	// in the kernel is never taken away by it, and NamespaceShare holds for it.
	MapMemory int64
	// Containers makes the source of the node's containers, in which programs are attached that
	// choose pods; nil means that there is no source of them. The agent asks it while an intent chooses
	// pods, and closes it. wake has the agent look again where it matters to an intent that the
	// containers of pods changed; without any pods, all may have.
	Containers func(wake func(changed ...containers.Pod)) (containers.Source, error)
	// NamespaceLabels returns the labels of a namespace of the cluster. Nil means that there are no
	// namespaces.
	NamespaceLabels targets.NamespaceLabels
	// Observer counts what is done; default none.
	Observer Observer
}

// DefaultNamespaceShare is the default of Options.NamespaceShare.
const DefaultNamespaceShare = 50

// host is where names of the node are found.
func (o *Options) host() attach.Host {
	return attach.Host{CgroupRoot: o.CgroupRoot, Root: o.HostRoot}
}

// BackOff is how long to wait after failures in a row.
type BackOff = retry.BackOff

// Agent holds one node's kernel to the intents it was given.
type Agent struct {
	*env
	// Store has the accepted intents. Its methods are the agent's: Accept, Status and others.
	*accepted.Store
	// work is held while the kernel is changed. It guards loop.
	work sync.Mutex
	loop *loop
	// reconciled holds a value after a Reconcile.
	reconciled chan struct{}
}

// env is what does not change while the agent runs. Its parts have locks of their own.
type env struct {
	opts    Options
	pins    *pins.Store
	dir     *statedir.Dir
	objects *objects.Cache
	// changes wake Run.
	changes *changes.Changes
	// containers is the source of the node's containers; nil where there is none.
	containers containers.Source
	// starts are the containers that wait to start; nil where none is announced.
	starts *starts.Starts
	// devices reads the interfaces; tests replace it.
	devices func(*observe.Round, *targets.Round) ([]plan.Interface, error)
}

// loop is what the loop keeps from one reconcile to the next. Agent.work guards it.
type loop struct {
	// live is what is open.
	live *live.Set
	// loads runs loads beside the loop, and lookups finds targets in the file system.
	loads   *build.Loads
	lookups *targets.Lookups
	// namespaces are the network namespaces beside the agent's own. None is open between
	// reconciles.
	namespaces *netns.Table
	// attempts are the loads of chains, and the actions on chains, that failed. conflicts are
	// links that were put back.
	attempts  *retry.Attempts
	conflicts *retry.Conflicts
	admission *admission.Admission
	chains    *chainfit.Fitter
	// node is what was read of the node.
	node *observe.Node
	// rest is how the last reconcile left the links, nil where something is left to do.
	rest *live.Rest
	// fullAt is when the last full reconcile began, and acted reports that the last reconcile
	// was none, and that only its own actions are left to look at.
	fullAt time.Time
	acted  bool
	// unmanagedFiles, by uid, are those of the last full reconcile.
	unmanagedFiles map[string][]string
}

// New makes an agent: it locks the pins and reads what is cached. It fails with
// pins.ErrHeld, pins.ErrExposed, pins.ErrNotBPFFS, or what the state directory does.
func New(o Options) (*Agent, error) {
	if o.StateDir == "" || o.Trust == nil || o.Fetch == nil {
		return nil, errors.New("make agent: StateDir, Trust and Fetch are needed")
	}
	if o.NamespaceShare < 0 || o.NamespaceShare > 100 {
		return nil, fmt.Errorf("make agent: a namespace's share is %d percent; give 1 to 100", o.NamespaceShare)
	}
	if o.MapMemory < 0 || o.MapMemory > loader.MostMapMemory {
		return nil, fmt.Errorf("make agent: the memory for maps is %d bytes; give 1 to %d, or 0 for no limit", o.MapMemory, int64(loader.MostMapMemory))
	}
	fillDefaults(&o)
	dir, err := statedir.Open(o.StateDir)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	pins, err := pins.OpenStore(o.BPFFS)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	e := &env{opts: o, pins: pins, dir: dir, changes: changes.New(), devices: (*observe.Round).Interfaces}
	e.objects = objects.New(objects.Options{Dir: dir.Objects(), Fetch: o.Fetch, Timeout: o.FetchTimeout, Log: o.Log, Wake: e.changes.Wake})
	if o.Containers != nil {
		if e.containers, err = o.Containers(e.changes.Pods); err != nil {
			return nil, errors.Join(fmt.Errorf("make agent: %w", err), pins.Close())
		}
		if announcer, ok := e.containers.(containers.Announcer); ok {
			e.starts = starts.New(starts.Options{Log: o.Log, Clock: o.Clock, NamespaceLabels: o.NamespaceLabels, Wake: e.changes.Signal})
			announcer.AnnounceTo(e.starts)
		}
	}
	a := &Agent{env: e, loop: newLoop(e), reconciled: make(chan struct{}, 1)}
	err = a.checkMount()
	store, unread := accepted.Open(accepted.Options{Log: o.Log, Dir: dir, Node: o.Node, Labels: o.Labels, Trust: o.Trust, Wake: e.changes.Wake})
	a.Store = store
	if err := errors.Join(err, unread, a.loop.live.Adopt(accepted.Begin(store).NameOf)); err != nil {
		return nil, errors.Join(fmt.Errorf("make agent: %w", err), a.Close())
	}
	return a, nil
}

func newLoop(e *env) *loop {
	o := &e.opts
	open := live.New(e.pins, e.changes.Signal, e.dir.Path(statedir.Remnants), o.Log)
	ran, err := history.Open(e.dir.Path(statedir.Ran))
	if err != nil {
		o.Log.Error("what ran is not known; limits are granted by age at places where nothing runs", "error", err)
	}
	attempts, namespaces, host := retry.NewAttempts(o.BackOff), netns.NewTable(), o.host()
	e.pins.Filters.Namespaces, host.Namespaces = namespaces, namespaces
	e.pins.Filters.Clock = o.Clock
	return &loop{
		namespaces: namespaces, live: open, loads: build.NewLoads(o.Clock, o.Log, o.Observer.Loaded),
		lookups:  targets.NewLookups(host, o.Log, e.changes.Wake),
		attempts: attempts, conflicts: retry.NewConflicts(o.BackOff),
		admission: admission.New(admission.Options{Log: o.Log, SharePercent: o.NamespaceShare, MapMemory: o.MapMemory, FetchTimeout: o.FetchTimeout,
			Objects: e.objects, History: ran, Live: open}),
		chains: chainfit.New(o.BackOff.Longest(), attempts),
		node:   observe.New(observe.Options{Log: o.Log, Containers: e.containers, NamespaceLabels: o.NamespaceLabels, Changes: e.changes}),
	}
}

func fillDefaults(o *Options) {
	if o.BPFFS == "" {
		o.BPFFS = "/sys/fs/bpf/skep"
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Observer == nil {
		o.Observer = nop{}
	}
	o.Clock = clock.OrSystem(o.Clock)
	if o.FetchTimeout == 0 {
		o.FetchTimeout = time.Minute
	}
	if o.NamespaceShare == 0 {
		o.NamespaceShare = DefaultNamespaceShare
	}
	if o.SweepInterval == 0 {
		o.SweepInterval = time.Second
	}
	if o.BackOff == (BackOff{}) {
		o.BackOff = BackOff{First: time.Second, Most: 5 * time.Minute}
	}
	if o.CgroupRoot == "" {
		root, err := targets.FindCgroup2("/proc/self/mountinfo")
		if err != nil {
			// Hooks of other kinds need none; those of cgroups say so.
			o.Log.Warn("no cgroup hook can be attached", "error", err)
		}
		o.CgroupRoot = root
	}
}

// checkMount warns of a second bpf file system.
func (a *Agent) checkMount() error {
	boot, err := os.ReadFile(live.BootID)
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	device, err := a.pins.Device()
	if err != nil {
		return err
	}
	other, err := a.dir.NoteMount(string(boot), device)
	if other {
		a.opts.Log.Warn("another bpf file system held the pins earlier in this boot; what it holds runs on beside what is loaded now. Unmount the one too many, "+
			"and start again",
			"path", a.pins.Root())
	}
	return err
}

// Close lets everything go, and waits for what is being fetched, loaded or closed to
// end, but for no file system that does not answer. Programs stay.
func (a *Agent) Close() error {
	a.objects.Close()
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.lookups.Close()
	a.loop.live.Remnants.AwaitClosings()
	var err error
	if a.containers != nil {
		err = a.containers.Close()
	}
	err = errors.Join(err, a.loop.loads.Close(), a.loop.live.Close())
	a.loop.live.Unused.AwaitFreed()
	return errors.Join(err, a.pins.Close())
}
