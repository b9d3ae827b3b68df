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
// ip-link and the like and clsact filters, in this network namespace, and
// programs attached to cgroups the old way, as systemd does.
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
		if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
			add(xdp.ProgId, Place{Hook: "xdp", Target: device.Attrs().Name})
		}
		for hook, parent := range map[string]uint32{"tc/ingress": netlink.HANDLE_MIN_INGRESS, "tc/egress": netlink.HANDLE_MIN_EGRESS} {
			for _, id := range filters(device, parent) {
				add(id, Place{Hook: hook, Target: device.Attrs().Name})
			}
		}
	}
	if rows := cgroupHooks(inv); len(rows) > 0 {
		p.cgroups.unlinked(ctx, rows, add)
	}
	return found
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
			result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: h.AttachType})
			if err != nil {
				continue
			}
			for _, program := range result.Programs {
				add(uint32(program.ID), Place{Hook: h.Name, Target: path})
			}
		}
		_ = dir.Close()
	}
}
