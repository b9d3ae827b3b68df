package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// dumpTries bounds how often a list of the kernel's is asked for again because
// it changed while it was read.
const dumpTries = 5

// devices asks the kernel about network devices and routes.
type devices struct {
	links   func() ([]netlink.Link, error)
	byIndex func(int) (netlink.Link, error)
	routes  func(link netlink.Link, family int) ([]netlink.Route, error)
}

// kernelDevices are those of the agent's network namespace.
func kernelDevices() devices {
	return devices{links: netlink.LinkList, byIndex: netlink.LinkByIndex, routes: netlink.RouteList}
}

// running is what of Skep's runs on network devices now. A list that the kernel
// could not give in one piece takes none of it away.
type running struct {
	// uids of applications by the index of the device.
	uids map[int][]string
	// asPrimary reports whether an application chose the device for nothing but
	// being a primary one.
	asPrimary func(uid string, on plan.Interface) bool
}

// dump asks for a list until it is read in one piece, a few times: where other
// things change faster than that, the last one is returned as not whole, and
// entries may be missing from it or stand there in an old form
// (Documentation/userspace-api/netlink/intro.rst, "Dump consistency").
func dump[T any](list func() ([]T, error)) (all []T, whole bool, err error) {
	for range dumpTries {
		all, err = list()
		if err == nil {
			return all, true, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, false, err
		}
	}
	return all, false, nil
}

// list reads the network devices, by index. Which are primary is looked up
// where somebody asks.
func (d devices) list(withPrimary bool, now running) ([]plan.Interface, error) {
	links, whole, err := dump(d.links)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	named := map[int]string{}
	for _, l := range links {
		named[l.Attrs().Index] = l.Attrs().Name
	}
	if !whole {
		if err := d.ask(now, named); err != nil {
			return nil, err
		}
	}
	var primary map[int]bool
	if withPrimary {
		if primary, err = d.primaries(now, named); err != nil {
			return nil, err
		}
	}
	all := make([]plan.Interface, 0, len(named))
	for index, name := range named {
		all = append(all, plan.Interface{Index: index, Name: name, Primary: primary[index]})
	}
	slices.SortFunc(all, func(a, b plan.Interface) int { return a.Index - b.Index })
	return all, nil
}

// ask looks at each device that something runs on by itself, which no other
// change disturbs.
func (d devices) ask(now running, named map[int]string) error {
	for index := range now.uids {
		l, err := d.byIndex(index)
		switch gone := new(netlink.LinkNotFoundError); {
		case errors.As(err, gone):
			delete(named, index)
		case err != nil:
			return fmt.Errorf("look at interface %d: %w", index, err)
		default:
			named[index] = l.Attrs().Name
		}
	}
	return nil
}

// primaries are the devices that default routes leave by, of either family.
func (d devices) primaries(now running, named map[int]string) (map[int]bool, error) {
	out := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, whole, err := dump(func() ([]netlink.Route, error) { return d.routes(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		if !whole {
			now.keepPrimary(named, out)
		}
		for _, r := range routes {
			if r.Dst != nil && !isDefault(r) {
				continue
			}
			if r.LinkIndex > 0 {
				out[r.LinkIndex] = true
			}
			for _, hop := range r.MultiPath {
				out[hop.LinkIndex] = true
			}
		}
	}
	return out, nil
}

// isDefault tells a default route that names its destination, 0.0.0.0/0 or ::/0.
func isDefault(r netlink.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// keepPrimary adds the devices that were primary when something was attached to
// them as such.
func (r running) keepPrimary(named map[int]string, primary map[int]bool) {
	for index, uids := range r.uids {
		on := plan.Interface{Index: index, Name: named[index]}
		if slices.ContainsFunc(uids, func(uid string) bool { return r.asPrimary(uid, on) }) {
			primary[index] = true
		}
	}
}

// running tells what runs where.
func (p *pass) running() running {
	now := running{uids: map[int][]string{}, asPrimary: p.asPrimary}
	for uid, links := range p.owned.links {
		for _, l := range links {
			if index := l.Attachment.Ifindex; index != 0 {
				now.uids[index] = append(now.uids[index], uid)
			}
		}
	}
	for index, c := range p.owned.chains {
		if c.Version != nil {
			now.uids[index] = append(now.uids[index], uidsOf(c.Version.Members)...)
		} else if now.uids[index] == nil {
			now.uids[index] = []string{}
		}
	}
	return now
}

// asPrimary looks at what the application's intents choose by name.
func (p *pass) asPrimary(uid string, on plan.Interface) bool {
	for _, app := range p.apps {
		if app.newest.Payload().UID != uid {
			continue
		}
		for _, s := range append(selections(&app.newest), selections(app.deployed)...) {
			byName, err := plan.Select(&v1alpha1.Interfaces{Names: s.Names}, []plan.Interface{on})
			if s.Primary && (err != nil || len(byName) == 0) {
				return true
			}
		}
	}
	return false
}

// wantsPrimary reports whether an intent chooses the primary interface.
func wantsPrimary(apps []*application) bool {
	return slices.ContainsFunc(apps, func(app *application) bool {
		return slices.ContainsFunc(append(selections(&app.newest), selections(app.deployed)...),
			func(s v1alpha1.Interfaces) bool { return s.Primary })
	})
}

// selections are what an intent says of interfaces; an intent that there is not
// says nothing.
func selections(o *intent.Opened) []v1alpha1.Interfaces {
	if o == nil {
		return nil
	}
	var all []v1alpha1.Interfaces
	for _, program := range o.Payload().Programs {
		for _, at := range program.Attach {
			if at.Interfaces != nil {
				all = append(all, *at.Interfaces)
			}
		}
	}
	return all
}
