package bytecode

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/pointers"
)

// setsockopt is the helper by which a program sets an option of a socket. The kernel asks for no capability
// then (net/core/sock.c, sockopt_ns_capable).
const setsockopt = "bpf_setsockopt"

// The levels of socket options, of include/linux/socket.h.
const (
	levelSocket = 1
	levelTCP    = 6
	levelIPv6   = 41
)

// options are those by level that a task may set without a capability, and whose values have the same bounds where a
// program sets them: net/core/sock.c (sk_setsockopt), net/ipv4/tcp.c (do_tcp_setsockopt), net/ipv6/ipv6_sockglue.c.
// What they lack is left to tasks: a mark, a device, a priority above 6, a restricted congestion control, and
// options of programs alone (TCP_BPF_…). Options of IPv4 have level 0, which cannot be told from an unknown one.
var options = map[int][]int{
	// SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_REUSEPORT, SO_RCVLOWAT, SO_MAX_PACING_RATE, SO_TXREHASH.
	levelSocket: {2, 7, 8, 9, 15, 18, 47, 74},
	// TCP_NODELAY, TCP_MAXSEG, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_WINDOW_CLAMP, TCP_QUICKACK,
	// TCP_USER_TIMEOUT, TCP_NOTSENT_LOWAT, TCP_SAVE_SYN.
	levelTCP: {1, 2, 4, 5, 6, 7, 10, 12, 18, 25, 27},
	// IPV6_TCLASS, IPV6_AUTOFLOWLABEL.
	levelIPv6: {67, 70},
}

// optionNames are options that need a capability, as messages name them.
var optionNames = map[[2]int]string{
	{levelSocket, 12}: "SO_PRIORITY", {levelSocket, 25}: "SO_BINDTODEVICE", {levelSocket, 36}: "SO_MARK", {levelSocket, 62}: "SO_BINDTOIFINDEX",
	{levelTCP, 13}: "TCP_CONGESTION",
}

// lifts are the ways in which a program may give a task on whose cgroup it is what the task has no capability
// for. They are collected while the program is followed.
type lifts struct {
	by []string
	// followed says that calls of setsockopt were seen.
	followed bool
}

// called notes an option that needs a capability, or that is not known.
func (l *lifts) called(id int64, arguments [5]pointers.Passed) {
	if h, _ := helperByID(id); h.Name != setsockopt {
		return
	}
	l.followed = true
	level, option := arguments[1].Number, arguments[2].Number
	switch {
	case slices.Contains(options[level], option):
	case optionNames[[2]int{level, option}] != "":
		l.by = append(l.by, setsockopt+" of "+optionNames[[2]int{level, option}])
	case level == 0 || option == 0:
		l.by = append(l.by, setsockopt+" of an option that is no constant, or of level 0 (IPPROTO_IP)")
	default:
		l.by = append(l.by, fmt.Sprintf("%s of option %d of level %d", setsockopt, option, level))
	}
}

// returned notes a return value by which a program on bind lets a task have a port below 1024
// (BPF_RET_BIND_NO_CAP_NET_BIND_SERVICE). One that is no constant is bounded where the program is loaded.
func (l *lifts) returned(number int) {
	if number > 1 {
		l.by = append(l.by, fmt.Sprintf("returning %d, which on bind lets a port below 1024 be used (return 0 or 1)", number))
	}
}

// finish says how the program may lift rights.
func (l *lifts) finish(p *inspected, t ebpf.ProgramType, insns asm.Instructions) {
	if slices.Contains(p.facts.Helpers, setsockopt) && !l.followed {
		l.by = append(l.by, setsockopt+", which could not be followed")
	}
	for i, is := range contextAccesses(t, insns) {
		ins := &insns[i]
		if field := fieldThatLifts(t, ins); is && ins.OpCode.Class() != asm.LdXClass && field != "" {
			l.by = append(l.by, "a store to "+field)
		}
	}
	slices.Sort(l.by)
	p.facts.LiftsRightsBy = slices.Compact(l.by)
}

// fieldThatLifts names the field of a context that an instruction stores to, where a task may set no such value
// by itself; empty where it may. Of a packet it may set cb, tc_index and tc_classid, which nothing but its own qdiscs reads: what
// else it sets leaves the pod where its device is a macvlan or ipvlan, which scrubs nothing. Of a socket it may set nothing.
// Of an address it may set the one that it gave the kernel, and where a datagram comes from only by IPv4, of which the kernel asks whether the
// address is one of the network's (ip_route_output_key_hash_rcu, net/ipv4/route.c); of IPv6 it asks a task alone (ip6_datagram_send_ctl,
// net/ipv6/datagram.c). The structures are those of include/uapi/linux/bpf.h: __sk_buff, bpf_sock and bpf_sock_addr. With a vmlinux.h every
// store to one is relocated, to where it is already: that of an address counts as it stands, and one that a node leads elsewhere as Beyond.
func fieldThatLifts(t ebpf.ProgramType, ins *asm.Instruction) string {
	const tcIndex, endOfCB, tcClassID = 44, 68, 72
	const userIP4, endOfUserPort, srcIP4, srcIP6 = 4, 28, 40, "msg_src_ip6"
	relocated := btf.CORERelocationMetadata(ins) != nil
	own := !relocated && (ins.Offset >= tcIndex && ins.Offset < endOfCB || ins.Offset == tcClassID)
	var of string
	var names map[int16]string
	switch {
	case t == ebpf.CGroupSockAddr && ins.Offset != srcIP4 && (ins.Offset < userIP4 || ins.Offset >= endOfUserPort):
		of, names = "bpf_sock_addr", map[int16]string{44: srcIP6, 48: srcIP6, 52: srcIP6, 56: srcIP6}
	case t == ebpf.CGroupSock:
		of, names = "bpf_sock", map[int16]string{0: "bound_dev_if", 16: "mark", 20: "priority"}
	case (t == ebpf.CGroupSKB || t == ebpf.SchedCLS) && !own:
		of, names = "__sk_buff", map[int16]string{8: "mark", 12: "queue_mapping", 32: "priority", 152: "tstamp"}
	default:
		return ""
	}
	if name := names[ins.Offset]; name != "" && !relocated {
		return of + "." + name
	}
	return "a field of " + of
}
