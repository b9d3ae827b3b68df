package targets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// The bounds of what is read of a network namespace of a pod, whose processes may make any number
// of devices and routes.
const (
	// maxDevices and maxRoutes are how many it may have, routes of all tables for each family.
	maxDevices, maxRoutes = 1024, 4096
	// podBudget is how long it takes to read the devices of one namespace, as long again its
	// routes, and as long again what is looked up singly. podsBudget is how long those of one
	// reconcile take.
	podBudget, podsBudget = 100 * time.Millisecond, 500 * time.Millisecond
)

// conventional is the name that networks of containers give the device of a pod. The kernel gives
// a device by its name without a list, so no number of others hides it.
const conventional = "eth0"

// The lists of a network namespace.
const devicesList, routesList = "devices", "routes"

// PartialError is the error of a network namespace whose devices or routes were not all read: it has
// too many, or time was over, which is an ErrWaiting. Of its devices, conventional, those that an
// attachment names in full, and those where programs of Skep's run are looked up one by one; of its
// default routes, those to a few addresses.
type PartialError struct {
	// In is whose it is, such as "pod team-a/web".
	In string
	// What is devicesList or routesList. Read is how many were read, and Limit how many may be;
	// Limit is 0 where the time was over.
	What        string
	Read, Limit int
}

// isLate reports whether time was over. That is the doing of the node as much as of the pod.
func (e *PartialError) isLate() bool { return e.Limit == 0 }

// Unwrap makes one for time an ErrWaiting.
func (e *PartialError) Unwrap() error {
	if e.isLate() {
		return ErrWaiting
	}
	return nil
}

// Error implements error.
func (e *PartialError) Error() string {
	others := "other interfaces of %s than %s, those that are named in full, and those where the program runs"
	if e.What == routesList {
		others = "another primary interface of %s than %s, and those of the routes to a few addresses"
	}
	why := fmt.Sprintf("its network has more than %d %s, which is the limit of what is read; "+
		"delete those that it does not need, or name the interfaces without a pattern", e.Limit, e.What)
	if e.isLate() {
		why = fmt.Sprintf("%s: the kernel gave %d of its network's %s within %s; they are read again", ErrWaiting, e.Read, e.What, podBudget)
	}
	return fmt.Sprintf(others+": %s", e.In, conventional, why)
}

// isWhole reports whether what a definition chooses is known without the list that was not read.
func (e *PartialError) isWhole(s *v1alpha1.Interfaces) bool {
	return !s.Primary && (e.What == routesList || !slices.ContainsFunc(s.Names, functions.IsGlob))
}

// inFull returns the names that a definition gives without a pattern.
func inFull(s *v1alpha1.Interfaces) []string {
	return slices.DeleteFunc(slices.Clone(s.Names), functions.IsGlob)
}

// bounded reads lists of the network namespace that the calling thread is in.
type bounded struct {
	in    string
	until time.Time
	// maxDevices and maxRoutes are how many entries are read of a list.
	maxDevices, maxRoutes int
}

// links lists devices.
func (b bounded) links() ([]netlink.Link, error) {
	all, err := rtnl.Links(rtnl.Limits{Entries: b.maxDevices, Until: b.until})
	return all, b.explain(err, devicesList)
}

// explain says whose list was not read whole.
func (b bounded) explain(err error, what string) error {
	if cut := new(rtnl.PartialError); errors.As(err, &cut) {
		return &PartialError{In: b.in, What: what, Read: cut.Read, Limit: cut.Limit}
	}
	return err
}

// defaultRoutes lists the default routes of a family in the main table, without their destination.
// Where it fails with *PartialError, it returns those that were read.
func (b bounded) defaultRoutes(_ netlink.Link, family int) (all []netlink.Route, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Table: unix.RT_TABLE_MAIN}})
	limits := rtnl.Limits{Entries: b.maxRoutes, Until: b.until}
	err = rtnl.List(request, unix.RTM_NEWROUTE, limits, func(message []byte) error {
		is := nl.DeserializeRtMsg(message)
		if is.Family != uint8(family) || is.Dst_len != 0 || is.Table != unix.RT_TABLE_MAIN || is.Flags&unix.RTM_F_CLONED != 0 {
			return nil
		}
		attributes, err := nl.ParseRouteAttr(message[is.Len():])
		if err != nil {
			return err
		}
		var route netlink.Route
		for _, a := range attributes {
			switch {
			case a.Attr.Type == unix.RTA_OIF && len(a.Value) == 4:
				route.LinkIndex = int(binary.NativeEndian.Uint32(a.Value))
			case a.Attr.Type == unix.RTA_MULTIPATH:
				route.MultiPath = hops(a.Value)
			}
		}
		all = append(all, route)
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		// The table was never made.
		return nil, nil
	}
	return all, b.explain(err, routesList)
}

// hops reads the devices of a route with several (struct rtnexthop of rtnetlink.h).
func hops(value []byte) (all []*netlink.NexthopInfo) {
	for len(value) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(value))
		if size < unix.SizeofRtNexthop {
			break
		}
		all = append(all, &netlink.NexthopInfo{LinkIndex: int(binary.NativeEndian.Uint32(value[4:]))})
		value = value[min((size+3)&^3, len(value)):]
	}
	return all
}
