package volumes_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
)

// five is an application of five maps, which grants some of them.
func (n *node) five(grants map[string]v1alpha1.MapExport) intent.Payload {
	n.t.Helper()
	p := n.Intent("five", "xdp_maps", v1alpha1.Program{Name: "xdp_maps", Attach: world.On("xdp", "rd0")})
	p.Maps = map[string]v1alpha1.Map{}
	for name, g := range grants {
		p.Maps[name] = v1alpha1.Map{Export: []v1alpha1.MapExport{g}}
	}
	return p
}

// names is a pod of the namespace web that names maps of the application of five.
func (n *node) names(list string) volumes.Request {
	n.t.Helper()
	r := n.pod("web", "reader", v1alpha1.KindClusterBpfApplication, "five")
	r.Maps = list
	return r
}

// has are the maps that a volume lists, of which each has a pin at its root, and no other map has.
func (n *node) has(r volumes.Request) string {
	n.t.Helper()
	listed := slices.Sorted(maps.Keys(n.listing(r).Maps))
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		m, err := ebpf.LoadPinnedMap(n.path(r, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err == nil {
			err = m.Close()
		}
		if is := slices.Contains(listed, name); is && err != nil || !is && !errors.Is(err, os.ErrNotExist) {
			n.t.Errorf("%s is in the list: %v; its pin is answered by %v", name, is, err)
		}
	}
	return strings.Join(listed, ",")
}

func TestAVolumeHasTheMapsThatItNames(t *testing.T) {
	n := newNodeWith(t, true)
	read := to(v1alpha1.MapRead, "web")
	world.Must(t, n.Accept(n.agent, n.five(map[string]v1alpha1.MapExport{
		"one": read, "two": to(v1alpha1.MapWrite, "web"), "three": to(v1alpha1.MapRead, "shop"), "four": to(v1alpha1.MapConsume, "web"),
	})))
	one, two, all := n.mounts(n.names("one")), n.mounts(n.names("one,two")), n.mounts(n.names(""))
	for _, c := range []struct {
		of   volumes.Request
		want string
	}{{one, "one"}, {two, "one,two"}, {all, "one,two"}} {
		if got := n.has(c.of); got != c.want {
			t.Errorf("the volume that names %q has %s", c.of.Maps, got)
		}
	}
	for list, c := range map[string]struct {
		want error
		says string
	}{
		"one,three":  {volumes.ErrNotGranted, `grants no map three (spec.maps.three.export) to service account "reader" of namespace "web"`},
		"absent,one": {volumes.ErrNotGranted, "grants no map absent"},
		"three":      {volumes.ErrNotGranted, "grants none of the maps that the volume names (three)"},
		"four,one":   {volumes.ErrNotThere, "map four is not to be had"},
	} {
		r := n.names(list)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		err := n.agent.Volumes().Mount(ctx, r)
		cancel()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !n.isEmpty(r) {
			t.Errorf("the volume that names %q says %v, want %v with %q, or something is mounted", list, err, c.want, c.says)
		}
	}

	// What ends, ends; and nothing comes that was not named: not by a grant, and not by an agent that finds the volume.
	world.Must(t, n.Accept(n.agent, n.five(map[string]v1alpha1.MapExport{"one": read, "three": read})))
	for range 2 {
		for _, c := range []struct {
			of   volumes.Request
			want string
		}{{one, "one"}, {two, "one"}, {all, "one,three"}} {
			world.Until(t, "the volume that names "+c.of.Maps+" to have "+c.want, time.Minute, func() bool {
				return strings.Join(slices.Sorted(maps.Keys(n.listing(c.of).Maps)), ",") == c.want
			})
			if got := n.has(c.of); got != c.want {
				t.Errorf("the volume that names %q has %s", c.of.Maps, got)
			}
		}
		n.stopAgent()
		n.startAgent()
		n.Give(n.agent)
		world.Until(t, "the agent to have found the volumes", time.Minute, func() bool {
			current, behind := n.agent.Volumes().Count()
			return current == 3 && behind == 0
		})
	}
}
