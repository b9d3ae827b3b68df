package agent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestAPodWithTooManyDevicesIsSkipped has a pod make more devices than are read. The application
// runs in the other one, and where it ran it stays.
func TestAPodWithTooManyDevicesIsSkipped(t *testing.T) {
	needKernel(t)
	quiet(t)
	w, known := newWorld(t), newPods(t)
	known.add("well")
	crowded := known.add("crowded")
	crowd := func() (err error) {
		for i := range 600 {
			err = errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("a", i)}, PeerName: fmt.Sprint("b", i)}))
		}
		return err
	}
	later := known.add("later")
	known.choose("x", "well", "crowded", "later")
	p := w.counter("x", "xdp", "xdp_count", 500)
	p.Programs[0].Attach[0].Interfaces = &v1alpha1.Interfaces{Names: []string{"eth*"}, Kinds: []string{"veth"}}
	within(t, crowded.path, crowd)
	a, stop := w.startIn(known)
	must(t, w.accept(a, p))
	states := func() (attached []string, skipped string) {
		for _, l := range a.Status()[0].Programs[0].Links {
			if l.State == agent.Attached {
				attached = append(attached, l.Target)
			} else {
				skipped += string(l.State) + ": " + l.Error
			}
		}
		return attached, skipped
	}
	runsIn := func(skipped string, pods ...string) bool {
		attached, why := states()
		for _, pod := range pods {
			if !slices.ContainsFunc(attached, func(target string) bool { return strings.Contains(target, "pod "+pod) }) {
				return false
			}
		}
		return len(attached) == len(pods) && strings.Contains(why, "Skipped: pod "+skipped+" is left out: its network has more than 1024 devices")
	}
	until(t, "the program to run in two pods, and the third to be skipped", 20*time.Second, func() bool { return runsIn("crowded", "well", "later") })
	if s := a.Status()[0]; s.Error != "" {
		t.Errorf("the application fails: %s", s.Error)
	}
	within(t, later.path, crowd)
	stop()
	a, _ = w.startIn(known)
	must(t, w.accept(a))
	until(t, "the other to be told as skipped", 20*time.Second, func() bool { return runsIn("later", "well", "later") })
}
