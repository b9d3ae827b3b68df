package targets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// ownBudget is how long a list of the agent's own devices may take, which nothing else bounds.
const ownBudget = time.Minute

// dumpTries bounds how often a list of the kernel's is asked for again because
// it changed while it was read.
const dumpTries = 5

// devices asks the kernel about network devices and routes.
type devices struct {
	// namespace is the one that the calling thread is in, named by zero for the agent's own.
	namespace netns.Namespace
	links     func() ([]netlink.Link, error)
	byIndex   func(int) (netlink.Link, error)
	byName    func(string) (netlink.Link, error)
	routes    func(link netlink.Link, family int) ([]netlink.Route, error)
	// sampledRoutes returns default routes without a list, where routes fails with *PartialError.
	sampledRoutes func() ([]netlink.Route, error)
}

// Running is what of Skep's runs on network devices now. A list that the kernel
// could not give in one piece takes none of it away.
type Running struct {
	// UIDs are those of applications, by device.
	UIDs map[plan.Device][]string
	// Targets are the devices as they were when something was attached to them.
	Targets map[plan.Device]plan.Target
	// On returns the devices outside the agent's own network namespace where a program of an
	// application runs on a hook.
	On func(application v1alpha1.Identity, program, hook string) []plan.Device
	// AsPrimary reports whether an application chose the device for nothing but
	// being a primary one.
	AsPrimary func(uid string, on plan.Interface) bool
}

// device returns a device of the namespace.
func (d devices) device(index int) plan.Device {
	return plan.Device{NetnsID: d.namespace.ID, Index: index}
}

// sought is what attachments are looking for among the devices of a namespace.
type sought struct {
	// primary: those of the default routes are looked up.
	primary bool
	// names are those that attachments give in full.
	names map[string]bool
}

// devicesOf are the devices of a namespace, whose thread reads them. Of a namespace of a pod it
// reads so much as podBudget allows.
func devicesOf(of netns.Namespace) devices {
	own := func() ([]netlink.Link, error) { return rtnl.Links(rtnl.Limits{Until: time.Now().Add(ownBudget)}) }
	d := devices{namespace: of, links: own, byIndex: netlink.LinkByIndex, byName: netlink.LinkByName, routes: netlink.RouteList}
	if of.ID != 0 {
		b := bounded{in: of.In, until: time.Now().Add(podBudget), maxDevices: maxDevices, maxRoutes: maxRoutes}
		d.links = b.links
		b.until = b.until.Add(podBudget)
		d.routes = b.defaultRoutes
		one := singly{left: podBudget}
		d.byIndex, d.byName, d.sampledRoutes = one.byIndex, one.byName, one.sampledRoutes
	}
	return d
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
			return all, false, err
		}
	}
	return all, false, nil
}

// list reads the devices, by index. Where not all are read, it fails with *PartialError beside
// those that few returns, and where not all routes are, beside all of them.
func (d devices) list(want sought, now Running) ([]plan.Interface, error) {
	links, whole, err := dump(d.links)
	partial := new(PartialError)
	if errors.As(err, &partial) {
		return d.few(want, now, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	found := map[int]netlink.Link{}
	for _, l := range links {
		found[l.Attrs().Index] = l
	}
	if !whole {
		if err := d.ask(now, found); err != nil {
			return nil, err
		}
	}
	var primary map[int]bool
	if want.primary {
		if primary, err = d.primaries(now, found); errors.As(err, &partial) {
			return d.describeAll(found, primary), err
		}
		if err != nil {
			return nil, err
		}
	}
	return d.describeAll(found, primary), nil
}

// few returns why the devices were not listed, with those alone that are looked up without a list:
// those on which something runs, conventional, those that are sought by name, and the primary ones.
func (d devices) few(want sought, now Running, why error) ([]plan.Interface, error) {
	found := map[int]netlink.Link{}
	if err := errors.Join(d.ask(now, found), d.askNames(want.names, found)); err != nil {
		return nil, fmt.Errorf("%w (it was looked up since %s)", err, why.Error())
	}
	primary := map[int]bool{}
	if want.primary {
		var err error
		if primary, err = d.primariesOfMany(now, found); err != nil {
			return nil, fmt.Errorf("%w (it was looked up since %s)", err, why.Error())
		}
	}
	for _, l := range slices.Collect(maps.Values(found)) {
		if master, err := d.byIndex(l.Attrs().MasterIndex); l.Attrs().MasterIndex != 0 && err == nil {
			found[master.Attrs().Index] = master
		}
	}
	return d.describeAll(found, primary), why
}

// askNames asks for devices by their names, of which conventional is one.
func (d devices) askNames(names map[string]bool, found map[int]netlink.Link) error {
	for _, name := range append(slices.Collect(maps.Keys(names)), conventional) {
		l, err := d.byName(name)
		if gone := new(netlink.LinkNotFoundError); errors.As(err, gone) {
			continue
		} else if err != nil {
			return fmt.Errorf("look at interface %s: %w", name, err)
		}
		found[l.Attrs().Index] = l
	}
	return nil
}

// addLikely adds what counts as primary where not all routes were read: conventional, what was
// primary for a program that runs, and the devices of default routes that are found without a list.
func (d devices) addLikely(now Running, found map[int]netlink.Link, primary map[int]bool) error {
	d.keepPrimary(now, found, primary)
	for index, l := range found {
		primary[index] = primary[index] || l.Attrs().Name == conventional
	}
	routes, err := d.sampledRoutes()
	addDevices(routes, primary)
	return err
}

// primariesOfMany returns the primary devices among more than are listed, which it adds to found.
func (d devices) primariesOfMany(now Running, found map[int]netlink.Link) (primary map[int]bool, err error) {
	primary, err = d.primaries(now, found)
	if partial := new(PartialError); err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	for index := range primary {
		l, askErr := d.byIndex(index)
		if gone := new(netlink.LinkNotFoundError); errors.As(askErr, gone) {
			continue
		} else if askErr != nil {
			return nil, fmt.Errorf("look at interface %d: %w", index, askErr)
		}
		found[index] = l
	}
	return primary, nil
}

// describeAll says what is to be known of devices, by index.
func (d devices) describeAll(found map[int]netlink.Link, primary map[int]bool) []plan.Interface {
	all := make([]plan.Interface, 0, len(found))
	for index, l := range found {
		one := d.describe(l)
		one.Primary = primary[index]
		if master := found[l.Attrs().MasterIndex]; master != nil {
			one.Master = master.Attrs().Name
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b plan.Interface) int { return a.Device.Compare(b.Device) })
	return all
}

// describe says what is to be known of a device of the namespace.
func (d devices) describe(l netlink.Link) plan.Interface {
	at := l.Attrs()
	one := plan.Interface{Device: d.device(at.Index), Name: at.Name, In: d.namespace.In, MTU: at.MTU, Physical: at.ParentDev != ""}
	if kind := l.Type(); kind != noKind {
		one.Kind = kind
	}
	one.XDPMode = attach.XDPMode(l)
	return one
}

// noKind is what the library calls the kind of a device that has none.
const noKind = "device"

// ask asks for each device in use by its index. No other change cuts that answer off.
func (d devices) ask(now Running, found map[int]netlink.Link) error {
	for on := range now.UIDs {
		index := on.Index
		if on.NetnsID != d.namespace.ID {
			continue
		}
		l, err := d.byIndex(index)
		switch gone := new(netlink.LinkNotFoundError); {
		case errors.As(err, gone):
			delete(found, index)
		case err != nil:
			return fmt.Errorf("look at interface %d: %w", index, err)
		default:
			found[index] = l
		}
	}
	return nil
}

// primaries are the devices that default routes leave by, of either family. Where not all routes
// were read, it fails with *PartialError beside those that count then.
func (d devices) primaries(now Running, found map[int]netlink.Link) (map[int]bool, error) {
	out := map[int]bool{}
	var partial *PartialError
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, whole, err := dump(func() ([]netlink.Route, error) { return d.routes(nil, family) })
		if err != nil && !errors.As(err, &partial) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		if !whole {
			d.keepPrimary(now, found, out)
		}
		addDevices(routes, out)
	}
	if partial == nil {
		return out, nil
	}
	if err := d.addLikely(now, found, out); err != nil {
		return nil, fmt.Errorf("look up default routes: %w", err)
	}
	return out, partial
}

// addDevices adds the devices that the default routes among some leave by.
func addDevices(routes []netlink.Route, to map[int]bool) {
	for _, r := range routes {
		if r.Dst != nil && !isDefault(r) {
			continue
		}
		if r.LinkIndex > 0 {
			to[r.LinkIndex] = true
		}
		for _, hop := range r.MultiPath {
			to[hop.LinkIndex] = true
		}
	}
}

// isDefault tells a default route that names its destination, 0.0.0.0/0 or ::/0.
func isDefault(r netlink.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// keepPrimary adds the devices that were primary when something was attached to
// them as such.
func (d devices) keepPrimary(now Running, found map[int]netlink.Link, primary map[int]bool) {
	for device, uids := range now.UIDs {
		on := plan.Interface{Device: device}
		if l := found[device.Index]; l != nil {
			on.Name = l.Attrs().Name
		}
		if device.NetnsID == d.namespace.ID && slices.ContainsFunc(uids, func(uid string) bool { return now.AsPrimary(uid, on) }) {
			primary[device.Index] = true
		}
	}
}
