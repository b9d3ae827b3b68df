package attach

import (
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/program/usdt"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
)

// Found is a target that was found and is held until it is closed, with all that
// attaching needs to know of it. The zero value is that of hooks whose targets are not
// in the file system.
type Found struct {
	target     *heldTarget
	executable *link.Executable
	// addresses are where the functions lie in the file, in bytes: one, but for a choice
	// of many.
	addresses []uint64
	// site is the place of a USDT probe, and arguments are where its arguments are.
	site      usdt.Site
	arguments usdt.Spec
	// functions are those of the kernel that one link attaches to.
	functions []string
}

// Find looks for the target of the attachment. It opens files of the node's and reads
// them, which takes for ever where a file system does not answer. It fails with
// ErrTarget where the target is not there, or is another than the one that Resolve
// found.
func Find(a plan.Attachment, host Host) (*Found, error) {
	h, _ := hook.Lookup(a.Hook)
	f, err := host.find(h, a)
	if err != nil {
		return nil, describe(h, a, err)
	}
	return f, nil
}

func (host Host) find(h hook.Hook, a plan.Attachment) (*Found, error) {
	if !inFiles(h) {
		return host.findFunctions(h, a)
	}
	if err := reachable(a); err != nil {
		return nil, err
	}
	target, err := host.holdTarget(h, a)
	if err != nil {
		return nil, err
	}
	f := &Found{target: target}
	// Of a probe's place, what the file says of it is compared when it is read.
	if is := target.identify(h, a).Target; is != a.Target && isResolved(a.Target) {
		err = fmt.Errorf("find %s: %w: another has taken its place", target.file.Name(), ErrTarget)
	} else if h.Shape == hook.UserBinary {
		err = f.read(a)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// findFunctions finds the functions of an attachment that has one link for them all.
func (host Host) findFunctions(h hook.Hook, a plan.Attachment) (*Found, error) {
	if !h.AttachesAtOnce() || host.Functions == nil {
		return &Found{}, nil
	}
	names := host.Functions.Names(a.FunctionsID)
	if len(names) == 0 {
		return nil, fmt.Errorf("find functions %s: %w: other modules are loaded by now", a.Function, ErrTarget)
	}
	return &Found{functions: names}, nil
}

// isResolved reports whether Resolve found the target.
func isResolved(t plan.Target) bool { return t.CgroupID != 0 || t.BinaryID != "" || t.NetnsID != 0 }

// Places are where the functions of a probe are in its file, in bytes.
func (f *Found) Places() []uint64 { return f.addresses }

// Close lets the target go.
func (f *Found) Close() {
	if f.target != nil {
		f.target.close()
	}
}
