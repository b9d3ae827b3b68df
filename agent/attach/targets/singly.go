package targets

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// samples is how many addresses of each family a default route is looked for by.
const samples = 16

// errSlow is the error of a look-up for which no time is left. The next attempt has time of its own.
var errSlow = fmt.Errorf("%w: what was looked up singly took more than %s; it is looked up again", ErrWaiting, podBudget)

// singly looks up devices and routes one by one, in the network namespace that the calling thread
// is in. The kernel keeps no list for that, so that no number of others hides one.
type singly struct {
	// left is how long all look-ups may take yet.
	left time.Duration
}

// ask calls do with sockets that wait no longer than is left, and fails with errSlow where that is
// too short.
func (s *singly) ask(do func(*netlink.Handle) error) error {
	if s.left < time.Microsecond {
		return errSlow
	}
	began := time.Now()
	defer func() { s.left -= time.Since(began) }()
	sockets, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer sockets.Close()
	if err := sockets.SetSocketTimeout(s.left); err != nil {
		return err
	}
	if err = do(sockets); errors.Is(err, unix.EAGAIN) {
		return errSlow
	}
	return err
}

func (s *singly) byIndex(index int) (l netlink.Link, err error) {
	err = s.ask(func(sockets *netlink.Handle) (err error) {
		l, err = sockets.LinkByIndex(index)
		return err
	})
	return l, err
}

func (s *singly) byName(name string) (l netlink.Link, err error) {
	err = s.ask(func(sockets *netlink.Handle) (err error) {
		l, err = sockets.LinkByName(name)
		return err
	})
	return l, err
}

// sampledRoutes returns the default routes by which addresses are reached that are not known before.
// To hide a default route from it takes routes to most addresses, which then is none by default.
func (s *singly) sampledRoutes() (all []netlink.Route, err error) {
	for i := range 2 * samples {
		to := net.IP(make([]byte, net.IPv4len+i%2*(net.IPv6len-net.IPv4len)))
		if _, err := rand.Read(to); err != nil {
			return nil, err
		}
		if len(to) == net.IPv4len {
			// From 128.0.0.0 to 191.255.255.255, and from 2000:: on: the addresses of single hosts.
			to[0] = to[0]&0x3f | 0x80
		} else {
			to[0] = to[0]&0x1f | 0x20
		}
		var found []netlink.Route
		err := s.ask(func(sockets *netlink.Handle) (err error) {
			found, err = sockets.RouteGetWithOptions(to, &netlink.RouteGetOptions{FIBMatch: true})
			return err
		})
		switch refused := unix.Errno(0); {
		case errors.Is(err, errSlow) || err != nil && !errors.As(err, &refused):
			return nil, err
		case err != nil:
			// There is no route to it, or one that drops what is sent.
			continue
		}
		for _, r := range found {
			if r.Table == unix.RT_TABLE_MAIN && (r.Dst == nil || isDefault(r)) {
				all = append(all, r)
			}
		}
	}
	return all, nil
}
