package attach

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// DriverError says that the driver of an interface does not run an XDP program.
type DriverError struct {
	// MTU is the interface's, in bytes; 0 where it is not known.
	MTU int
	// Offloads is the command that turns off what excludes XDP.
	Offloads string
	// Err is the kernel's.
	Err error
}

// NewDriverError returns the error of an interface, whose MTU is 0 where it is not known.
func NewDriverError(on plan.Target, mtu int, host Host, err error) *DriverError {
	r := Request{Host: host, Attachment: plan.Attachment{Target: on}}
	return &DriverError{MTU: mtu, Offloads: r.inside("ethtool -K " + text.Word(on.Interface) + " lro off rx-gro-hw off"), Err: err}
}

// Error implements error.
func (e *DriverError) Error() string {
	if e.IsWithoutXDP() {
		return "the driver runs no XDP programs"
	}
	return fmt.Sprintf("the driver does not run the program at MTU %d: lower the MTU, build the program as SEC(\"xdp.frags\"), "+
		"or turn off offloads that exclude XDP: `%s`: %v", e.MTU, e.Offloads, e.Err)
}

// IsWithoutXDP reports whether the driver runs no XDP program at all.
func (e *DriverError) IsWithoutXDP() bool {
	return errors.Is(e.Err, unix.EOPNOTSUPP) || errors.Is(e.Err, link.ErrNotSupported)
}

// Unwrap returns the kernel's error.
func (e *DriverError) Unwrap() error { return e.Err }

func xdp(_ hook.Hook, r Request) (pins.Held, error) { return r.onDevice(r.attachXDP) }

// attachXDP attaches in the network namespace of the thread: in the driver, generically or, where
// the attachment leaves it open, in the driver if that takes the program.
func (r Request) attachXDP() (link.Link, error) {
	switch r.Attachment.XDPMode {
	case v1alpha1.XDPGeneric:
		return r.attachXDPAs(link.XDPGenericMode)
	case v1alpha1.XDPNative:
		return r.attachXDPAs(link.XDPDriverMode)
	}
	l, err := r.attachXDPAs(link.XDPDriverMode)
	driver := new(DriverError)
	if !errors.As(err, &driver) {
		return l, err
	}
	l, generic := r.attachXDPAs(link.XDPGenericMode)
	if generic != nil {
		return nil, errors.Join(err, generic)
	}
	if r.Fallback != nil {
		r.Fallback(driver)
	}
	return l, nil
}

// attachXDPAs attaches in one mode. It fails with a *DriverError where the driver does not take
// the program.
func (r Request) attachXDPAs(mode link.XDPAttachFlags) (link.Link, error) {
	device := r.Attachment.Target.Device()
	l, err := plain.Of(link.AttachXDP(link.XDPOptions{Program: r.Program, Interface: device.Index, Flags: mode}))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return nil, r.occupiedXDP(err)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL) && gone(device.Index):
		return nil, errors.Join(ErrTarget, err)
	case mode == link.XDPDriverMode && DriverRefuses(err):
		mtu := 0
		if device, err := net.InterfaceByIndex(device.Index); err == nil {
			mtu = device.MTU
		}
		return nil, NewDriverError(r.Attachment.Target, mtu, r.Host, err)
	}
	return nil, err
}

// DriverRefuses reports whether an error of the kernel may be that of a driver which does not take the XDP program that
// it is given. Others pass, or are about the interface.
func DriverRefuses(err error) bool {
	var is unix.Errno
	return errors.As(err, &is) && !slices.Contains([]unix.Errno{unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EBUSY, unix.EEXIST,
		unix.ENODEV, unix.ENOLINK}, is) || errors.Is(err, link.ErrNotSupported)
}

// XDPMode returns how a device runs an XDP program: XDP_ATTACHED_DRV and XDP_ATTACHED_SKB of
// include/uapi/linux/if_link.h. It is empty where the device runs none.
func XDPMode(l netlink.Link) v1alpha1.XDPMode {
	switch is := l.Attrs().Xdp; {
	case is == nil || !is.Attached:
	case is.AttachMode == 1:
		return v1alpha1.XDPNative
	case is.AttachMode == 2:
		return v1alpha1.XDPGeneric
	}
	return ""
}

// XDPProgramOf returns the XDP program of a device, whosever; 0 where it has none, or several.
func XDPProgramOf(d plan.Device, in *netns.Table) (id ebpf.ProgramID, err error) {
	err = withDevice(d, in, func() error {
		l, err := netlink.LinkByIndex(d.Index)
		if err == nil && hasXDP(l) {
			id = ebpf.ProgramID(l.Attrs().Xdp.ProgId)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look at interface %s: %w", d, err)
	}
	return id, nil
}

// PacketsOf returns how many packets a device received and sent.
func PacketsOf(d plan.Device, in *netns.Table) (received, sent uint64, err error) {
	err = withDevice(d, in, func() error {
		l, err := netlink.LinkByIndex(d.Index)
		if err == nil && l.Attrs().Statistics != nil {
			received, sent = l.Attrs().Statistics.RxPackets, l.Attrs().Statistics.TxPackets
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("look at interface %s: %w", d, err)
	}
	return received, sent, nil
}

// XDPModeOf asks the kernel how a device runs an XDP program.
func XDPModeOf(d plan.Device, in *netns.Table) (mode v1alpha1.XDPMode, err error) {
	err = withDevice(d, in, func() error {
		l, err := netlink.LinkByIndex(d.Index)
		if err == nil {
			mode = XDPMode(l)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look at interface %s: %w", d, err)
	}
	return mode, nil
}
