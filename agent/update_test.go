package agent_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
)

// traffic sends frames on an interface until it is stopped, and tells how many.
func traffic(t *testing.T, iface string, perSecond int) (stop func() uint64) {
	t.Helper()
	dev, err := net.InterfaceByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 64)
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	quit, done := make(chan struct{}), make(chan uint64)
	go func() {
		var sent uint64
		const burst = 20
		tick := time.NewTicker(time.Second * burst / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-quit:
				_ = unix.Close(fd)
				done <- sent
				return
			case <-tick.C:
				for range burst {
					if unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6}) == nil {
						sent++
					}
				}
			}
		}
	}()
	return func() uint64 { close(quit); return <-done }
}

// count sums the per-CPU counter of a pinned map.
func count(t testing.TB, path string) uint64 {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	var perCPU []uint64
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum
}

// counts is the counter map of an application's live revision.
func (w *world) counts(a *agent.Agent, name string) string {
	w.t.Helper()
	for _, s := range a.Status() {
		if s.Application.Name == name {
			return filepath.Join(w.bpffs, s.UID, s.Revision, "m-counts")
		}
	}
	w.t.Fatalf("no application %s", name)
	return ""
}

// until waits for a condition, and fails the test when it does not come.
func until(t testing.TB, what string, limit time.Duration, condition func() bool) {
	t.Helper()
	await.True(t, what, limit, condition)
}

func quiet(t testing.TB) {
	t.Helper()
	for _, which := range []string{"all", "default"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0); err != nil {
			t.Log("IPv6 stays:", err)
		}
	}
}

func TestAnUpdateMissesNoPacketAndCountersGoOn(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	for hook, object := range map[string][2]string{
		"xdp":         {"xdp_count", "xdp_count_v2"},
		"tcx/ingress": {"tcx_count", "tcx_count_v2"},
		"tc/ingress":  {"tcx_count", "tcx_count_v2"},
	} {
		for _, neighbour := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s with a neighbour %v", hook, neighbour), func(t *testing.T) {
				needHook(t, hook)
				w := newWorld(t)
				veth(t, "up0", "up1")
				a, _ := w.start()
				app := func(version int) intent.Payload {
					return w.intent("counter", object[version%2], v1alpha1.Program{Name: functionOf(hook), Attach: on(hook, "up0")})
				}
				if err := w.accept(a, app(0)); err != nil {
					t.Fatal(err)
				}
				if neighbour {
					at := on(hook, "up0")
					at[0].Priority = new(int32)
					if err := w.accept(a, w.intent("neighbour", object[0], v1alpha1.Program{Name: functionOf(hook), Attach: at})); err != nil {
						t.Fatal(err)
					}
				}
				before := count(t, w.counts(a, "counter"))
				stop := traffic(t, "up1", 20000)
				for version := range 10 {
					if err := w.accept(a, app(version+1)); err != nil {
						t.Fatal(err)
					}
				}
				sent := stop()
				until(t, "the last packet", time.Minute, func() bool { return count(t, w.counts(a, "counter"))-before >= sent })
				if got := count(t, w.counts(a, "counter")) - before; got != sent {
					t.Errorf("%d packets sent, %d counted", sent, got)
				}
				t.Logf("%d packets through 10 updates, none lost", sent)
				if s := a.Status()[0]; !slices.ContainsFunc(s.Maps, func(m loader.MapReport) bool { return m.Map == "counts" && m.Kept }) {
					t.Errorf("maps = %+v", s.Maps)
				}
			})
		}
	}
}

func functionOf(hook string) string {
	if hook == "xdp" {
		return "count_packets"
	}
	return "count_ingress"
}
