package hook

import "strings"

// Example is an attachment of a program. Said and Added are fields of an attachment as YAML, such
// as "cgroup: /": those that the program's section says, and those that a definition may add. Each
// is empty where there are none.
type Example struct{ Section, Hook, Said, Added string }

// Examples are attachments to hooks of every kind of target.
func Examples() []Example {
	return []Example{
		{"xdp", "xdp", "", "interfaces: {primary: true}"},
		{"tcx/ingress", "tcx/ingress", "", `interfaces: {names: ["eth*"]}, priority: 200`},
		{"tc/ingress", "tcx/ingress", "", `interfaces: {names: ["en*"], exclude: [eno1]}`},
		{"tc/ingress", "tc/ingress", "", "interfaces: {names: [eth0]}"},
		{"tc", "tcx/egress", "", "interfaces: {names: [eth0]}"},
		{"socket", "tcx/ingress", "", "interfaces: {names: [eth0]}"},
		{"raw_tp/sched_switch", "raw_tp", "tracepoint: sched_switch", ""},
		{"tp_btf/sched_switch", "tp_btf", "tracepoint: sched_switch", ""},
		{"tracepoint/syscalls/sys_enter_execve", "tracepoint", "tracepoint: syscalls/sys_enter_execve", ""},
		{"kprobe/tcp_connect", "kprobe", "functions: {names: [tcp_connect]}", ""},
		{"kprobe/tcp_connect+0x10", "kprobe", "functions: {names: [tcp_connect], offset: 16}", ""},
		{"kprobe.multi/tcp_*", "kprobe.multi", `functions: {names: ["tcp_*"]}`, ""},
		{"ksyscall/openat", "ksyscall", "functions: {names: [openat]}", ""},
		{"fentry/veth:veth_xmit", "fentry", "functions: {names: [veth_xmit], module: veth}", ""},
		{"lsm.s/file_open", "lsm", "functions: {names: [file_open]}", ""},
		{"uprobe//usr/bin/bash:readline", "uprobe", "binary: {path: /usr/bin/bash, symbol: readline}", ""},
		{"uprobe.multi/libssl.so.3:SSL_*", "uprobe.multi", `binary: {path: libssl.so.3, symbols: {names: ["SSL_*"]}}`, ""},
		{"usdt//usr/bin/python3:python:line", "usdt", "binary: {path: /usr/bin/python3, usdt: {provider: python, name: line}}", ""},
		{"iter/task", "iter", "", ""},
		{"syscall", "syscall", "", ""},
		{"cgroup/connect4", "cgroup/connect4", "", "cgroup: /system.slice"},
		{"lsm_cgroup/socket_bind", "lsm_cgroup", "functions: {names: [socket_bind]}", "cgroup: /system.slice"},
		{"cgroup/skb", "cgroup_skb/egress", "", "cgroup: /"},
		{"sk_lookup", "sk_lookup", "", "networkNamespace: /run/netns/blue"},
		{"netfilter", "netfilter", "", "netfilter: {family: IPv4, hook: LocalIn}"},
		{"perf_event", "perf_event", "", "perfEvent: {event: cpu-clock, frequency: 99}"},
	}
}

// fields are all of the example.
func (e Example) fields() string {
	return strings.TrimPrefix(strings.TrimSuffix(e.Said+", "+e.Added, ", "), ", ")
}

// Needs are the fields of an attachment's target as YAML, by the example that is most like the
// hook; empty where it has no target.
func (h Hook) Needs() string {
	like := ""
	for _, e := range Examples() {
		switch other, _ := Lookup(e.Hook); {
		case other.Name == h.Name:
			return e.fields()
		case like == "" && other.Shape == h.Shape && other.InBinary() == h.InBinary() && other.TakesSyscalls() == h.TakesSyscalls():
			like = e.fields()
		}
	}
	return like
}
