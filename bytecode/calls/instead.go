package calls

// Instead returns what a namespace's program can do in place of what it is denied for a reason of Denied, ReadsKernel or
// LiftsRights; empty where it can do nothing like it.
func Instead(why string) string {
	switch why {
	case ReadsKernel:
		return "read what the hook hands out, such as the fields of a tracepoint, or memory of the process by bpf_probe_read_user"
	case readsText:
		return "write a struct into a ring buffer (bpf_ringbuf_output), and have its reader write the text"
	case runsLater:
		return "do that work at a later event, such as the next packet or system call, or in the process that reads the maps"
	case sleeps:
		return "read memory of the process by bpf_probe_read_user, which does not sleep"
	case stores:
		return "keep values in a map of type LRUHash, by a key such as bpf_get_current_pid_tgid or bpf_get_socket_cookie"
	case findsOthers, SeesSocket:
		return "attach to cgroup_skb/ingress or cgroup_skb/egress, where the packet's socket is one of the Pods'"
	case seesTask:
		return "note the task where it makes the connection, such as at cgroup/connect4, in a map by addresses and ports"
	case readsHanded:
		return "read its memory at the system call, such as by tracepoint syscalls/sys_enter_connect"
	case goesAround:
		return "drop the packet or let it pass (return 2 or -1), or redirect it on hook xdp"
	case decides:
		return "observe the call by a tracepoint, or deny a connection by returning 0 at cgroup/connect4"
	case lifts:
		return "return 0 to deny, and 1 to decide nothing"
	case counts:
		return "measure time by bpf_ktime_get_ns, or count events in a map"
	case LiftsRights:
		return "have the process in the Pod set it, which needs the capability for it"
	}
	return ""
}
