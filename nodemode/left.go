package nodemode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/live"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/policies"
)

// LeftName is the file of a Left in the state folder.
const LeftName = "left.json"

// Left is what a skep run knew when it ended. What it left in the kernel may have changed since then.
type Left struct {
	// Ended is when it ended, and Boot identifies the boot of the kernel: nothing outlives it.
	Ended time.Time `json:"ended"`
	Boot  string    `json:"boot"`
	// Status is its last status, and Node describes the host, without the programs of the kernel: those are to be read anew.
	Status Status        `json:"status"`
	Node   view.NodeView `json:"node"`
}

// ReadLeft reads what the last skep run of a state folder left. The error wraps fs.ErrNotExist if none ended there.
func ReadLeft(state string) (Left, error) {
	var l Left
	body, err := os.ReadFile(filepath.Join(state, LeftName))
	if err == nil {
		err = json.Unmarshal(body, &l)
	}
	if err != nil {
		return Left{}, fmt.Errorf("read what the last skep run left: %w", err)
	}
	return l, nil
}

// CurrentBoot identifies the boot of the kernel; empty if that is not known.
func CurrentBoot() string {
	boot, err := os.ReadFile(live.BootID)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot))
}

// leaveTime is how long the last look may take.
const leaveTime = 10 * time.Second

// leave writes what is known, for commands that ask when no skep run runs.
func leave(h *Host) {
	l := Left{Ended: h.opts.Now(), Boot: CurrentBoot(), Status: h.Status()}
	// What ended skep run ends no look at what it leaves.
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	node, failed := h.viewer.View(ctx, view.Scope{})
	node.Programs = nil
	l.Node = node
	body, err := json.Marshal(l)
	if err == nil {
		err = atomicfile.Write(filepath.Join(h.opts.State, LeftName), body)
	}
	if err = errors.Join(failed, err); err != nil {
		h.opts.Log.Warn("skep status and chain do not know all until the next skep run", "error", err)
	}
}

// forget removes what the last skep run left.
func forget(state string) error {
	if err := os.Remove(filepath.Join(state, LeftName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what the last skep run left: %w", err)
	}
	return nil
}

// RunStatus is the skep run itself, and the kernel that it runs on.
type RunStatus struct {
	// Host is the host's name, and Version the build's.
	Host    string `json:"host"`
	Version string `json:"version"`
	// Since is when it started, and Ended when it ended; nil while it runs.
	Since time.Time  `json:"since"`
	Ended *time.Time `json:"ended,omitempty"`
	// Kernel is the kernel's release, and BTF reports whether the kernel describes its own types.
	Kernel string `json:"kernel"`
	BTF    bool   `json:"btf"`
	// Lacks are the capabilities of BPF that the process does not have.
	Lacks []string `json:"lacks"`
}

// running describes this process, which began at a time.
func (o Options) running(began time.Time) RunStatus {
	r := RunStatus{Version: cmp.Or(o.Version, "unknown"), Since: began, Lacks: []string{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Kernel, r.Host = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Nodename[:])
	}
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	r.BTF = err == nil
	if missing := new(rights.Error); errors.As(rights.Check([]rights.Capability{
		rights.BPF, rights.NetAdmin, rights.Perfmon, rights.SysAdmin, rights.SysPtrace}), &missing) {
		for _, c := range missing.Missing {
			r.Lacks = append(r.Lacks, c.String())
		}
	}
	return r
}

// ActivePolicies are the policies that the options make active: folders and the names of profiles.
func (o Options) ActivePolicies() []string {
	if slices.Contains(slices.Concat(o.Policies, o.Replaces), policies.ProfileBaseline) {
		return slices.Clone(o.Policies)
	}
	return append([]string{policies.ProfileBaseline}, o.Policies...)
}
