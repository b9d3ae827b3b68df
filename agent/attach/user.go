package attach

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/hook"
)

func uprobe(h hook.Hook, r Request) (link.Link, error) {
	return probe(h, r, (*link.Executable).Uprobe)
}

func uretprobe(h hook.Hook, r Request) (link.Link, error) {
	return probe(h, r, (*link.Executable).Uretprobe)
}

// probe resolves the symbol by the binary's own tables. Without one, the offset
// is that in the file.
func probe(h hook.Hook, r Request, attach prober) (link.Link, error) {
	if r.Attachment.PID != 0 && !seesNodesPIDs() {
		return nil, fmt.Errorf("find process %d: this agent is in a PID namespace of its own, where it is nobody or another; run it in the node's (hostPID, agent.hostPID of the chart) or leave out pid", r.Attachment.PID)
	}
	target, err := r.Host.holdTarget(h, r.Attachment)
	if err != nil {
		return nil, err
	}
	defer target.close()
	ex, err := link.OpenExecutable(target.path())
	if err != nil {
		return nil, missing(err)
	}
	opts := &link.UprobeOptions{PID: int(r.Attachment.PID)}
	opts.Address = r.Attachment.Offset
	if r.Attachment.Symbol != "" {
		address, err := symbolAddress(target.path(), r.Attachment.Symbol, r.Attachment.Offset)
		if err != nil {
			return nil, missing(err)
		}
		// The library reads no symbols where it is given an address.
		opts.Address, opts.Offset = address, r.Attachment.Offset
	}
	return attach(ex, r.Attachment.Symbol, r.Program, opts)
}

// initialPIDs is the initial PID namespace, whose inode is the same on every
// Linux (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// seesNodesPIDs tells whether a pid means the same process to the kernel, which
// looks it up in the caller's namespace, as to whoever wrote it down on the node.
func seesNodesPIDs() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == initialPIDs
}

// prober is what the two kinds of probe have in common.
type prober func(*link.Executable, string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)
