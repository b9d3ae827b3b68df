package attach

import (
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
	target, err := holdTarget(h, r.Attachment, r.CgroupRoot)
	if err != nil {
		return nil, err
	}
	defer target.close()
	ex, err := link.OpenExecutable(target.path())
	if err != nil {
		return nil, missing(err)
	}
	opts := &link.UprobeOptions{PID: int(r.Attachment.PID)}
	if r.Attachment.Symbol == "" {
		opts.Address = r.Attachment.Offset
	} else {
		opts.Offset = r.Attachment.Offset
	}
	return attach(ex, r.Attachment.Symbol, r.Program, opts)
}

// prober is what the two kinds of probe have in common.
type prober func(*link.Executable, string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)
