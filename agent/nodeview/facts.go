package nodeview

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// The bounds of text, in characters: of names that others chose, of paths, and of messages.
const (
	maxName    = 64
	maxPath    = 512
	maxMessage = 1024
)

// facts are all that a NodeView is made of.
type facts struct {
	Options
	now       time.Time
	status    []agent.ApplicationStatus
	sight     agent.Sight
	inventory inventory.Inventory
	cost      map[uint32]view.Cost
	leftOut   []string
}

// describe describes the whole node. It is pure.
func (f facts) describe() view.NodeView {
	n := view.NodeView{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView}, ObjectMeta: metav1.ObjectMeta{Name: f.Node},
		Observed: metav1.NewTime(f.now), Agent: f.Info, Kernel: f.Kernel, Applications: []view.Application{},
		LeftOut: append(slices.Clone(f.leftOut), f.sight.LeftOut...)}
	k := known{f.places(), map[uint32]uint32{}}
	for _, l := range f.inventory.Links {
		k.links[l.ID] = l.Program
	}
	for _, s := range f.status {
		if s.Tombstone && s.Revision == "" && !s.Unloading && s.Error == "" {
			// It has left nothing behind.
			continue
		}
		a := k.application(s)
		a.Pods = f.sight.Pods[s.UID]
		n.Applications = append(n.Applications, a)
	}
	slices.SortFunc(n.Applications, func(a, b view.Application) int {
		return cmp.Or(strings.Compare(a.Kind+"/"+a.String(), b.Kind+"/"+b.String()), strings.Compare(a.UID, b.UID))
	})
	for _, c := range f.sight.Chains {
		n.Interfaces = append(n.Interfaces, interfaceOf(c))
	}
	n.Programs, n.Loads = f.programs(), f.loads()
	return n
}

// place is a program of an application on a hook of a device.
type place struct {
	uid, program, hook string
	on                 plan.Device
}

// position is where a program is in the order of a place.
type position struct {
	agent.MemberStatus
	at, of int
}

// places are where applications run in an order.
func (f facts) places() map[place]position {
	all := map[place]position{}
	for _, c := range f.sight.Chains {
		for i, m := range c.Members {
			if !m.Unmanaged {
				all[place{m.UID, m.Program, c.Hook, plan.Device{NetnsID: c.NetnsID, Index: c.Ifindex}}] = position{m, i + 1, len(c.Members)}
			}
		}
	}
	return all
}

// known is what is known of attachments besides their statuses: their places in an order, and the programs of links.
type known struct {
	places map[place]position
	links  map[uint32]uint32
}

// application describes one.
func (k known) application(s agent.ApplicationStatus) view.Application {
	a := view.Application{Identity: s.Application, UID: s.UID, Serial: s.Serial, Version: s.Version, Image: path(s.Image), Digest: s.Digest, Signers: s.Signers,
		Retained: s.Held, Attachments: []view.Attachment{}, Conditions: slices.Clone(s.Conditions), Error: message(s.Error),
		VerifierLog: text.Printable(s.VerifierLog)}
	a.State, a.Message = s.NodeState()
	a.Message = message(a.Message)
	for i := range a.Conditions {
		a.Conditions[i].Message = message(a.Conditions[i].Message)
	}
	for _, p := range s.Programs {
		for _, l := range p.Links {
			a.Attachments = append(a.Attachments, k.attachment(s.UID, p, l))
		}
	}
	return a
}

// attachment describes one.
func (k known) attachment(uid string, p agent.ProgramStatus, l agent.LinkStatus) view.Attachment {
	a := view.Attachment{Program: p.Name, ProgramID: p.ID, LinkID: l.ID, Hook: l.Hook, Target: target(l.Target, l.On), State: string(l.State),
		Message: message(l.Error), Priority: l.Priority, Mode: l.XDPMode, Notes: l.Notes()}
	hook := l.Hook
	if hook != plan.XDP {
		// A program may be loaded once for each target.
		a.ProgramID = cmp.Or(k.links[l.ID], p.ID)
	}
	if l.Filter != "" {
		// In the place of TCX.
		hook = "tc/" + strings.TrimPrefix(strings.TrimPrefix(hook, "tcx/"), "tc/")
	}
	if at, ok := k.places[place{uid, p.Name, hook, l.On.Device()}]; ok && l.On.Ifindex != 0 {
		a.Position, a.Of, a.Runs, a.Verdicts = at.at, at.of, at.Runs, at.Verdicts
	}
	return a
}

// target describes where a program is attached, or is to be.
func target(words string, t plan.Target) view.Target {
	pod, container := podOf(t.In)
	return view.Target{Text: message(words), Interface: name(t.Interface), Ifindex: t.Ifindex, NetworkNamespace: t.NetnsID, Pod: path(pod),
		Container: path(cmp.Or(container, t.Container)), Function: path(t.Function), Tracepoint: path(t.Tracepoint), Cgroup: path(t.Cgroup),
		Binary: path(t.Binary), Symbol: path(cmp.Or(t.Symbol, string(t.Symbols), t.USDT))}
}

// podOf splits plan.Target.In. A unit of systemd is a pod in no namespace.
func podOf(in string) (pod, container string) {
	pod, container, _ = strings.Cut(strings.TrimPrefix(in, plan.InPod), plan.InContainer)
	return pod, container
}

// interfaceOf describes a hook of an interface.
func interfaceOf(c agent.ChainStatus) view.Interface {
	on := plan.Target{Interface: c.Interface, Ifindex: c.Ifindex, NetnsID: c.NetnsID, In: c.In}
	i := view.Interface{Target: target(c.Label(), on), Hook: c.Hook, Mode: c.XDPMode, ModeReason: message(c.XDPReason), LinkID: c.LinkID,
		ProgramID: c.ProgramID, Members: []view.Member{}, Error: message(c.Error)}
	if c.Usage.Members > 0 && c.Error == "" {
		i.RoomLeft = &view.Room{Maps: c.Room.Maps, Subprograms: c.Room.Subprograms}
	}
	for _, m := range c.Members {
		one := view.Member{Program: name(m.Program), ProgramID: m.ID, Priority: m.Priority, Preference: m.Pref, ProceedOn: m.ProceedOn,
			SwitchedOff: m.SwitchedOff, Notes: m.Notes, Runs: m.Runs, Verdicts: m.Verdicts}
		if !m.Unmanaged {
			one.Application = &m.Identity
		}
		i.Members = append(i.Members, one)
	}
	return i
}

// programs describes the programs of the kernel.
func (f facts) programs() []view.Program {
	identities, chains := map[string]v1alpha1.Identity{}, map[uint32][]agent.MemberStatus{}
	for _, s := range f.status {
		identities[s.UID] = s.Application
	}
	for _, c := range f.sight.Chains {
		if c.ProgramID != 0 {
			chains[c.ProgramID] = c.Members
		}
	}
	ownMaps := f.ownMaps()
	var all []view.Program
	for i := range f.inventory.Programs {
		p := &f.inventory.Programs[i]
		one := Program(p)
		one.MemoryBytes += ownMaps[p.ID]
		uid, isOurs := f.sight.Owners[ebpf.ProgramID(p.ID)]
		whose, isKnown := identities[uid]
		switch {
		case isOurs && isKnown:
			one.Application = &whose
		case isOurs || p.Managed:
			one.Chain = true
			if members := chains[p.ID]; len(members) == 1 {
				one.Application = &members[0].Identity
			}
		default:
			one.Holders, one.Pins = heldBy(p)
		}
		if cost, ok := f.cost[p.ID]; ok {
			one.Cost = &cost
		}
		all = append(all, one)
	}
	return all
}

// Program describes a program of the kernel, without whose it is, who holds it, and what it costs.
func Program(p *inventory.Program) view.Program {
	one := view.Program{ID: p.ID, Type: p.Type, Name: name(p.Name), Tag: p.Tag, LoadedAt: metav1.NewTime(p.LoadedAt), JITBytes: p.JitedBytes,
		MemoryBytes: p.MemlockBytes}
	for _, at := range p.Attached {
		one.Attached = append(one.Attached, path(strings.TrimSuffix(at.Hook+"@"+at.Target, "@")))
	}
	return one
}

// ownMaps is what the kernel charges for the maps that a program alone uses, by its id.
func (f facts) ownMaps() map[uint32]uint64 {
	bytes := map[uint32]uint64{}
	for _, m := range f.inventory.Maps {
		if len(m.Programs) == 1 {
			bytes[m.Programs[0]] += m.MemlockBytes
		}
	}
	return bytes
}

// heldBy is what keeps a program of others loaded.
func heldBy(p *inventory.Program) (holders []view.Process, pins []string) {
	for _, h := range p.Holders {
		holders = append(holders, view.Process{PID: h.PID, Name: name(h.Name)})
	}
	for _, pin := range p.Pins {
		pins = append(pins, path(pin))
	}
	return holders, pins
}

// waitsForTurn says for what a load waits that may begin.
const waitsForTurn = "it waits for its turn: other programs are being loaded"

// loads describes what is on its way: loads, and versions that wait for what comes before one.
func (f facts) loads() []view.Load {
	var all []view.Load
	seen := map[v1alpha1.Identity]bool{}
	for _, l := range f.sight.Loads {
		for _, id := range l.For {
			one := view.Load{Application: id, Since: metav1.NewTime(l.Since)}
			if l.IsWaiting {
				one.Waiting = waitsForTurn
			}
			if !seen[id] {
				all, seen[id] = append(all, one), true
			}
		}
	}
	for _, s := range f.status {
		for _, c := range s.Conditions {
			if isOnItsWay := c.Reason == "Fetching" || c.Reason == "Queued" || c.Reason == "Loading"; isOnItsWay && !seen[s.Application] {
				all = append(all, view.Load{Application: s.Application, Since: c.LastTransitionTime, Waiting: message(c.Message)})
			}
		}
	}
	return all
}

// name, path and message make text of anybody's fit for a terminal, and bound it.
func name(s string) string { return text.CutRunes(text.Line(text.Cut(s, 4*maxName)), maxName) }
func path(s string) string { return text.CutRunes(text.Line(text.Cut(s, 4*maxPath)), maxPath) }
func message(s string) string {
	return text.CutRunes(text.Printable(text.Cut(s, 4*maxMessage)), maxMessage)
}
