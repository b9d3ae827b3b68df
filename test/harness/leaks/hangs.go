package leaks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// answer is how long the kernel may take to load an empty program. It takes less than a
// millisecond; a busy machine starts the process late.
const answer = time.Minute

// remembered is how long an answer holds that did not come: the kernel may have been slow.
const remembered = 10 * time.Minute

// Hangs reports whether the kernel loads no programs any more. Linux 6.18 stops when more
// than a thousand programs on each processor wait to be freed while it clears its address
// space: __purge_vmap_area_lazy of mm/vmalloc.c waits, with the lock of bpf_prog_pack_alloc
// held, for a work item behind those that wait for that lock. Whatever loads a program then
// waits until the machine is restarted, and cannot be killed. So a process of its own asks, and what
// it found holds for a while for all packages. Its program calls MaybeProbe first.
func Hangs() bool {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return false
	}
	known := filepath.Join(cache, "skep-test", "hangs-"+string(bytes.TrimSpace(boot)))
	if noted, err := os.Stat(known); err == nil && time.Since(noted.ModTime()) < remembered {
		return true
	}
	probe := exec.CommandContext(context.Background(), "/proc/self/exe")
	probe.Env = append(os.Environ(), isolated+"="+probes)
	if err := probe.Start(); err != nil {
		return false
	}
	ended := make(chan struct{})
	go func() {
		_ = probe.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		_ = os.Remove(known)
		return false
	case <-time.After(answer):
	}
	fmt.Fprintln(os.Stderr, "*** THE KERNEL HANGS: it did not load an empty program within a minute. See dmesg, and restart the machine ***")
	_ = os.MkdirAll(filepath.Dir(known), 0o700)
	_ = os.WriteFile(known, nil, 0o600)
	return true
}

// MaybeProbe is what a program does first that calls Hangs: it ends the process that asks.
func MaybeProbe() {
	if os.Getenv(isolated) != probes {
		return
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		// It answers, and the tests say what they lack.
		os.Exit(1)
	}
	_ = p.Close()
	os.Exit(0)
}
