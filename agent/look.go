package agent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/semaphore"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// work is a lock that a reader waits for no longer than its context lasts.
type work struct{ one *semaphore.Weighted }

func newWork() work { return work{semaphore.NewWeighted(1)} }

// Lock waits as long as it takes.
func (w work) Lock() { _ = w.one.Acquire(context.Background(), 1) }

// Unlock lets the next one in.
func (w work) Unlock() { w.one.Release(1) }

// holdFor bounds how long a look keeps the loop waiting. What was not copied by then is left out.
const holdFor = 50 * time.Millisecond

// Load is a load under way, or one that waits for its turn.
type Load = build.Pending

// Sight is what a look saw.
type Sight struct {
	// At is when.
	At time.Time
	// Chains are what runs on each interface with programs of Skep's that run in an order, by index and in the order in which a packet
	// meets the hooks. They have no usage and room.
	Chains []ChainStatus
	// Loads are those of applications, in their order.
	Loads []Load
	// Owners are the programs of Skep's by the kernel's ids, with the UIDs of their applications; a chain's is empty.
	Owners map[ebpf.ProgramID]string
	// Pods are those that applications choose, by UID, as NAMESPACE/NAME.
	Pods map[string][]string
	// LeftOut says what was not seen, one sentence each.
	LeftOut []string

	measure func() []ChainStatus
}

// Measured returns the chains with their usage and room, which are worked out once.
func (s Sight) Measured() []ChainStatus {
	if s.measure == nil {
		return []ChainStatus{}
	}
	return s.measure()
}

// Look looks at what the kernel runs for a reader. The loop waits only while what it has is copied, for holdFor at most; everything slow
// is read after that. A reader waits for the loop no longer than its context lasts.
func (a *Agent) Look(ctx context.Context) (Sight, error) {
	if err := a.work.one.Acquire(ctx, 1); err != nil {
		return Sight{}, fmt.Errorf("look at what runs: the agent was busy all the time: %w", err)
	}
	h := a.hold(time.Now().Add(holdFor))
	return a.describe(h), nil
}

// Chains returns what a Look sees of interfaces, with usage and room.
func (a *Agent) Chains() ([]ChainStatus, error) {
	s, err := a.Look(context.Background())
	return s.Measured(), err
}

// held is what a look copies of the loop.
type held struct {
	chains  []*chainfit.Seen
	steps   []others.Step
	filters map[clsact.Side][]clsact.Other
	owners  map[ebpf.ProgramID]string
	loads   []Load
	pods    targets.Pods
	// left is how many links and chains there was no time to ask the kernel about.
	left int
}

// hold copies what the loop has until a moment, and lets the loop go on.
func (a *Agent) hold(until time.Time) *held {
	defer a.work.Unlock()
	open := a.loop.live
	h := &held{filters: map[clsact.Side][]clsact.Other{}, owners: open.Owners(), loads: a.loop.loads.List(), pods: a.loop.node.Last()}
	hasTime := func() bool {
		if time.Now().Before(until) {
			return true
		}
		h.left++
		return false
	}
	for _, c := range open.Chains() {
		if c.Version != nil {
			h.chains = append(h.chains, chainfit.See(c, hasTime()))
		}
	}
	for l := range open.Links() {
		if is, _ := hook.Lookup(l.Attachment.Hook); !is.TakesPriority() || !hasTime() {
			continue
		}
		facts, err := pins.Inspect(l.Link)
		if err != nil {
			a.opts.Log.Debug("look at a link for a reader", "pin", l.Path, "error", err)
		}
		h.steps = append(h.steps, others.Step{Link: &pins.Link{UID: l.UID, Attachment: l.Attachment}, Facts: facts})
		side, _, ok := clsact.Of(l.Attachment.Hook, l.Attachment.Target.Device())
		if ok && facts.Filter.Copies > 0 && side.Device.NetnsID == 0 && h.filters[side] == nil {
			h.filters[side] = slices.Clone(open.OthersFilters(side))
		}
	}
	return h
}

// describe reads what a look did not copy.
func (a *Agent) describe(h *held) Sight {
	known, names := a.accepted.Known(), ownInterfaces()
	s := Sight{At: a.opts.Clock(), Chains: []ChainStatus{}, Loads: h.loads, Owners: h.owners, Pods: chosenPods(known, h.pods)}
	if h.left > 0 {
		s.LeftOut = append(s.LeftOut, fmt.Sprintf("%d places of programs are without their order and counts: there was no time to read them", h.left))
	}
	on := func(d plan.Device, t plan.Target) plan.Target {
		if name := names[d.Index]; d.NetnsID == 0 && name != "" {
			t.Interface = name
		}
		if t.Interface == "" {
			t.Interface = fmt.Sprintf("#%d", d.Index)
		}
		return t
	}
	status := linksByPlace(a.accepted.Report())
	for _, c := range h.chains {
		s.Chains = append(s.Chains, c.Status(on(c.Device, c.Target), func(m plan.Member) []string {
			return status[linkPlace{m.UID, m.Program, plan.XDP, c.Device}].Notes()
		}))
	}
	seen := h.chains
	measured := slices.Clone(s.Chains)
	s.Chains = append(s.Chains, a.sequences(h, on, status)...)
	sequences := s.Chains[len(measured):]
	s.measure = sync.OnceValue(func() []ChainStatus {
		for i := range measured {
			seen[i].Measure(&measured[i], intentsOf(known), a.objects)
		}
		all := slices.Concat(measured, sequences)
		slices.SortFunc(all, ChainStatus.Compare)
		return all
	})
	s.Chains = slices.SortedFunc(slices.Values(s.Chains), ChainStatus.Compare)
	return s
}

// sequences are what runs on hooks whose order the kernel keeps, and in filters.
func (a *Agent) sequences(h *held, on func(plan.Device, plan.Target) plan.Target, status map[linkPlace]LinkStatus) []ChainStatus {
	table, of := netns.NewTable(), a.loop.node.Namespaces(h.pods)
	table.Renew(of.All, of.Err)
	defer table.Close()
	read := others.New(others.Options{Ours: func() map[ebpf.ProgramID]string { return h.owners }, Namespaces: table, Names: new(others.Names),
		Filters: func(side clsact.Side) []clsact.Other { return h.filters[side] }})
	return chainfit.Sequences(read, h.steps, on, func(l *pins.Link) uint64 {
		return status[linkPlace{l.UID, l.Attachment.Program, l.Attachment.Hook, l.Attachment.Target.Device()}].NeverRan
	})
}

// linkPlace is a program of an application on a hook of a device.
type linkPlace struct {
	uid, program, hook string
	on                 plan.Device
}

// linksByPlace are the links that statuses have on network devices.
func linksByPlace(all []report.ApplicationStatus) map[linkPlace]LinkStatus {
	found := map[linkPlace]LinkStatus{}
	for _, s := range all {
		for _, p := range s.Programs {
			for _, l := range p.Links {
				if l.On.Ifindex != 0 {
					found[linkPlace{s.UID, p.Name, l.Hook, l.On.Device()}] = l
				}
			}
		}
	}
	return found
}

// ownInterfaces are the names of the agent's own network namespace, by index.
func ownInterfaces() map[int]string {
	names := map[int]string{}
	all, err := net.Interfaces()
	for _, one := range all {
		names[one.Index] = one.Name
	}
	if err != nil {
		return nil
	}
	return names
}

// chosenPods are the pods that applications choose.
func chosenPods(known []version.Known, pods targets.Pods) map[string][]string {
	all := map[string][]string{}
	if pods.Snapshot == nil {
		return all
	}
	for _, one := range known {
		p := one.Newest.Payload()
		for _, program := range p.Programs {
			for _, at := range program.Attach {
				if at.Pods == nil {
					continue
				}
				for _, pod := range pods.Chosen(p.Application, at) {
					name := pod.Name
					if pod.Namespace != "" {
						name = pod.Namespace + "/" + pod.Name
					}
					all[p.UID] = append(all[p.UID], name)
				}
			}
		}
		all[p.UID] = slices.Compact(slices.Sorted(slices.Values(all[p.UID])))
	}
	return all
}

// intentsOf finds the intents of versions.
func intentsOf(known []version.Known) func(uid, revision string) *intent.Opened {
	return func(uid, revision string) *intent.Opened {
		for _, one := range known {
			if one.Newest.Payload().UID == uid {
				return one.Intent(revision)
			}
		}
		return nil
	}
}
