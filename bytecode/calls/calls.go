// Package calls has what each function of the kernel that a program may call tells it, what the
// function writes and whom it is about, and where a program of a namespace may call it. The table
// is the list of what is allowed: a function that it does not have is denied.
//
// It is data and pure functions, for the gate and for the agent. It knows nothing of applications.
package calls

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

// Where says where a program of a namespace may call a function.
type Where string

// The places.
const (
	// Everywhere is on every hook that a namespace may use.
	Everywhere Where = "everywhere"
	// OffTraffic is on every hook but those of traffic, where programs of the cluster see the packet next.
	OffTraffic Where = "not on tcx and tc"
	// OnOwnSockets is where the socket of a packet is one of the Pod's.
	OnOwnSockets Where = "on the Pod's own sockets"
	// InTasks is where the current task is one of the Pod's, or was handed a socket of the Pod.
	InTasks Where = "in tasks of the Pod"
	// InOwnTasks is where the current task is one of the Pod's.
	InOwnTasks Where = "in tasks of the Pod alone"
	// Nowhere is on no hook.
	Nowhere Where = "nowhere"
)

// Row is what some functions have in common.
type Row struct {
	// Names are those of the functions, between spaces.
	Names string
	// Tells is what the result and the memory that the function fills tell the program.
	Tells string
	// Writes is what the function changes besides; empty for nothing.
	Writes string
	// About is whose task, socket or memory it is about.
	About string
	// Where a program of a namespace may call them.
	Where Where
	// Why completes "the program …" where they are denied, and the place alone does not say it.
	Why string
	// Proof is a test, or a function of the kernel's source with its file.
	Proof string
}

// Place says which tasks and sockets a program may meet that are not of its Pods. The zero value
// is a place that meets none.
type Place struct {
	// AnyTask: any task may be the current one. The receive path of a packet runs in whatever task is
	// interrupted, or sends it.
	AnyTask bool
	// HandedSocket: the current task may use a socket of a Pod which it was handed (SCM_RIGHTS of
	// unix(7)). A socket stays in the cgroup of the task that made it.
	HandedSocket bool
	// Traffic: programs of the cluster on the same hook see the packet next, however the program ends.
	Traffic bool
	// SentPacket: a packet may have the socket that sent it, in another Pod. The kernel keeps it with the packet between network
	// namespaces until it routes the packet (skb_scrub_packet), so also where a bridge of the Pod sends it out again.
	SentPacket bool
}

// And adds the place of one more hook.
func (p Place) And(h hook.Hook) Place {
	p.AnyTask = p.AnyTask || !h.Guardable() && hook.SubjectOf(h.Name, "") != hook.Current
	p.HandedSocket = p.HandedSocket || slices.Contains([]ebpf.ProgramType{ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt}, h.ProgramType)
	p.Traffic = p.Traffic || h.ProgramType == ebpf.SchedCLS
	p.SentPacket = p.SentPacket || h.ProgramType == ebpf.SchedCLS
	return p
}

// Or is a place that is one or the other.
func (p Place) Or(q Place) Place {
	return Place{p.AnyTask || q.AnyTask, p.HandedSocket || q.HandedSocket, p.Traffic || q.Traffic, p.SentPacket || q.SentPacket}
}

// Rows returns the table, in the order of its page.
func Rows() []Row { return slices.Concat(helpers, kfuncs) }

// Lookup finds the row of a helper or kfunc.
func Lookup(name string) (Row, bool) {
	for _, row := range Rows() {
		if slices.Contains(strings.Fields(row.Names), name) {
			return row, true
		}
	}
	return Row{}, false
}

// SeesSocket is why a program may not look at the socket of a packet at a device, by a call or by its context.
const SeesSocket = "looks at the socket of a packet at a device, which may be the sender's in another namespace"

// LiftsRights is why a program may not do what the task of a Pod has no capability for.
const LiftsRights = "gives tasks of its Pods what they have no capability for"

// ReadsKernel is why a program may not read what its hook does not hand out.
const ReadsKernel = "reads memory of the kernel, which belongs to all namespaces"

// The reasons that a place gives.
const (
	seesTask    = "sees the task that happens to run, which may be of any namespace"
	readsHanded = "reads memory of the task that uses a socket, which may be of another namespace and was handed it"
)

// Denied returns why a program of a namespace may not call a function at a place; empty where it
// may. It completes "the program …".
func Denied(name string, at Place) string {
	row, ok := Lookup(name)
	switch {
	case !ok:
		return "calls functions of the kernel that are not known to stay in its Pods"
	case row.Where == Nowhere, at.Traffic && row.Where == OffTraffic:
		return row.Why
	case at.AnyTask && (row.Where == InTasks || row.Where == InOwnTasks):
		return seesTask
	case at.HandedSocket && row.Where == InOwnTasks:
		return readsHanded
	case at.SentPacket && row.Where == OnOwnSockets:
		return SeesSocket
	}
	return ""
}
