package rtnl

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAListEndsAtItsLimits lists the devices of a network namespace, which has one.
func TestAListEndsAtItsLimits(t *testing.T) {
	need.Kernel(t)
	leaks.NetworkNamespace(t)
	all, err := Links(Limits{Entries: 1, Until: time.Now().Add(time.Minute)})
	if err != nil || len(all) != 1 || all[0].Attrs().Name != "lo" {
		t.Errorf("devices: %v, %v", all, err)
	}
	cut := new(PartialError)
	if _, err = Links(Limits{}); !errors.As(err, &cut) || *cut != (PartialError{}) {
		t.Errorf("with no time, the list fails with %v", err)
	}
}

// TestOneThingAfterAnotherIsLookedUp has answers of all kinds on one connection.
func TestOneThingAfterAnotherIsLookedUp(t *testing.T) {
	need.Kernel(t)
	leaks.NetworkNamespace(t)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(kind int, about nl.NetlinkRequestData, answer uint16) ([]byte, error) {
		request := nl.NewNetlinkRequest(kind, 0)
		request.AddData(about)
		return c.Ask(request, answer)
	}
	for range 3 {
		device := nl.NewIfInfomsg(unix.AF_UNSPEC)
		device.Index = 1
		message, err := ask(unix.RTM_GETLINK, device, unix.RTM_NEWLINK)
		if err != nil || nl.DeserializeIfInfomsg(message).Index != 1 {
			t.Errorf("loopback device: %v", err)
		}
		device.Index = 7
		if _, err := ask(unix.RTM_GETLINK, device, unix.RTM_NEWLINK); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a device that is missing: %v", err)
		}
	}
}
