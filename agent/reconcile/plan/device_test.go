package plan_test

import (
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

func TestADeviceIsReadAsItWasWritten(t *testing.T) {
	for text, want := range map[string]plan.Device{
		"7":            {Index: 7},
		"4026532201-2": {NetnsID: 4026532201, Index: 2},
		"4026532201-7": {NetnsID: 4026532201, Index: 7},
	} {
		if got, ok := plan.ParseDevice(text); !ok || got != want || got.String() != text {
			t.Errorf("ParseDevice(%q) = %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "0", "-1", "07", "7 ", "0-7", "-7", "7-", "7-0", "7-07", "a-7", "7-8-9", "18446744073709551616-1", "+7"} {
		if got, ok := plan.ParseDevice(text); ok {
			t.Errorf("ParseDevice(%q) = %v", text, got)
		}
	}
}

func TestTheDevicesOfTheAgentComeFirst(t *testing.T) {
	got := []plan.Device{{NetnsID: 9, Index: 1}, {Index: 3}, {NetnsID: 8, Index: 2}, {Index: 2}, {NetnsID: 8, Index: 1}}
	slices.SortFunc(got, plan.Device.Compare)
	if want := []plan.Device{{Index: 2}, {Index: 3}, {NetnsID: 8, Index: 1}, {NetnsID: 8, Index: 2}, {NetnsID: 9, Index: 1}}; !slices.Equal(got, want) {
		t.Errorf("order %v", got)
	}
}

func TestAPlaceIsOfOneDevice(t *testing.T) {
	p := plan.PlaceOf(plan.Attachment{Hook: "xdp", Target: plan.Target{Ifindex: 2, Interface: "eth0", NetnsID: 7, In: "pod a/b"}})
	if want := (plan.Place{Hook: "xdp", Device: plan.Device{NetnsID: 7, Index: 2}, Interface: "eth0 in pod a/b"}); p != want {
		t.Errorf("PlaceOf = %+v", p)
	}
	if got := p.String(); got != "xdp of eth0 in pod a/b" {
		t.Errorf("String = %q", got)
	}
}
