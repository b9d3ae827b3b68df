package hook

import "github.com/cilium/ebpf"

// table holds every hook that cilium/ebpf's package link can attach, the clsact TC
// hooks, and what libbpf has sections for and nothing attaches. MinKernel is the first
// kernel where the program can be held by a bpf_link where there is such a link, else
// the first with the program type: what has no link cannot be pinned, and ends with the
// agent. The source is
// ebpf-docs, data/feature-versions.yaml (BSD-2), and the kernel's history where
// that has no link type: raw tracepoints and tracing 5.7 (70ed506c3bbc), struct_ops
// 6.4 (68b04864ca42), sockets of maps 6.10 (699c23f02c65), sessions of uprobes 6.13
// (d920179b3d48) and of fentry 7.0 (2d419c4).
//
// SEC("tc/ingress") means TCX to libbpf and so it does here; clsact is asked
// for by naming the hook.
//
// A namespace holds a hook in its own pods (docs/adr/0062-a-namespace-reaches-its-own-pods.md):
// those whose target is a pod's, and those of tasks, whose programs are guarded.
var table = []Hook{
	{"xdp", []string{"xdp"}, ebpf.XDP, ebpf.AttachXDP, NetworkDevice, "5.9", true, Ordered, ByLinkUpdate, Traffic, true},
	{"tcx/ingress", []string{"tcx/ingress", "tc/ingress"}, ebpf.SchedCLS, ebpf.AttachTCXIngress, NetworkDevice, "6.6", true, Ordered, ByLinkUpdate, Traffic, true},
	{"tcx/egress", []string{"tcx/egress", "tc/egress"}, ebpf.SchedCLS, ebpf.AttachTCXEgress, NetworkDevice, "6.6", true, Ordered, ByLinkUpdate, Traffic, true},
	{"tc/ingress", nil, ebpf.SchedCLS, ebpf.AttachNone, NetworkDevice, "4.5", true, Ordered, ByLinkUpdate, Traffic, true},
	{"tc/egress", nil, ebpf.SchedCLS, ebpf.AttachNone, NetworkDevice, "4.5", true, Ordered, ByLinkUpdate, Traffic, true},
	{"netkit/primary", []string{"netkit/primary"}, ebpf.SchedCLS, ebpf.AttachNetkitPrimary, NetworkDevice, "6.7", false, Ordered, ByLinkUpdate, Traffic, true},
	{"netkit/peer", []string{"netkit/peer"}, ebpf.SchedCLS, ebpf.AttachNetkitPeer, NetworkDevice, "6.7", false, Ordered, ByLinkUpdate, Traffic, true},
	{"tracepoint", []string{"tracepoint", "tp"}, ebpf.TracePoint, ebpf.AttachNone, Tracepoint, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"raw_tp", []string{"raw_tp", "raw_tracepoint"}, ebpf.RawTracepoint, ebpf.AttachNone, Tracepoint, "5.7", true, Parallel, ByOverlap, Observe, true},
	{"raw_tp.w", []string{"raw_tp.w", "raw_tracepoint.w"}, ebpf.RawTracepointWritable, ebpf.AttachNone, Tracepoint, "5.7", false, Parallel, ByOverlap, Control, true},
	{"tp_btf", []string{"tp_btf"}, ebpf.Tracing, ebpf.AttachTraceRawTp, Tracepoint, "5.7", true, Parallel, ByOverlap, Observe, true},
	{"kprobe", []string{"kprobe"}, ebpf.Kprobe, ebpf.AttachNone, KernelFunction, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"kretprobe", []string{"kretprobe"}, ebpf.Kprobe, ebpf.AttachNone, KernelFunction, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"ksyscall", []string{"ksyscall"}, ebpf.Kprobe, ebpf.AttachNone, KernelFunction, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"kretsyscall", []string{"kretsyscall"}, ebpf.Kprobe, ebpf.AttachNone, KernelFunction, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"kprobe.multi", []string{"kprobe.multi"}, ebpf.Kprobe, ebpf.AttachTraceKprobeMulti, KernelFunction, "5.18", true, Parallel, ByOverlap, Observe, true},
	{"kretprobe.multi", []string{"kretprobe.multi"}, ebpf.Kprobe, ebpf.AttachTraceKprobeMulti, KernelFunction, "5.18", true, Parallel, ByOverlap, Observe, true},
	{"kprobe.session", []string{"kprobe.session"}, ebpf.Kprobe, ebpf.AttachTraceKprobeSession, KernelFunction, "6.10", true, Parallel, ByOverlap, Observe, true},
	{"fentry", []string{"fentry"}, ebpf.Tracing, ebpf.AttachTraceFEntry, KernelFunction, "5.7", true, Parallel, ByOverlap, Observe, true},
	{"fexit", []string{"fexit"}, ebpf.Tracing, ebpf.AttachTraceFExit, KernelFunction, "5.7", true, Parallel, ByOverlap, Observe, true},
	{"fmod_ret", []string{"fmod_ret"}, ebpf.Tracing, ebpf.AttachModifyReturn, KernelFunction, "5.7", true, Parallel, ByOverlap, Control, true},
	{"fsession", []string{"fsession"}, ebpf.Tracing, ebpf.AttachNone, None, "7.0", false, Parallel, ByOverlap, Observe, false},
	{"freplace", []string{"freplace"}, ebpf.Extension, ebpf.AttachNone, KernelFunction, "5.7", false, Exclusive, ByOverlap, Control, false},
	{"uprobe", []string{"uprobe"}, ebpf.Kprobe, ebpf.AttachNone, UserBinary, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"uretprobe", []string{"uretprobe"}, ebpf.Kprobe, ebpf.AttachNone, UserBinary, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"uprobe.multi", []string{"uprobe.multi"}, ebpf.Kprobe, ebpf.AttachTraceUprobeMulti, UserBinary, "6.6", true, Parallel, ByOverlap, Observe, true},
	{"uretprobe.multi", []string{"uretprobe.multi"}, ebpf.Kprobe, ebpf.AttachTraceUprobeMulti, UserBinary, "6.6", true, Parallel, ByOverlap, Observe, true},
	{"uprobe.session", []string{"uprobe.session"}, ebpf.Kprobe, ebpf.AttachNone, None, "6.13", false, Parallel, ByOverlap, Observe, false},
	{"usdt", []string{"usdt"}, ebpf.Kprobe, ebpf.AttachNone, UserBinary, "5.15", true, Parallel, ByOverlap, Observe, true},
	{"lsm", []string{"lsm"}, ebpf.LSM, ebpf.AttachLSMMac, KernelFunction, "5.7", true, Parallel, ByOverlap, Control, true},
	{"lsm_cgroup", []string{"lsm_cgroup"}, ebpf.LSM, ebpf.AttachLSMCgroup, Cgroup, "6.0", true, Parallel, ByLinkUpdate, Control, true},
	{"iter", []string{"iter"}, ebpf.Tracing, ebpf.AttachTraceIter, None, "5.8", false, Parallel, ByOverlap, Observe, true},
	{"cgroup_skb/ingress", []string{"cgroup_skb/ingress"}, ebpf.CGroupSKB, ebpf.AttachCGroupInetIngress, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Traffic, true},
	{"cgroup_skb/egress", []string{"cgroup_skb/egress"}, ebpf.CGroupSKB, ebpf.AttachCGroupInetEgress, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Traffic, true},
	{"cgroup/sock_create", []string{"cgroup/sock_create", "cgroup/sock"}, ebpf.CGroupSock, ebpf.AttachCGroupInetSockCreate, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/sock_release", []string{"cgroup/sock_release"}, ebpf.CGroupSock, ebpf.AttachCgroupInetSockRelease, Cgroup, "5.9", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/post_bind4", []string{"cgroup/post_bind4"}, ebpf.CGroupSock, ebpf.AttachCGroupInet4PostBind, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/post_bind6", []string{"cgroup/post_bind6"}, ebpf.CGroupSock, ebpf.AttachCGroupInet6PostBind, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/bind4", []string{"cgroup/bind4"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Bind, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/bind6", []string{"cgroup/bind6"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Bind, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/connect4", []string{"cgroup/connect4"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/connect6", []string{"cgroup/connect6"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/sendmsg4", []string{"cgroup/sendmsg4"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Sendmsg, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/sendmsg6", []string{"cgroup/sendmsg6"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/recvmsg4", []string{"cgroup/recvmsg4"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP4Recvmsg, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/recvmsg6", []string{"cgroup/recvmsg6"}, ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Recvmsg, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getpeername4", []string{"cgroup/getpeername4"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupInet4GetPeername, Cgroup, "5.8", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getpeername6", []string{"cgroup/getpeername6"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupInet6GetPeername, Cgroup, "5.8", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getsockname4", []string{"cgroup/getsockname4"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupInet4GetSockname, Cgroup, "5.8", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getsockname6", []string{"cgroup/getsockname6"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupInet6GetSockname, Cgroup, "5.8", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/connect_unix", []string{"cgroup/connect_unix"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupUnixConnect, Cgroup, "6.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/sendmsg_unix", []string{"cgroup/sendmsg_unix"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupUnixSendmsg, Cgroup, "6.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/recvmsg_unix", []string{"cgroup/recvmsg_unix"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupUnixRecvmsg, Cgroup, "6.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getpeername_unix", []string{"cgroup/getpeername_unix"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupUnixGetpeername, Cgroup, "6.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getsockname_unix", []string{"cgroup/getsockname_unix"}, ebpf.CGroupSockAddr, ebpf.AttachCgroupUnixGetsockname, Cgroup, "6.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/sysctl", []string{"cgroup/sysctl"}, ebpf.CGroupSysctl, ebpf.AttachCGroupSysctl, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/getsockopt", []string{"cgroup/getsockopt"}, ebpf.CGroupSockopt, ebpf.AttachCGroupGetsockopt, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/setsockopt", []string{"cgroup/setsockopt"}, ebpf.CGroupSockopt, ebpf.AttachCGroupSetsockopt, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"cgroup/dev", []string{"cgroup/dev"}, ebpf.CGroupDevice, ebpf.AttachCGroupDevice, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Control, true},
	{"sockops", []string{"sockops"}, ebpf.SockOps, ebpf.AttachCGroupSockOps, Cgroup, "5.7", true, Parallel, ByLinkUpdate, Traffic, true},
	{"sk_lookup", []string{"sk_lookup"}, ebpf.SkLookup, ebpf.AttachSkLookup, NetworkNamespace, "5.9", true, Parallel, ByLinkUpdate, Traffic, true},
	{"flow_dissector", []string{"flow_dissector"}, ebpf.FlowDissector, ebpf.AttachFlowDissector, NetworkNamespace, "5.8", false, Exclusive, ByLinkUpdate, Traffic, true},
	{"netfilter", []string{"netfilter"}, ebpf.Netfilter, ebpf.AttachNetfilter, NetworkNamespace, "6.4", false, Ordered, ByOverlap, Traffic, true},
	{"perf_event", []string{"perf_event"}, ebpf.PerfEvent, ebpf.AttachNone, PerfEvent, "5.15", false, Parallel, ByOverlap, Observe, true},
	{"socket", []string{"socket"}, ebpf.SocketFilter, ebpf.AttachNone, None, "3.19", false, Exclusive, ByOverlap, Observe, false},
	{"sk_skb/stream_parser", []string{"sk_skb/stream_parser"}, ebpf.SkSKB, ebpf.AttachSkSKBStreamParser, None, "6.10", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_skb/stream_verdict", []string{"sk_skb/stream_verdict"}, ebpf.SkSKB, ebpf.AttachSkSKBStreamVerdict, None, "6.10", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_skb/verdict", []string{"sk_skb/verdict"}, ebpf.SkSKB, ebpf.AttachSkSKBVerdict, None, "6.10", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_skb", []string{"sk_skb"}, ebpf.SkSKB, ebpf.AttachNone, None, "4.14", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_reuseport", []string{"sk_reuseport"}, ebpf.SkReuseport, ebpf.AttachSkReuseportSelect, None, "4.19", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_reuseport/migrate", []string{"sk_reuseport/migrate"}, ebpf.SkReuseport, ebpf.AttachSkReuseportSelectOrMigrate, None, "5.14", false, Exclusive, ByOverlap, Traffic, false},
	{"lwt_in", []string{"lwt_in"}, ebpf.LWTIn, ebpf.AttachNone, None, "4.10", false, Exclusive, ByOverlap, Traffic, false},
	{"lwt_out", []string{"lwt_out"}, ebpf.LWTOut, ebpf.AttachNone, None, "4.10", false, Exclusive, ByOverlap, Traffic, false},
	{"lwt_xmit", []string{"lwt_xmit"}, ebpf.LWTXmit, ebpf.AttachNone, None, "4.10", false, Exclusive, ByOverlap, Traffic, false},
	{"lwt_seg6local", []string{"lwt_seg6local"}, ebpf.LWTSeg6Local, ebpf.AttachNone, None, "4.18", false, Exclusive, ByOverlap, Traffic, false},
	{"sk_msg", []string{"sk_msg"}, ebpf.SkMsg, ebpf.AttachSkMsgVerdict, None, "6.10", false, Exclusive, ByOverlap, Traffic, false},
	{"lirc_mode2", []string{"lirc_mode2"}, ebpf.LircMode2, ebpf.AttachLircMode2, None, "4.18", false, Parallel, ByOverlap, Observe, false},
	{"syscall", []string{"syscall"}, ebpf.Syscall, ebpf.AttachNone, None, "5.14", false, Parallel, ByOverlap, Control, true},
	{"struct_ops", []string{"struct_ops"}, ebpf.StructOps, ebpf.AttachNone, None, "6.4", false, Exclusive, ByLinkUpdate, Control, false},
}
