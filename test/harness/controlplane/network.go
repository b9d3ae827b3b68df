package controlplane

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/test/harness/leaks"
)

// Network gives the network namespace of isolated tests what kube-apiserver looks for: an
// address that a default route leads from. Tests that are not isolated have the machine's.
func Network() error {
	if !leaks.Isolated() {
		return nil
	}
	out := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "out1"}
	if err := netlink.LinkAdd(out); err != nil {
		return err
	}
	address, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.AddrAdd(out, address), netlink.LinkSetUp(out)); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: out.Index, Gw: net.IPv4(192, 0, 2, 254)})
}
