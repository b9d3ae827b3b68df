package agent

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/agent/reconcile/act"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/intent"
)

// Options are what an agent is told once.
type Options struct {
	// BPFFS is the directory for pins, on a BPF file system; default
	// /sys/fs/bpf/skep. One agent holds it.
	BPFFS string
	// MapsDir has a folder for each application that grants maps to groups of the host, in which their members find them; see
	// package host. It is made when a map is granted. Empty is none; in a cluster, groups are granted nothing.
	MapsDir string
	// Mounter is the socket of skep-mounter, by which pods of a cluster have maps in volumes; see package volumes. Empty is none.
	Mounter string
	// VolumePins has pins of maps in volumes beside their socket, as skep-mounter has with --pins.
	VolumePins bool
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
	// SharedTargets bounds what namespaces have at tracepoints, functions and files whose tasks are also
	// others'; a bound of 0 is that of quota.Default. What runs is never taken away by it.
	SharedTargets quota.Limits
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
	// MapMetrics exports entries of maps as series; nil exports none. The agent closes it.
	MapMetrics *mapmetrics.Collector
}

// DefaultNamespaceShare is the default of Options.NamespaceShare.
const DefaultNamespaceShare = 50

// host is where names of the node are found.
func (o *Options) host() attach.Host {
	return attach.Host{CgroupRoot: o.CgroupRoot, Root: o.HostRoot}
}

// BackOff is how long to wait after failures in a row.
type BackOff = retry.BackOff

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
	o.SharedTargets = o.SharedTargets.OrDefault()
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

// RuntimeContainers is a value of Options.Containers: the containers of the runtime with the
// socket, such as unix:///run/containerd/containerd.sock. nri is its socket for NRI plug-ins, by
// which programs are in a container before it starts; empty is none. The other options come first.
// An agent in a PID namespace of its own finds none of their processes, which is logged.
func (o Options) RuntimeContainers(endpoint, nri string) func(wake func(changed ...containers.Pod)) (containers.Source, error) {
	if o.Log != nil {
		containers.WarnOfOwnPIDs(o.Log, os.Getpid())
	}
	return func(wake func(changed ...containers.Pod)) (containers.Source, error) {
		return containers.NewCRI(containers.Options{Endpoint: endpoint, NRI: nri, CgroupRoot: o.cgroups(), Wake: wake, Log: o.Log})
	}
}

// HostContainers is a value of Options.Containers: the units of systemd and the cgroups of a host
// without a container runtime. It is nil where no cgroup2 is mounted, since nothing else has
// them. The other options come first.
func (o Options) HostContainers() func(wake func(changed ...containers.Pod)) (containers.Source, error) {
	root := o.cgroups()
	if root == "" {
		return nil
	}
	return func(wake func(changed ...containers.Pod)) (containers.Source, error) {
		return containers.NewCgroups(containers.Options{CgroupRoot: root, Wake: wake, Log: o.Log})
	}
}

// cgroups is the mount of cgroup2; empty where there is none, of which New warns.
func (o Options) cgroups() string {
	if o.CgroupRoot != "" {
		return o.CgroupRoot
	}
	root, err := targets.FindCgroup2("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return root
}

// Observer counts what an agent does to its kernel. It is called from one
// goroutine at a time.
type Observer interface {
	// Loaded is told how long it took to load something, and what came of it.
	Loaded(what Loadable, took time.Duration, err error)
	// Attached is told how long it took to attach a program to a hook of the
	// table, or to swap it in place, and what came of it.
	Attached(hook string, took time.Duration, err error)
	// Healed is told that something was put back that somebody else changed.
	Healed(what Drift)
}

// TargetObserver is an Observer that counts what namespaces have at targets that tasks of others run, too, as of
// each reconcile.
type TargetObserver interface {
	Shared(quota.Counts)
}

// Loadable is what is loaded into the kernel at once.
type Loadable = build.Loadable

// What is loaded: the programs and maps of an application, or one program out
// of several applications' for one interface.
const (
	LoadRevision = build.RevisionLoad
	LoadChain    = build.ChainLoad
)

// Loadables are all of them.
func Loadables() []Loadable { return []Loadable{LoadRevision, LoadChain} }

// Drift says how the kernel differs from what was made of it.
type Drift = act.Drift

// The kinds of drift: a pin is gone, a link was severed, or another program
// runs under it.
const (
	Unpinned = act.Unpinned
	Detached = act.Detached
	Replaced = act.Replaced
)

// Drifts are all of them.
func Drifts() []Drift { return []Drift{Unpinned, Detached, Replaced} }

// nop counts nothing.
type nop struct{}

// Loaded implements Observer.
func (nop) Loaded(Loadable, time.Duration, error) {}

// Attached implements Observer.
func (nop) Attached(string, time.Duration, error) {}

// Healed implements Observer.
func (nop) Healed(Drift) {}
