package hook

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// Subject is whose doing a program sees where it is attached.
type Subject string

const (
	// Current is the task that runs when the program does. What the program sees is done by
	// that task, so a scope guard decides by it.
	Current Subject = "current"
	// Packet is a packet, a connection or a socket, whatever task runs.
	Packet Subject = "packet"
	// Any is any task, or none: the program may see what others do.
	Any Subject = "any"
)

// SubjectOf returns whose doing a program sees at a target of a hook, as an attachment or a
// section names it. Of functions, tracepoints and LSM hooks it knows those below; all others
// are Any, and so is a hook that the table does not have.
//
// Current says two things. It is never an interrupt, which runs over any task. And what is
// seen is what the task itself asks for: not the memory of others that it reclaims, nor the
// sockets of others that it happens to close. A kernel thread may call the same function,
// also for somebody else, but is in no pod, so a guard leaves it out. A worker of io_uring
// is a thread of the process that asked.
func SubjectOf(hookName, target string) Subject {
	h, ok := Lookup(hookName)
	if !ok {
		return Any
	}
	switch {
	case h.Shape == UserBinary || h.TakesSyscalls():
		return Current
	case h.Shape == Cgroup && h.ProgramType != ebpf.LSM:
		return ofCgroup(h)
	case h.ProgramType == ebpf.LSM:
		return when(slices.Contains(strings.Fields(lsmOfTasks), target))
	case h.Shape == Tracepoint:
		return when(isTracepointOfTasks(h, target))
	case h.Shape == KernelFunction && h.Guardable():
		return when(isFunctionOfTasks(target))
	}
	return SubjectOfType(h.ProgramType)
}

// SubjectOfType is what is known of a program by its type alone.
func SubjectOfType(t ebpf.ProgramType) Subject {
	switch t {
	case ebpf.XDP, ebpf.SchedCLS, ebpf.SchedACT, ebpf.SocketFilter, ebpf.CGroupSKB, ebpf.LWTIn, ebpf.LWTOut, ebpf.LWTXmit, ebpf.LWTSeg6Local,
		ebpf.SockOps, ebpf.SkSKB, ebpf.SkMsg, ebpf.SkLookup, ebpf.SkReuseport, ebpf.FlowDissector, ebpf.Netfilter:
		return Packet
	}
	return Any
}

func when(ofTask bool) Subject {
	if ofTask {
		return Current
	}
	return Any
}

// ofCgroup is the subject of a hook on a cgroup: of most the task that makes the call, whose
// socket, file or setting it is about.
func ofCgroup(h Hook) Subject {
	switch {
	case SubjectOfType(h.ProgramType) == Packet:
		return Packet
	case h.AttachType == ebpf.AttachCgroupInetSockRelease:
		// The last reference to a socket may go in a kernel thread, or with the garbage
		// collection of another task's sockets (net/unix/garbage.c).
		return Any
	}
	return Current
}

// isTracepointOfTasks knows the tracepoints that the kernel calls in a task about that task.
// sched_switch and sched_wakeup are none: they name other tasks.
func isTracepointOfTasks(h Hook, target string) bool {
	name := target
	if h.ProgramType == ebpf.TracePoint {
		category, event, _ := strings.Cut(target, "/")
		switch category {
		case "syscalls":
			return strings.HasPrefix(event, "sys_enter_") || strings.HasPrefix(event, "sys_exit_")
		case "raw_syscalls", "sched":
			name = event
		default:
			return false
		}
		if isSyscall := name == "sys_enter" || name == "sys_exit"; isSyscall != (category == "raw_syscalls") {
			return false
		}
	}
	// sys_enter, sys_exit: kernel/entry/common.c. sched_process_exec: fs/exec.c, in the task
	// after it became the new program. sched_process_exit: do_exit. sched_process_fork:
	// kernel_clone, in the parent, whose child is in the same cgroup unless it asked for
	// another one.
	return slices.Contains([]string{"sys_enter", "sys_exit", "sched_process_exec", "sched_process_exit", "sched_process_fork"}, name)
}

// syscallPrefixes begin the names of the functions that the table of system calls holds, and
// of their parts: nothing but a task's own system call reaches them
// (include/linux/syscalls.h, arch/*/include/asm/syscall_wrapper.h).
func syscallPrefixes() []string {
	return append(syscallWrappers(), "__se_sys_", "__do_sys_", "__se_compat_sys_", "__do_compat_sys_")
}

// SameFunction is the name by which functions of the kernel count as one: those of a system call by its own, since the kernel has several
// names for one of these without arguments, such as __x64_sys_getpid and __do_sys_getpid.
func SameFunction(name string) string {
	for _, prefix := range syscallPrefixes() {
		if call, is := strings.CutPrefix(name, prefix); is {
			return "of system call " + call
		}
	}
	return name
}

// syscallWrappers begin the names of those whose argument is the registers of the task.
func syscallWrappers() []string {
	return []string{"__x64_sys_", "__ia32_sys_", "__ia32_compat_sys_", "__x64_compat_sys_", "__arm64_sys_", "__arm64_compat_sys_"}
}

// isFunctionOfTasks reports whether a function of the kernel, or every function that a glob
// can match, is known to run in a task about that task.
func isFunctionOfTasks(target string) bool {
	name, _, _ := strings.Cut(target, "+")
	literal := name
	if glob := strings.IndexAny(name, `*?[\`); glob >= 0 {
		literal = name[:glob]
	}
	for _, prefix := range syscallPrefixes() {
		if strings.HasPrefix(literal, prefix) {
			return true
		}
	}
	if literal != name {
		return false
	}
	if hook, ok := strings.CutPrefix(name, "security_"); ok && slices.Contains(strings.Fields(lsmOfTasks), hook) {
		return true
	}
	return slices.Contains(strings.Fields(functionsOfTasks), name)
}

// Registers is where a program finds the registers that the current task had when it entered the
// kernel.
type Registers string

const (
	// InContext is the context itself: that of a probe in a binary.
	InContext Registers = "context"
	// InArgument is where an argument in the context points to: the one of the function of a
	// system call.
	InArgument Registers = "argument"
)

// RegistersAt returns where a program finds them at a target of a hook, as an attachment names it;
// empty where it does not. A return probe of a function has no arguments left.
func RegistersAt(hookName, target string) Registers {
	h, _ := Lookup(hookName)
	switch {
	case h.Shape == UserBinary:
		return InContext
	case h.Name == "ksyscall", h.Name == "raw_tp" && (target == "sys_enter" || target == "sys_exit"):
		return InArgument
	case slices.Contains([]string{"kprobe", "kprobe.multi", "kprobe.session"}, h.Name) && slices.ContainsFunc(syscallWrappers(), func(prefix string) bool {
		return strings.HasPrefix(target, prefix)
	}):
		return InArgument
	}
	return ""
}

// functionsOfTasks are functions that may sleep, and so are never called from an interrupt,
// and act on what the calling task passes to them.
//
// Left out, among many: tcp_close and __fput (the last reference may be another task's),
// tcp_sendmsg_locked and tcp_set_state (also from softirq), tcp_rcv_established and all that
// receives packets, do_filp_open (the kernel's own files), cap_capable (also about other
// credentials, and in interrupts), try_to_free_pages and oom_kill_process (about others),
// __send_signal_locked (from timers), wake_up_process.
const functionsOfTasks = `
	do_sys_open do_sys_openat2 do_sys_poll do_readv do_writev do_pipe2
	ksys_read ksys_write ksys_pread64 ksys_pwrite64 ksys_lseek ksys_dup3 ksys_fallocate ksys_fchown ksys_mmap_pgoff ksys_unshare ksys_setsid
	vfs_read vfs_write vfs_readv vfs_writev vfs_fsync vfs_fsync_range vfs_truncate vfs_fallocate vfs_statx vfs_fstatat vfs_getattr vfs_open
	vfs_create vfs_mkdir vfs_mknod vfs_rmdir vfs_unlink vfs_symlink vfs_link vfs_rename vfs_readlink vfs_setxattr vfs_getxattr vfs_removexattr
	do_unlinkat do_rmdir do_mkdirat do_mknodat do_symlinkat do_linkat do_renameat2 do_fchmodat do_fchownat do_faccessat do_truncate do_utimes
	do_execveat_common bprm_execve do_exit do_group_exit kernel_clone commit_creds path_mount path_umount do_mount
	__sys_socket __sys_bind __sys_listen __sys_accept4 __sys_connect __sys_sendto __sys_recvfrom __sys_sendmsg __sys_recvmsg __sys_shutdown
	__sys_setsockopt __sys_getsockopt __sys_getsockname __sys_getpeername __sys_socketpair __sys_setuid __sys_setgid __sys_setresuid
	inet_stream_connect inet_dgram_connect inet_bind inet6_bind inet_listen inet_accept inet_csk_accept
	tcp_connect tcp_v4_connect tcp_v6_connect tcp_sendmsg tcp_recvmsg udp_sendmsg udpv6_sendmsg udp_recvmsg udpv6_recvmsg
	raw_sendmsg rawv6_sendmsg unix_stream_connect unix_stream_sendmsg unix_dgram_sendmsg`

// lsmOfTasks are LSM hooks that the kernel calls for the current task, in its own call.
//
// Left out, among many: what ends an object (…_free: after RCU, anywhere), what packets cause
// (socket_sock_rcv_skb, inet_conn_request, inet_csk_clone, inet_conn_established,
// req_classify_flow, sk_clone_security), what is also asked about others or in interrupts
// (capable, locked_down, task_kill, file_send_sigiotask, ptrace_access_check, task_to_inode),
// and d_instantiate, cred_prepare and sk_alloc, which the kernel calls for itself.
const lsmOfTasks = `
	bprm_check_security bprm_creds_for_exec bprm_creds_from_file bprm_committing_creds bprm_committed_creds
	file_open file_permission file_ioctl file_lock file_fcntl file_receive file_truncate file_mprotect mmap_file mmap_addr
	inode_permission inode_create inode_link inode_unlink inode_symlink inode_mkdir inode_rmdir inode_mknod inode_rename inode_readlink
	inode_follow_link inode_setattr inode_getattr inode_setxattr inode_getxattr inode_listxattr inode_removexattr inode_set_acl inode_get_acl
	path_unlink path_mkdir path_rmdir path_mknod path_truncate path_symlink path_link path_rename path_chmod path_chown path_chroot
	sb_mount sb_umount sb_pivotroot sb_remount move_mount
	task_alloc task_fix_setuid task_fix_setgid task_fix_setgroups task_prctl ptrace_traceme userns_create
	socket_create socket_post_create socket_socketpair socket_bind socket_connect socket_listen socket_accept socket_sendmsg socket_recvmsg
	socket_getsockname socket_getpeername socket_getsockopt socket_setsockopt socket_shutdown unix_stream_connect unix_may_send
	bpf bpf_map bpf_prog perf_event_open quotactl syslog settime`
