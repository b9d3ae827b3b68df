package attach

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/hook"
)

func uprobe(h hook.Hook, r Request) (link.Link, error) {
	return probe(h, r, (*link.Executable).Uprobe)
}

func uretprobe(h hook.Hook, r Request) (link.Link, error) {
	return probe(h, r, (*link.Executable).Uretprobe)
}

func probe(_ hook.Hook, r Request, attach prober) (link.Link, error) {
	opts := &link.UprobeOptions{PID: int(r.Attachment.PID), Address: r.Found.address}
	if r.Attachment.Symbol != "" {
		opts.Offset = r.Attachment.Offset
	}
	return attach(r.Found.executable, r.Attachment.Symbol, r.Program, opts)
}

// read resolves the symbol by the binary's own tables: the library reads none where it
// is given an address. Without a symbol, the offset is that in the file.
func (f *Found) read(a plan.Attachment) error {
	var err error
	if f.executable, err = link.OpenExecutable(f.target.path()); err != nil {
		return missing(err)
	}
	f.address = a.Offset
	if a.Symbol == "" {
		return nil
	}
	f.address, err = symbolAddress(f.target.path(), a.Symbol, a.Offset)
	return missing(err)
}

// reachable fails where the process of the attachment cannot be found.
func reachable(a plan.Attachment) error {
	if a.PID != 0 && !seesNodesPIDs() {
		return fmt.Errorf("find process %d: this agent is in a PID namespace of its own, where it is nobody or another; run it in the node's (hostPID, agent.hostPID of the chart) or leave out pid", a.PID)
	}
	return nil
}

// initialPIDs is the initial PID namespace, whose inode is the same on every
// Linux (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// seesNodesPIDs reports whether a pid means the same process to the kernel, which
// looks it up in the caller's namespace, as to whoever wrote it down on the node.
func seesNodesPIDs() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == initialPIDs
}

// prober is what the two kinds of probe have in common.
type prober func(*link.Executable, string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)
