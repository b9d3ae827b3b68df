package hook

import "github.com/cilium/ebpf"

// obstacles say why programs of a type are not attached.
var obstacles = map[ebpf.ProgramType]string{
	ebpf.Extension:    "it replaces a function of another program, whose owner would have to allow that",
	ebpf.LSM:          "the library that loads programs cannot name the LSM hook to the kernel for a cgroup",
	ebpf.SocketFilter: "a process attaches it to a socket of its own (SO_ATTACH_BPF), and it ends with that process",
	ebpf.SkSKB:        "it attaches to a map of sockets, which processes fill with their own",
	ebpf.SkMsg:        "it attaches to a map of sockets, which processes fill with their own",
	ebpf.SkReuseport:  "a process attaches it to the sockets that it shares a port with (SO_ATTACH_REUSEPORT_EBPF)",
	ebpf.LWTIn:        "it is a part of a route, which ip-route(8) adds (encap bpf)",
	ebpf.LWTOut:       "it is a part of a route, which ip-route(8) adds (encap bpf)",
	ebpf.LWTXmit:      "it is a part of a route, which ip-route(8) adds (encap bpf)",
	ebpf.LWTSeg6Local: "it is a part of a route, which ip-route(8) adds (encap seg6local)",
	ebpf.LircMode2:    "it attaches to an infrared receiver, for which the kernel has no links",
	ebpf.StructOps:    "it is a table of functions that the kernel calls, such as a congestion control, and not one program",
	ebpf.Syscall:      "it attaches to nothing: a process has it run, cannot be ended meanwhile, and it may load programs that nobody has read (bpf_sys_bpf)",
}

// Obstacle says why the hook is not attached; empty where it is, or where no more is to be
// said than that.
func (h Hook) Obstacle() string {
	if h.Attachable {
		return ""
	}
	return obstacles[h.ProgramType]
}
