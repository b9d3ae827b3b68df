package hook_test

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

func TestSubjects(t *testing.T) {
	for place, want := range map[[2]string]hook.Subject{
		{"xdp", ""}: hook.Packet, {"tcx/ingress", ""}: hook.Packet, {"tc/egress", ""}: hook.Packet, {"cgroup_skb/egress", ""}: hook.Packet,
		{"netfilter", ""}: hook.Packet, {"sockops", ""}: hook.Packet, {"sk_lookup", ""}: hook.Packet, {"netkit/peer", ""}: hook.Packet,
		{"cgroup/connect4", ""}: hook.Current, {"cgroup/sysctl", ""}: hook.Current, {"cgroup/sock_release", ""}: hook.Any,
		{"uprobe", "/bin/bash:readline"}: hook.Current, {"uretprobe.multi", ""}: hook.Current, {"usdt", ""}: hook.Current,
		{"ksyscall", "openat"}: hook.Current, {"kretsyscall", ""}: hook.Current,
		{"tracepoint", "syscalls/sys_enter_openat"}: hook.Current, {"tracepoint", "raw_syscalls/sys_exit"}: hook.Current,
		{"tracepoint", "sched/sched_process_exec"}: hook.Current, {"tracepoint", "sched/sched_switch"}: hook.Any,
		{"tracepoint", "raw_syscalls/sched_process_exec"}: hook.Any, {"tracepoint", "net/sys_enter"}: hook.Any, {"tracepoint", "sys_enter"}: hook.Any,
		{"raw_tp", "sys_enter"}: hook.Current, {"tp_btf", "sys_exit"}: hook.Current, {"tp_btf", "sched_switch"}: hook.Any, {"raw_tp.w", "nbd_send_request"}: hook.Any,
		{"kprobe", "__x64_sys_openat"}: hook.Current, {"kprobe.multi", "__x64_sys_*"}: hook.Current, {"kprobe.multi", "__x64_*"}: hook.Any,
		{"kprobe", "tcp_v?_connect"}: hook.Any, {"kprobe", "do_unlinkat+0x10"}: hook.Current, {"fentry", "tcp_connect"}: hook.Current,
		{"fexit", "tcp_rcv_established"}: hook.Any, {"kprobe", "tcp_close"}: hook.Any, {"fmod_ret", "security_file_open"}: hook.Current,
		{"kprobe.session", "security_sk_free"}: hook.Any, {"fentry", ""}: hook.Any, {"kprobe", ""}: hook.Any, {"kretprobe", "*"}: hook.Any,
		{"lsm", "file_open"}: hook.Current, {"lsm", "socket_sock_rcv_skb"}: hook.Any, {"lsm", "inet_conn_request"}: hook.Any, {"lsm", ""}: hook.Any,
		{"lsm_cgroup", "socket_bind"}: hook.Current,
		{"freplace", "vfs_read"}:      hook.Any, {"iter", "task"}: hook.Any, {"perf_event", ""}: hook.Any, {"struct_ops", ""}: hook.Any,
		{"no such hook", ""}: hook.Any,
	} {
		if got := hook.SubjectOf(place[0], place[1]); got != want {
			t.Errorf("SubjectOf(%q, %q) = %s, want %s", place[0], place[1], got, want)
		}
	}
}

// TestOnlyWhatRunsInATaskIsGuarded holds the hooks that can be guarded to what is known of
// their types, so that a new hook is thought about.
func TestOnlyWhatRunsInATaskIsGuarded(t *testing.T) {
	guardable := 0
	for _, h := range hook.All() {
		if !h.Guardable() {
			continue
		}
		guardable++
		if hook.SubjectOfType(h.ProgramType) == hook.Packet || h.Shape == hook.NetworkDevice || h.Shape == hook.Cgroup {
			t.Errorf("%s is guarded, and is about packets or has its cgroup", h.Name)
		}
	}
	if guardable != 21 {
		t.Errorf("%d hooks can be guarded", guardable)
	}
	if hook.SubjectOfType(ebpf.Kprobe) != hook.Any {
		t.Error("a kprobe without a hook is about a task")
	}
}

func TestWhereRegistersOfTheTaskAre(t *testing.T) {
	for at, want := range map[[2]string]hook.Registers{
		{"usdt", ""}: hook.InContext, {"uprobe", ""}: hook.InContext, {"uretprobe", ""}: hook.InContext, {"uprobe.multi", ""}: hook.InContext,
		{"ksyscall", "openat"}: hook.InArgument, {"kprobe", "__x64_sys_openat"}: hook.InArgument, {"kprobe.multi", "__x64_sys_open*"}: hook.InArgument,
		{"kprobe.session", "__arm64_sys_openat"}: hook.InArgument, {"raw_tp", "sys_enter"}: hook.InArgument, {"raw_tp", "sys_exit"}: hook.InArgument,
		{"kretsyscall", "openat"}: "", {"kretprobe", "__x64_sys_openat"}: "", {"kprobe", "vfs_read"}: "", {"kprobe", "*"}: "",
		{"kprobe", "__do_sys_openat"}: "", {"kprobe", "__se_sys_openat"}: "", {"raw_tp", "sched_process_exec"}: "", {"tracepoint", "raw_syscalls/sys_enter"}: "",
		{"fentry", "__x64_sys_openat"}: "", {"xdp", ""}: "", {"no such hook", "sys_enter"}: "",
	} {
		if got := hook.RegistersAt(at[0], at[1]); got != want {
			t.Errorf("at %s %s registers are in %q, want %q", at[0], at[1], got, want)
		}
	}
}
