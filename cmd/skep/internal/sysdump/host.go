package sysdump

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/nodemode"
)

// hostSteps read this host.
func hostSteps(d *dump, c host.Client) []step {
	ask := func(file string, read func(context.Context) (any, error)) func(context.Context) {
		return func(ctx context.Context) {
			value, err := read(ctx)
			d.typed(file, value, err)
		}
	}
	return []step{
		{"kept intents", func(context.Context) { d.learnKept(c.State) }},
		{"the status", ask("status.json", func(ctx context.Context) (any, error) { return c.Status(ctx, nil) })},
		{"the node", ask("node.json", func(ctx context.Context) (any, error) { return c.Node(ctx) })},
		{"the inventory", ask("inventory.json", func(ctx context.Context) (any, error) { return inventory.List(ctx, inventory.Of("")) })},
		{"the kernel", ask("kernel.json", func(context.Context) (any, error) { return kernel() })},
		{"mounts", ask("mounts.json", func(context.Context) (any, error) { return mounts() })},
		{"the process", ask("process.json", func(ctx context.Context) (any, error) { return process(ctx, c.State) })},
	}
}

// learnKept learns what the intents of a state folder set. A user who may not read them may not read what quotes them.
func (d *dump) learnKept(state string) {
	// The pattern is well formed.
	paths, _ := filepath.Glob(filepath.Join(state, "agent", "intents", "*"))
	for _, path := range paths {
		if body, err := os.ReadFile(filepath.Clean(path)); err == nil {
			d.learnSealed(body)
		}
	}
}

// generic is a value as JSON has it.
func generic(value any) (plain any, err error) {
	body, err := json.Marshal(value)
	if err == nil {
		err = cluster.Decode(body, &plain)
	}
	return plain, err
}

// facts are the files of the kernel that tell how it treats BPF, and none of them has a secret.
var facts = []string{
	"/proc/sys/net/core/bpf_jit_enable", "/proc/sys/net/core/bpf_jit_harden", "/proc/sys/net/core/bpf_jit_limit", "/proc/sys/net/core/bpf_jit_kallsyms",
	"/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/kernel/bpf_stats_enabled", "/proc/sys/kernel/perf_event_paranoid",
	"/proc/sys/kernel/kptr_restrict", "/proc/sys/kernel/perf_event_max_sample_rate", "/proc/sys/kernel/randomize_va_space",
	"/proc/sys/user/max_user_namespaces", "/sys/kernel/security/lockdown", "/sys/kernel/security/lsm",
}

// kernel tells of the kernel what matters to BPF.
func kernel() (any, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	found := map[string]any{
		"release": unix.ByteSliceToString(u.Release[:]), "version": unix.ByteSliceToString(u.Version[:]), "machine": unix.ByteSliceToString(u.Machine[:]),
	}
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	found["btf"] = err == nil
	for _, path := range facts {
		// What this kernel lacks, or this user may not read, is a fact, too.
		body, err := os.ReadFile(filepath.Clean(path))
		if found[path] = strings.TrimSpace(string(body)); err != nil {
			found[path] = err.Error()
		}
	}
	return found, nil
}

// mount is a line of mounts.
type mount struct {
	Path    string `json:"path"`
	Type    string `json:"type"`
	Options string `json:"options"`
}

// mounts are the mounts of file systems that Skep uses.
func mounts() (any, error) {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer func() { _ = file.Close() }()
	found := []mount{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		// The device is not told: one of a network has a host and a user.
		f := strings.Fields(lines.Text())
		if len(f) > 3 && slices.Contains([]string{"bpf", "cgroup2", "cgroup", "tracefs", "debugfs", "securityfs"}, f[2]) {
			found = append(found, mount{f[1], f[2], f[3]})
		}
	}
	return found, lines.Err()
}

// rights are the lines of a process' status that tell what it may do and takes.
var rights = []string{"Name", "Pid", "Uid", "Gid", "NoNewPrivs", "Seccomp", "Threads", "VmRSS", "VmHWM", "FDSize"}

// process tells what the skep run of a state folder may do.
func process(ctx context.Context, state string) (any, error) {
	pid, err := listener(ctx, filepath.Join(state, nodemode.SocketName))
	if err != nil {
		return nil, fmt.Errorf("find the process of skep run: %w", err)
	}
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, fmt.Errorf("read what skep run may do: %w", err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains(rights, name) || strings.HasPrefix(name, "Cap") {
			found[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return found, nil
}

// listener is the process that listens at a socket.
func listener(ctx context.Context, socket string) (int32, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	unixConn, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return 0, errors.New("it is no unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if control := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); control != nil {
		return 0, control
	}
	if err != nil {
		return 0, err
	}
	return cred.Pid, nil
}
