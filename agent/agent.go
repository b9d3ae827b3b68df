// Package agent is the loop that keeps the kernel of one node as sealed intents say: it joins the parts of a reconcile and calls
// them in their order. It must not decide what a part decides, and links neither policies nor the code that verifies images.
//
// The parts are the packages in reconcile/, and none knows the loop. Package changes wakes it; then one reconcile, see reconcileOnce, is:
//
//  1. accepted gives copies of the applications and their intents;
//  2. act switches off what intents revoke, before anything is looked at, and readers take back what they no longer grant;
//  3. observe reads the pods and network devices that intents choose, and live what is open in the kernel;
//  4. decide and plan say what only ends something, and act ends it; then live makes pins again that someone removed;
//  5. decide chooses versions or falls back to one, which prepare asks build to load, beside the loop: a later reconcile finds it loaded;
//     act ends what the choice withdrew;
//  6. admission grants limits, and has decide reject, leave out and postpone;
//  7. chainfit loads the programs of XDP interfaces, which run in one chain by priority;
//  8. plan makes the actions, and act does them by attach/; admission lets the loads begin that build was asked for, and remembers what runs;
//  9. finish works out status (report) and back-off, which accepted takes back, and starts has containers begin that waited.
//
// All of it happens in a full reconcile; in one after changes of pods, those that changed alone are read anew. What lasts over a restart is
// below state/. The folder kube reports to a cluster, queue bounds what waits beside the loop, and inventory lists what others run.
package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/readers/host"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/changes"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/observe"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/position"
	"github.com/skep-dev/skep/agent/reconcile/starts"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/agent/state/statedir"
)

// Agent holds one node's kernel to the intents it was given.
type Agent struct {
	*env
	// accepted are the intents.
	accepted *accepted.Store
	// work is held while the kernel is changed. It guards loop.
	work work
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
	// slice is loadSlice; tests change it.
	slice time.Duration
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
	// fullAt is when the last full reconcile began, and follows reports that the last reconcile
	// was none, and that only its own actions, or what wakes the loop, are left to look at.
	fullAt  time.Time
	follows bool
	// pinsAt is when pins were looked at last.
	pinsAt time.Time
	// wholeAt is when the last reconcile ended that was not left.
	wholeAt time.Time
	// positions are where programs moved among those of others.
	positions position.Memory
	// readers are those without privilege: groups of a host, or pods of a cluster.
	readers readers
	// volumes are those of pods; nil where there are none.
	volumes *volumes.Keeper
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
	if err := o.SharedTargets.OrDefault().Validate(); err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
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
	e.objects = objects.New(objects.Options{Dir: dir.Objects(), Fetch: o.Fetch, Timeout: o.FetchTimeout, Log: o.Log, Wake: e.changes.Signal})
	if o.Containers != nil {
		if e.containers, err = o.Containers(e.changes.Pods); err != nil {
			return nil, errors.Join(fmt.Errorf("make agent: %w", err), pins.Close())
		}
		if announcer, ok := e.containers.(containers.Announcer); ok {
			e.starts = starts.New(starts.Options{Log: o.Log, Clock: o.Clock, NamespaceLabels: o.NamespaceLabels, Wake: e.changes.Signal})
			announcer.AnnounceTo(e.starts)
		}
	}
	a := &Agent{env: e, work: newWork(), loop: newLoop(e), reconciled: make(chan struct{}, 1)}
	err = a.checkMount()
	var unread error
	a.accepted, unread = accepted.Open(accepted.Options{Log: o.Log, Dir: dir, Node: o.Node, Labels: o.Labels, Trust: o.Trust, Wake: e.changes.Signal})
	if err := errors.Join(err, unread, a.loop.live.Adopt(a.accepted.Begin().NameOf)); err != nil {
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
	loads := build.NewLoads(o.Clock, o.Log, o.Observer.Loaded)
	e.pins.Filters.Namespaces, host.Namespaces = namespaces, namespaces
	e.pins.Filters.Clock = o.Clock
	l := &loop{
		namespaces: namespaces, live: open, loads: loads, slice: loadSlice,
		lookups:  targets.NewLookups(host, o.Log, e.changes.Signal),
		attempts: attempts, conflicts: retry.NewConflicts(o.BackOff),
		admission: admission.New(admission.Options{Log: o.Log, SharePercent: o.NamespaceShare, MapMemory: o.MapMemory, FetchTimeout: o.FetchTimeout,
			Objects: e.objects, History: ran, Open: &open.Open}),
		chains: chainfit.New(o.BackOff.Longest(), attempts),
		node: observe.New(observe.Options{Log: o.Log, Containers: e.containers, NamespaceLabels: o.NamespaceLabels, Namespaces: targets.Pods.Namespaces,
			Changes: e.changes, IsHurried: func() bool { return e.changes.IsAsked() || loads.HasEnded() }}),
	}
	l.setReaders(e)
	return l
}

// readers get the maps that definitions grant them. Nothing that the loop calls waits for anything slow.
type readers interface {
	// Withdraw takes back what the newest intents do not grant any more. gone are the applications that are to leave nothing behind.
	Withdraw(apps []*accepted.Application, gone []string)
	// Publish gives what the newest intents and what is loaded come to, and reports whether something waits, after which it wakes the loop.
	Publish(apps []*accepted.Application, look *live.Look, gone func(uid string) bool) (waits bool)
	Close()
}

// setReaders fills in readers: groups of a host are granted maps where there is no cluster, and else pods.
func (l *loop) setReaders(e *env) {
	switch {
	case e.opts.Node == "":
		l.readers = host.New(host.Options{Dir: e.opts.MapsDir, Log: e.opts.Log, Clock: e.opts.Clock, Objects: e.objects, Wake: e.changes.Signal})
	case e.opts.Mounter != "":
		l.volumes = volumes.New(volumes.Options{Mounter: mounter.Client{Socket: e.opts.Mounter}, Pins: e.opts.VolumePins, Objects: e.objects,
			Log: e.opts.Log})
		l.readers = l.volumes
	default:
		l.readers = (*host.Readers)(nil)
	}
}

// Volumes keeps the volumes of pods; nil without Options.Mounter. The caller runs it next to Run.
func (a *Agent) Volumes() *volumes.Keeper { return a.loop.volumes }

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
	a.opts.MapMetrics.Close()
	a.loop.lookups.Close()
	a.loop.readers.Close()
	a.loop.live.Remnants.AwaitClosings()
	var err error
	if a.containers != nil {
		err = a.containers.Close()
	}
	err = errors.Join(err, a.loop.loads.Close(), a.loop.live.Close())
	a.loop.live.Unused.AwaitFreed()
	return errors.Join(err, a.pins.Close())
}
