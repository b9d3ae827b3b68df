package inventory

import (
	"context"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/hook"
)

// unlinked are the places of programs that no link attaches: XDP programs of
// ip-link and the like, clsact filters, programs of TCX and netkit, and flow dissectors, in this
// network namespace, and programs attached to cgroups the old way, as systemd does.
func (p *places) unlinked(ctx context.Context, inv Inventory) map[uint32][]Place {
	found := map[uint32][]Place{}
	add := func(id uint32, place Place) {
		if id != 0 {
			found[id] = append(found[id], place)
		}
	}
	for _, device := range p.devices {
		if ctx.Err() != nil {
			return found
		}
		addUnlinked(device, add)
	}
	for _, id := range flowDissectors() {
		add(id, Place{Hook: hookOf(ebpf.AttachFlowDissector), Target: p.netns.own()})
	}
	if rows := cgroupHooks(inv); len(rows) > 0 {
		p.cgroups.unlinked(ctx, rows, add)
	}
	return found
}

// addUnlinked adds the programs on one interface.
func addUnlinked(device netlink.Link, add func(id uint32, place Place)) {
	if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
		add(xdp.ProgId, Place{Hook: "xdp", Target: device.Attrs().Name})
	}
	for hook, parent := range map[string]uint32{"tc/ingress": netlink.HANDLE_MIN_INGRESS, "tc/egress": netlink.HANDLE_MIN_EGRESS} {
		for _, id := range filters(device, parent) {
			add(id, Place{Hook: hook, Target: device.Attrs().Name})
		}
	}
	ordered := []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}
	if device.Type() == "netkit" {
		ordered = append(ordered, ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer)
	}
	for _, attach := range ordered {
		for _, id := range queried(device.Attrs().Index, attach) {
			add(id, Place{Hook: hookOf(attach), Target: device.Attrs().Name})
		}
	}
}

// flowDissectors are the programs that dissect packets in this network namespace.
func flowDissectors() []uint32 {
	own, err := os.Open(ownNetns)
	if err != nil {
		return nil
	}
	defer func() { _ = own.Close() }()
	return queried(int(own.Fd()), ebpf.AttachFlowDissector)
}

// queried are the programs that a target, an interface's index or a cgroup's
// descriptor, has on a hook. A target or a kernel without the hook has none.
func queried(target int, attach ebpf.AttachType) []uint32 {
	result, err := link.QueryPrograms(link.QueryOptions{Target: target, Attach: attach})
	if err != nil {
		return nil
	}
	var ids []uint32
	for _, p := range result.Programs {
		ids = append(ids, uint32(p.ID))
	}
	return ids
}

// cgroupHooks are the hooks of programs that could sit on a cgroup and whose
// place no link tells. Asking every cgroup for every hook is spared where there
// are none.
func cgroupHooks(inv Inventory) []hook.Hook {
	linked := map[uint32]bool{}
	for _, l := range inv.Links {
		linked[l.Program] = true
	}
	types := map[string]bool{}
	for _, p := range inv.Programs {
		types[p.Type] = types[p.Type] || !linked[p.ID]
	}
	var rows []hook.Hook
	for _, h := range hook.All() {
		if h.Shape == hook.Cgroup && h.ProgramType != ebpf.LSM && types[h.ProgramType.String()] {
			rows = append(rows, h)
		}
	}
	return rows
}

// unlinked asks every cgroup for the programs on some hooks. Cgroups come and
// go meanwhile.
func (c *cgroups) unlinked(ctx context.Context, rows []hook.Hook, add func(uint32, Place)) {
	for _, path := range c.paths() {
		if ctx.Err() != nil {
			return
		}
		dir, err := os.Open(c.mount + path)
		if err != nil {
			continue
		}
		for _, h := range rows {
			for _, id := range queried(int(dir.Fd()), h.AttachType) {
				add(id, Place{Hook: h.Name, Target: path})
			}
		}
		_ = dir.Close()
	}
}
