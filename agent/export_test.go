package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/observe"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Namespaces are network namespaces beside the agent's own, and Namespace is one.
type (
	Namespaces = targets.Namespaces
	Namespace  = netns.Namespace
)

// InNamespaces has the agent know network namespaces without pods.
func (a *Agent) InNamespaces(known func() Namespaces) *Agent {
	a.loop.node = observe.New(observe.Options{Log: a.opts.Log, Containers: a.containers, NamespaceLabels: a.opts.NamespaceLabels, Changes: a.changes,
		Namespaces: func(targets.Pods) Namespaces { return known() }})
	return a
}

// OnLook calls a function before each look at the interfaces of the node.
func (a *Agent) OnLook(do func()) {
	a.work.Lock()
	defer a.work.Unlock()
	a.devices = func(r *observe.Round, l *targets.Round) ([]plan.Interface, error) { do(); return r.Interfaces(l) }
}

// FailLooks has every look at the interfaces of the node fail; nil ends that.
func (a *Agent) FailLooks(err error) {
	a.work.Lock()
	defer a.work.Unlock()
	a.devices = (*observe.Round).Interfaces
	if err != nil {
		a.devices = func(*observe.Round, *targets.Round) ([]plan.Interface, error) { return nil, err }
	}
}

// NamespacesChanged has the agent look again.
func (a *Agent) NamespacesChanged() { a.changes.Wake() }

// IsIdle is what a sweep of Run asks before it spends a reconcile.
func (a *Agent) IsIdle() bool { return a.isIdle() }

// IsStartWaiting reports whether a container waits to start that no reconcile had yet.
func (a *Agent) IsStartWaiting() bool { return a.starts.IsWaiting() }

// HintsAtOnce has no hint put off, for a test that asks whether the agent is woken.
func (a *Agent) HintsAtOnce() { a.changes.Pause = 0 }

// ReconcileIfWoken does what Run does where it was woken, and reports whether that was so.
func (a *Agent) ReconcileIfWoken(ctx context.Context) bool {
	select {
	case <-a.changes.Signals():
	case <-a.changes.Hints():
	default:
		return false
	}
	a.reconcile(ctx)
	return true
}

// AwaitClosings waits until the kernel ended the links that are being closed.
func (a *Agent) AwaitClosings() { a.loop.live.Remnants.AwaitClosings() }

// FreeOneRevisionASecond has the programs of one revision freed in a second.
func (a *Agent) FreeOneRevisionASecond() {
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.live.Unused.Pace.Most = 1
}

// RefuseChains has chains fail to load as reject says of the names of their members'
// applications.
func (a *Agent) RefuseChains(refuse func(members []string) error) {
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.chains.Build = func(parts []build.Part, files *objects.Cache, o chain.Options, shared build.SharedMaps,
		turn build.Turn) (*pins.ChainVersion, error) {
		var members []string
		for _, part := range parts {
			members = append(members, part.Member.Identity.Name)
		}
		if err := refuse(members); err != nil {
			return nil, err
		}
		return build.Chain(parts, files, o, shared, turn)
	}
}

// LoadsUnswitched has chains loaded as an earlier version of Skep did, whose members have no switch.
func (a *Agent) LoadsUnswitched() {
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.chains.Build = func(parts []build.Part, files *objects.Cache, o chain.Options, shared build.SharedMaps, turn build.Turn) (*pins.ChainVersion, error) {
		v, err := build.Chain(parts, files, o, shared, turn)
		if err != nil {
			return nil, err
		}
		// One count for each member, which the dispatcher does not know.
		counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(8 * len(v.Members)), MaxEntries: 1})
		if err != nil {
			return nil, errors.Join(err, v.Close())
		}
		err = v.Counters.Close()
		v.Counters = counts
		return v, err
	}
}

// HintsAwaitLoads has hints wait that long for loads under way.
func (a *Agent) HintsAwaitLoads(most time.Duration) {
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.slice = most
}

// HoldLoads has loads of an application's revision wait until let is called.
func (a *Agent) HoldLoads(uid string) (let func()) {
	held := make(chan struct{})
	a.BeforeLoads(uid, func() { <-held })
	return sync.OnceFunc(func() { close(held) })
}

// WatchLoads returns what tells how often a load of an application's revision has begun from now on.
func (a *Agent) WatchLoads(uid string) (begun func() int64) {
	times := new(atomic.Int64)
	a.BeforeLoads(uid, func() { times.Add(1) })
	return times.Load
}

// BeforeLoads has each load of an application's revision begin by something else, beside the loop.
func (a *Agent) BeforeLoads(uid string, do func()) {
	a.work.Lock()
	defer a.work.Unlock()
	a.loop.loads.Hold = func(line string) {
		if line == "application "+uid {
			do()
		}
	}
}

// HoldClosings has the links of an application that are closed beside the loop wait until let is called.
func (a *Agent) HoldClosings(uid string) (let func()) {
	a.work.Lock()
	defer a.work.Unlock()
	held := make(chan struct{})
	a.loop.live.Remnants.Hold = func(of string) {
		if of == uid {
			<-held
		}
	}
	return sync.OnceFunc(func() { close(held) })
}

// HoldLinks has the links of an application that are made beside the loop wait until let is
// called, as the kernel has them wait for the memory of a process. asked is how many these were.
func (a *Agent) HoldLinks(uid string) (let func(), asked *atomic.Int64) {
	a.work.Lock()
	defer a.work.Unlock()
	held, asked := make(chan struct{}), new(atomic.Int64)
	a.loop.live.Makings.Hold = func(of string) {
		if of == uid {
			asked.Add(1)
			<-held
		}
	}
	return sync.OnceFunc(func() { close(held) }), asked
}

// IsLoading reports whether the verifier is at work.
func (a *Agent) IsLoading() bool {
	a.work.Lock()
	defer a.work.Unlock()
	return a.loop.loads.IsLoading()
}

// Lookups returns how many look-ups of targets wait for a file system.
func (a *Agent) Lookups() int {
	a.work.Lock()
	defer a.work.Unlock()
	return a.loop.lookups.Waiting()
}

// Sweep does what Run does at a sweep, and reports whether that took a reconcile.
func (a *Agent) Sweep(ctx context.Context) bool {
	if !a.sweep() {
		return false
	}
	a.reconcile(ctx)
	return true
}

// LoseCounters closes the counters of the chain on an interface, which then cannot be read.
func (a *Agent) LoseCounters(ifindex int) error {
	a.work.Lock()
	defer a.work.Unlock()
	for device, c := range a.loop.live.Chains() {
		if device.Index == ifindex && c.Version.Counters != nil {
			return c.Version.Counters.Close()
		}
	}
	return errors.New("the interface has no chain that counts")
}

// LookUntil is Look whose time to ask the kernel ends at a moment.
func (a *Agent) LookUntil(until time.Time) Sight {
	a.work.Lock()
	return a.describe(a.hold(until))
}

// Arrivals reports, from now on, whether an intent waits for a reconcile.
func (a *Agent) Arrivals() func() bool { return a.accepted.Begin().HasArrived }
