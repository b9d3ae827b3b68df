package attach

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// OccupiedError is the error of a place that a program which is not Skep's has.
type OccupiedError struct {
	// Place says what is occupied, Fix what to do, and Command how. ToTeams says it without what the node runs there.
	Place, Fix, Command, ToTeams string
	Err                          error
}

// Error implements error.
func (o *OccupiedError) Error() string {
	return o.Place + "; " + o.Fix + ": `" + o.Command + "`: " + o.Err.Error()
}

// Unwrap returns the kernel's error.
func (o *OccupiedError) Unwrap() error { return o.Err }

// occupant describes the program that has a place.
func (r Request) occupant(program ebpf.ProgramID, kind link.Type, place uint64) holders.Occupant {
	return cmp.Or(r.Host.Occupants, new(holders.Finder)).Find(program, kind, place)
}

// occupiedXDP says which program excludes one of ours from an interface, and how it is
// detached: an XDP program of a link by the link, any other by the mode it is in. It is called
// in the network namespace of the interface.
func (r Request) occupiedXDP(cause error) error {
	const fix = "choose another interface or hook, or detach it"
	holder, relation := r.holderOfXDP()
	if holder == nil {
		return fmt.Errorf("%s, or a device above it, holds an XDP program that is not Skep's; %s: `skep inventory` shows it: %w",
			r.Attachment.Interface, fix, cause)
	}
	name, is := holder.Attrs().Name, holder.Attrs().Xdp
	o := r.occupant(ebpf.ProgramID(is.ProgId), link.XDPType, uint64(holder.Attrs().Index))
	command := detachLink(o)
	if o.Link == 0 {
		command = r.inside(fmt.Sprintf("ip link set dev %s %s off", text.Word(name), xdpWord(is.AttachMode)))
	}
	place := fmt.Sprintf("%s%s holds an XDP program that is not Skep's", name, relation)
	return &OccupiedError{Place: fmt.Sprintf("%s: %s", place, o), Fix: fix, Command: command, Err: cause,
		ToTeams: place + "; choose another interface or hook, or have an administrator detach it"}
}

// detachLink is the command that ends a link, whichever process holds it.
func detachLink(o holders.Occupant) string { return fmt.Sprintf("bpftool link detach id %d", o.Link) }

// holderOfXDP returns the device that has the program: the interface, or else one above it,
// such as its bond (dev_xdp_attach of net/core/dev.c), and how that is related to it. It is
// nil where none has any by now.
func (r Request) holderOfXDP() (holder netlink.Link, relation string) {
	own, err := netlink.LinkByIndex(r.Attachment.Ifindex)
	if err != nil {
		return nil, ""
	}
	if hasXDP(own) {
		return own, ""
	}
	// What was read of very many devices counts.
	all, _ := rtnl.Links(rtnl.Limits{Entries: maxAbove, Until: time.Now().Add(lookingAbove)})
	if master, err := netlink.LinkByIndex(own.Attrs().MasterIndex); err == nil {
		all = append(all, master)
	}
	for _, l := range all {
		isAbove := l.Attrs().Index == own.Attrs().MasterIndex || l.Attrs().ParentIndex == own.Attrs().Index
		if isAbove && hasXDP(l) {
			return l, ", which is above " + own.Attrs().Name + ","
		}
	}
	return nil, ""
}

func hasXDP(l netlink.Link) bool { return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached }

// The bounds of a look for a device above an interface.
const (
	maxAbove     = 1024
	lookingAbove = 100 * time.Millisecond
)

// xdpWord is what ip-link(8) calls the mode of an XDP program. Without a mode it means the
// driver's, where that has one, and leaves a generic program alone.
func xdpWord(mode uint32) string {
	switch mode {
	case nl.XDP_ATTACHED_DRV:
		return "xdpdrv"
	case nl.XDP_ATTACHED_SKB:
		return "xdpgeneric"
	case nl.XDP_ATTACHED_HW:
		return "xdpoffload"
	}
	return "xdp"
}

// inside is a command as it is run on the node, for the network namespace of the attachment.
func (r Request) inside(command string) string {
	if path := r.Attachment.NetworkNamespace; path != "" {
		return "nsenter --net=" + text.Word(path) + " " + command
	}
	return r.Host.Namespaces.Command(r.Attachment.NetnsID, command)
}

// occupied says who has the one place of a network namespace. The kernel's answers are
// those of netns_bpf_link_attach and flow_dissector_bpf_prog_attach_check.
func (r Request) occupied(h hook.Hook, namespace int, err error) error {
	if h.Sharing != hook.Exclusive || !errors.Is(err, unix.E2BIG) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if r.HeldBy != "" {
		return fmt.Errorf("%s has the place of %s in the network namespace, which takes one program: %w", r.HeldBy, h.Name, err)
	}
	seen, asked := link.QueryPrograms(link.QueryOptions{Target: namespace, Attach: h.AttachType})
	if asked != nil || len(seen.Programs) == 0 {
		return fmt.Errorf("a %s program of another network namespace excludes it: one in the node's first excludes those of all others; "+
			"detach one, `skep inventory` shows them: %w", h.Name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(namespace, &st); err != nil {
		return fmt.Errorf("look at the network namespace: %w", err)
	}
	o := r.occupant(seen.Programs[0].ID, link.NetNsType, st.Ino)
	command := detachLink(o)
	if o.Link == 0 {
		command = r.inside(fmt.Sprintf("bpftool prog detach id %d %s", o.Program, h.Name))
	}
	place := fmt.Sprintf("another program has the place of %s in the network namespace, which takes one program", h.Name)
	return &OccupiedError{Place: fmt.Sprintf("%s: %s", place, o), Fix: "detach it", Command: command, Err: err,
		ToTeams: place + "; have an administrator detach it"}
}
