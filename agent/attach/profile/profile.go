// Package profile finds out what the node's kernel can do, by trying where that can be. It leaves nothing in the kernel, and decides
// nothing.
package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// Where the kernel tells of itself.
const (
	kernelBTF   = "/sys/kernel/btf/vmlinux"
	securityDir = "/sys/kernel/security"
)

// Of finds out what this kernel can do. What cannot be found out is left empty.
func Of(log *slog.Logger) v1alpha1.KernelProfile {
	p := v1alpha1.KernelProfile{Architecture: runtime.GOARCH, Release: release()}
	_, err := os.Stat(kernelBTF)
	p.BTF = !errors.Is(err, fs.ErrNotExist)
	p.Lockdown = lockdown(read(filepath.Join(securityDir, "lockdown")))
	p.LSMs = modules(read(filepath.Join(securityDir, "lsm")))
	p.Hooks, p.Denied = hooks(attach.Probe, log)
	p.ProgramTypes = programTypes(features.HaveProgramType, p)
	p.MapTypes = kinds(ebpf.Hash, ebpf.Arena, features.HaveMapType)
	return p
}

// kind is a type of programs or maps.
type kind interface {
	~uint32
	fmt.Stringer
}

// Types are the names of all types of programs and maps that a kernel may have.
func Types() (programs, maps []string) {
	return kinds(ebpf.SocketFilter, ebpf.Netfilter, func(ebpf.ProgramType) error { return nil }),
		kinds(ebpf.Hash, ebpf.Arena, func(ebpf.MapType) error { return nil })
}

// kinds are those from first to last that the kernel has. What cannot be told
// counts: the load will tell.
func kinds[K kind](first, last K, probe func(K) error) []string {
	var names []string
	for k := first; k <= last; k++ {
		if !errors.Is(probe(k), ebpf.ErrNotSupported) {
			names = append(names, k.String())
		}
	}
	return names
}

// programTypes are those that the kernel has, as the hooks of the profile show
// and else by trying: a program of a type that is rejected at one hook may be
// taken at another.
func programTypes(probe func(ebpf.ProgramType) error, p v1alpha1.KernelProfile) []string {
	shown := map[ebpf.ProgramType]bool{}
	for _, h := range hook.All() {
		there := func(d v1alpha1.DeniedHooks) bool { return slices.Contains(d.Hooks, h.Name) }
		if slices.Contains(p.Hooks, h.Name) || slices.ContainsFunc(p.Denied, there) {
			shown[h.ProgramType] = true
		}
	}
	return kinds(ebpf.SocketFilter, ebpf.Netfilter, func(t ebpf.ProgramType) error {
		if shown[t] {
			return nil
		}
		return probe(t)
	})
}

// hooks are those that the agent can attach to, and those that the kernel has and
// the agent has no right to. What cannot be told counts: the attempt will tell.
func hooks(probe func(hook.Hook) error, log *slog.Logger) (names []string, denied []v1alpha1.DeniedHooks) {
	for _, h := range hook.All() {
		if !h.Attachable {
			continue
		}
		err := probe(h)
		switch lacks, may := new(attach.LackingError), new(rights.Error); {
		case errors.As(err, &lacks):
		case errors.As(err, &may):
			denied = deny(denied, h.Name, text.CutRunes(may.Lacks(), maxReason))
		default:
			names = append(names, h.Name)
		}
	}
	for _, d := range denied {
		log.Warn("the agent may not attach to some hooks that the kernel has", "hooks", d.Hooks, "error", d.Reason)
	}
	return names, denied
}

// maxReason bounds a reason in characters, as the CRD does.
const maxReason = 256

// deny adds a hook to those of the same reason.
func deny(all []v1alpha1.DeniedHooks, name, why string) []v1alpha1.DeniedHooks {
	for i := range all {
		if all[i].Reason == why {
			all[i].Hooks = append(all[i].Hooks, name)
			return all
		}
	}
	return append(all, v1alpha1.DeniedHooks{Hooks: []string{name}, Reason: why})
}

// release is what uname -r says.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// read returns a small file of the kernel's, or nothing.
func read(path string) string {
	body, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(body))
}

// lockdown takes the word in brackets out of "none [integrity] confidentiality".
func lockdown(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// modules splits "capability,lockdown,bpf".
func modules(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
