// Package plan decides what an agent does next: given the applications that are
// wanted and what is found in the kernel, it returns the actions that lead from
// one to the other, in their order.
//
// It is pure. It opens no file, asks no kernel and keeps no memory, so that
// equal arguments give equal actions and a killed agent that asks again is told
// what is left to do.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Target is one place in the kernel, resolved on this node: an interface by its
// index, a file by its inode. Which fields are set is decided by the hook's
// shape.
type Target struct {
	// Ifindex and Interface are a network device. Outside the agent's own network namespace,
	// NetnsID is that of the device.
	Ifindex   int    `json:"ifindex,omitempty"`
	Interface string `json:"interface,omitempty"`
	// In says whose a target in a pod is, as "pod team-a/web". Container is the runtime's id
	// of the container in whose files a binary is found.
	In        string `json:"in,omitempty"`
	Container string `json:"container,omitempty"`
	// Function is a function of the kernel. Where one link attaches to many, it repeats
	// what the definition says of them in short, and FunctionsID stands for all that it
	// says and what was found. Module is the one of a function that a kprobe is on, and
	// another one when it was loaded again.
	Function    string `json:"function,omitempty"`
	FunctionsID string `json:"functionsId,omitempty"`
	Module      string `json:"module,omitempty"`
	// Tracepoint is category/name for tracepoint, a name for raw_tp, raw_tp.w and
	// tp_btf.
	Tracepoint string `json:"tracepoint,omitempty"`
	// Cgroup is a path below the cgroup2 mount, CgroupID its inode.
	Cgroup   string `json:"cgroup,omitempty"`
	CgroupID uint64 `json:"cgroupId,omitempty"`
	// Binary is a file, BinaryID its device and inode, and the rest a place in
	// it, or several, and the one process it counts for, or 0. Where several places
	// follow from symbols, BinaryID has the file's time and size as well. Offset is
	// that in a function of the kernel, too.
	Binary   string  `json:"binary,omitempty"`
	BinaryID string  `json:"binaryId,omitempty"`
	Symbol   string  `json:"symbol,omitempty"`
	Offset   uint64  `json:"offset,omitempty"`
	Symbols  Symbols `json:"symbols,omitempty"`
	// USDT is provider:name of a probe of the binary; Offset is one place of it then, Site
	// stands for what else the binary says of the place, and Arguments for where the
	// probe's arguments are there.
	USDT      string `json:"usdt,omitempty"`
	Site      string `json:"site,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	PID       int32  `json:"pid,omitempty"`
	// NetworkNamespace is a path, or empty for the agent's own; NetnsID its
	// inode.
	NetworkNamespace string `json:"networkNamespace,omitempty"`
	NetnsID          uint64 `json:"netnsId,omitempty"`
	// Netfilter is a place of netfilter in a network namespace.
	Netfilter v1alpha1.Netfilter `json:"netfilter,omitzero"`
	// Event is what a program samples, once for so many events or so many times a
	// second: on one CPU or, where PID is not 0, in one Thread of that process. Began
	// says when: of a thread, so many clock ticks after boot, and of a CPU by a number
	// that is another one when the CPU is brought online again.
	Event     string `json:"event,omitempty"`
	Period    int64  `json:"period,omitempty"`
	Frequency int32  `json:"frequency,omitempty"`
	CPU       int    `json:"cpu,omitempty"`
	Thread    int32  `json:"thread,omitempty"`
	Began     uint64 `json:"began,omitempty"`
}

// InPod begins what Target.In says of a pod, and InContainer is between the pod and the container where it names both.
const (
	InPod       = "pod "
	InContainer = " container "
)

// Asked is the target as the definition asks for it, without what was found on the node of
// a file, a namespace or functions.
func (t Target) Asked() Target {
	t.BinaryID, t.Site, t.Arguments, t.Module, t.FunctionsID = "", "", "", "", ""
	if t.Ifindex == 0 {
		t.NetnsID = 0
	}
	if t.USDT != "" {
		t.Offset = 0
	}
	return t
}

// Device returns the network device that the target is.
func (t Target) Device() Device { return Device{NetnsID: t.NetnsID, Index: t.Ifindex} }

// String says the target in words of the definition, and in which pod it is.
func (t Target) String() string {
	if t.Ifindex == 0 && t.In != "" {
		in := t.In
		t.In = ""
		if t.NetnsID != 0 {
			return in
		}
		return t.String() + " in " + in
	}
	switch {
	case t.Ifindex != 0:
		return Label(t.Interface, t.NetnsID, t.In)
	case t.Tracepoint != "":
		return t.Tracepoint
	case t.Cgroup != "" && t.Function != "":
		return t.Cgroup + ":" + t.Function
	case t.Cgroup != "":
		return t.Cgroup
	case t.FunctionsID != "":
		return fmt.Sprintf("%s (%.8s)", t.Function, t.FunctionsID)
	case t.Function != "" && t.Offset != 0:
		return fmt.Sprintf("%s+%#x", t.Function, t.Offset)
	case t.Function != "":
		return t.Function
	case t.Binary != "":
		place := t.Binary
		if t.Symbol != "" {
			place += ":" + t.Symbol
		}
		if t.Symbols != "" {
			place += ":" + string(t.Symbols)
		}
		if t.USDT != "" {
			place += ":" + t.USDT
		}
		if t.Offset != 0 {
			place += fmt.Sprintf("+%#x", t.Offset)
		}
		if t.PID != 0 {
			place += fmt.Sprintf(" (pid %d)", t.PID)
		}
		return place
	case t.Event != "":
		return t.describeEvent()
	case t.Netfilter != v1alpha1.Netfilter{}:
		place := fmt.Sprintf("%s %s priority %d", t.Netfilter.Family, t.Netfilter.Hook, t.Netfilter.Priority)
		if t.NetworkNamespace != "" {
			place += " in " + t.NetworkNamespace
		}
		return place
	case t.NetworkNamespace != "":
		return t.NetworkNamespace
	}
	return "-"
}

// describeEvent says what is sampled, how often and where.
func (t Target) describeEvent() string {
	often, where := fmt.Sprintf("every %d", t.Period), fmt.Sprintf("CPU %d", t.CPU)
	if t.Frequency != 0 {
		often = fmt.Sprintf("%d Hz", t.Frequency)
	}
	if t.PID != 0 {
		where = fmt.Sprintf("pid %d, thread %d", t.PID, t.Thread)
	}
	return fmt.Sprintf("%s %s (%s)", t.Event, often, where)
}

// Attachment is one program on one hook of one target.
type Attachment struct {
	// Application is whose it is, for its place among others.
	Application v1alpha1.Identity `json:"application"`
	// Program is the function; Instance names what was loaded of it, see
	// Instance.
	Program  string `json:"program"`
	Instance string `json:"instance"`
	Hook     string `json:"hook"`
	Target
	// Scope names the scope whose guard is before the program; empty where none is.
	Scope string `json:"scope,omitempty"`
	// Priority orders programs of ordered hooks, low first.
	Priority int32 `json:"priority,omitempty"`
	// AfterNamespaces has a program of the cluster run behind those of namespaces.
	AfterNamespaces bool `json:"afterNamespaces,omitempty"`
	// Position is where all programs of Skep's are to be on the hook; empty where nothing is asked for.
	Position v1alpha1.Position `json:"position,omitempty"`
	// ProceedOn has bit v set where XDP verdict v lets the next program run.
	ProceedOn uint32 `json:"proceedOn,omitempty"`
	// XDPMode is how an XDP program is to run on its interface; empty is Auto.
	XDPMode v1alpha1.XDPMode `json:"xdpMode,omitempty"`
	// Optional attachments are left out where the node lacks the hook or the target.
	Optional bool `json:"optional,omitempty"`
}

// Place says where the program is attached, and whether a guard keeps it to chosen pods.
func (a Attachment) Place() string {
	if a.Scope != "" && a.In == "" {
		return a.Target.String() + " for chosen pods"
	}
	return a.Target.String()
}

// Key names the attachment within its application, whatever its revision,
// priority and verdicts: those change under a link that stays. An interface
// goes by its network namespace and index, so that a renamed one keeps its links.
func (a Attachment) Key() string {
	a = a.Unnamed()
	body, err := json.Marshal(struct {
		Program, Hook string
		Target        Target
		Scope         string `json:",omitempty"`
	}{a.Program, a.Hook, a.Target, a.Scope})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// Unnamed returns the attachment with what Key is made of alone. Two of them are equal where their keys are, and no key
// need be made to find that out.
func (a Attachment) Unnamed() Attachment {
	t := a.Target
	t.Interface, t.In = "", ""
	return Attachment{Program: a.Program, Hook: a.Hook, Target: t, Scope: a.Scope}
}

// ExclusivePlace is a place that takes one program, whatever else is said of it.
type ExclusivePlace struct {
	hook      string
	netnsID   uint64
	netfilter v1alpha1.Netfilter
}

// Exclusive returns the place of an attachment whose hook gives it to one program alone.
func (a Attachment) Exclusive() (ExclusivePlace, bool) {
	h, ok := hook.Lookup(a.Hook)
	n := a.Netfilter
	n.Defragment = false
	return ExclusivePlace{a.Hook, a.NetnsID, n}, ok && h.TakesOne()
}

// InSharedFile returns the attachment without the container in whose files it was found; not ok
// where that is none. The kernel runs a probe in a file for all containers that share it, whether or
// not the one runs that it was made through.
func (a Attachment) InSharedFile() (Attachment, bool) {
	t := a.Target
	t.Container, t.In = "", ""
	return Attachment{Program: a.Program, Hook: a.Hook, Target: t, Scope: a.Scope}, a.Container != ""
}

// runsAs reports whether a link of one attachment does what one of the other would.
func (a Attachment) runsAs(b Attachment) bool {
	inFile, shared := a.InSharedFile()
	other, _ := b.InSharedFile()
	return a.Unnamed() == b.Unnamed() || shared && inFile == other
}

// Application is one application as it is wanted.
type Application struct {
	UID      string
	Identity v1alpha1.Identity
	// Revision is what is to be live; it is pinned already.
	Revision string
	// Taken names the maps that the revision has from other applications, as they are in the
	// kernel: the revision may be loaded once more with others.
	Taken string
	// Attachments are where, with every target resolved.
	Attachments []Attachment
}

// Link is one pinned link as it was found.
type Link struct {
	UID string
	// Attachment is what was written beside the pin.
	Attachment Attachment
	// Revision is the one whose program the link runs; empty where it runs one
	// that no revision has.
	Revision string
	// Severed links run nothing any more.
	Severed bool
	// Elsewhere links run at another place than the text says, or filters at several: near it,
	// where an update or a move did not end.
	Elsewhere bool
	// Position is the link's place on an ordered hook, counted with all others
	// there; of no meaning elsewhere, and where Unplaced says that it is not known.
	Position int
	Unplaced bool
	// Strayed links are on the wrong side of programs of others, and are to move.
	Strayed bool
}

// Member is one program of an XDP chain.
type Member struct {
	UID      string            `json:"uid"`
	Identity v1alpha1.Identity `json:"application"`
	Revision string            `json:"revision"`
	Program  string            `json:"program"`
	Priority int32             `json:"priority"`
	// AfterNamespaces is as in Attachment.
	AfterNamespaces bool `json:"afterNamespaces,omitempty"`
	// ProceedOn has bit v set where verdict v lets the next member run.
	ProceedOn uint32 `json:"proceedOn"`
	// Taken names the maps of other applications that it was loaded with.
	Taken string `json:"taken,omitempty"`
	// Mode is how it asks the chain to run; empty is Auto.
	Mode v1alpha1.XDPMode `json:"xdpMode,omitempty"`
}

// Chain is the XDP link of one interface and what it runs, in order.
type Chain struct {
	Device Device
	// Interface is the interface's Label.
	Interface string
	Members   []Member
	// Given are the members that the agent gave to a link that runs something else,
	// or that cannot be read. Members are none then.
	Given []Member
	// Unknown chains run a program of which nothing is pinned but the link. Members
	// and Given are none then, and Users the uids whose maps or programs it uses.
	Unknown bool
	Users   []string
	// Off are the members that are switched off.
	Off []Member
	// Severed chains run nothing any more.
	Severed bool
}

// given are the members of a chain as the agent made it last.
func (c Chain) given() []Member {
	if c.Members != nil {
		return c.Members
	}
	return c.Given
}

// State is what was found in the kernel.
type State struct {
	// Revisions are the whole ones, by uid; none for an application that has links alone.
	Revisions map[string][]string
	Links     []Link
	Chains    []Chain
	// Interfaces are those that exist, in the agent's own network namespace and in others.
	Interfaces []Interface
}

// Want is what is to be.
type Want struct {
	// Applications in any order.
	Applications []Application
	// Gone are the uids that are to leave nothing behind.
	Gone []string
	// Frozen are the uids whose links and revisions are left as they are: their
	// intent is not known here, or cannot be had at present. None of them is Gone.
	Frozen []string
	// Out are the uids, by device, that are left out of the chain there, which cannot be
	// made with them.
	Out map[Device][]string
	// Left are the devices whose chain is left as it is found, since no other can be made.
	Left map[Device]bool
	// Interim are the members of chains, by device, that run until those that the
	// applications want can be made.
	Interim map[Device][]Member
}

// Verb is what an action does.
type Verb string

// The verbs, in the order in which a plan uses them.
const (
	// Attach makes a link.
	Attach Verb = "attach"
	// Update swaps the program under a link.
	Update Verb = "update"
	// Overlap makes a new link and then lets the old one go.
	Overlap Verb = "overlap"
	// Move does the same to change a link's place on an ordered hook.
	Move Verb = "move"
	// SetChain sets the members of an interface's XDP chain; none detaches it.
	SetChain Verb = "chain"
	// Detach takes a link away.
	Detach Verb = "detach"
	// Drop removes the pins of a revision nothing runs any more.
	Drop Verb = "drop"
	// Forget removes the last trace of an application.
	Forget Verb = "forget"
)

// Action is one step. Which fields are set is decided by the verb.
type Action struct {
	Verb       Verb
	UID        string
	Revision   string
	Attachment Attachment
	// Replaces is the key of another link of the application that has the place of the
	// attachment, which takes one program. That link is not wanted any more.
	Replaces string
	// Device and Interface are those of a chain, which gets Members.
	Device    Device
	Interface string
	Members   []Member
}

// String is one line, for logs and tests.
func (a Action) String() string {
	switch a.Verb {
	case SetChain:
		names := make([]string, len(a.Members))
		for i, m := range a.Members {
			names[i] = m.UID + "@" + m.Revision + "/" + m.Program + ":" + strconv.Itoa(int(m.Priority))
			if m.Mode != "" {
				names[i] += "," + string(m.Mode)
			}
		}
		return fmt.Sprintf("chain %s [%s]", a.Interface, strings.Join(names, " "))
	case Drop:
		return fmt.Sprintf("drop %s@%s", a.UID, a.Revision)
	case Forget:
		return fmt.Sprintf("forget %s", a.UID)
	default:
		return fmt.Sprintf("%s %s@%s/%s %s %s", a.Verb, a.UID, a.Revision, a.Attachment.Instance, a.Attachment.Hook, a.Attachment.Target)
	}
}
