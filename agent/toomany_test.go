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
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// crowd makes more devices than are read of a pod, and uncrowd deletes so many that all are.
func crowd() (err error) {
	for i := range 600 {
		err = errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("a", i)}, PeerName: fmt.Sprint("b", i)}))
	}
	return err
}

// uncrowd leaves few enough for a busy machine to read in time.
func uncrowd() (err error) {
	for i := range 550 {
		err = errors.Join(err, netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("a", i)}}))
	}
	return err
}

// placesOf returns the targets where an application is attached, and what is told of others.
func placesOf(a *agent.Agent, uid string) (attached []string, others string) {
	for _, s := range a.Status() {
		if s.UID != uid {
			continue
		}
		for _, l := range s.Programs[0].Links {
			if l.State == agent.Attached {
				attached = append(attached, l.Target)
			} else {
				others += string(l.State) + ": " + l.Error
			}
		}
	}
	slices.Sort(attached)
	return attached, others
}

// isCrowded is what is told of a pod with too many devices. A busy machine may not have read so many
// in time.
func isCrowded(others, pod string) bool {
	told := "other interfaces of " + pod + " than eth0"
	return strings.HasPrefix(others, "Skipped: "+told) && strings.Contains(others, "its network has more than 1024 devices") ||
		strings.HasPrefix(others, "Waiting: "+told) && strings.Contains(others, "they are read again")
}

// TestAFloodOfDevicesHidesNoNamedOne has a pod make more devices than are read, before programs are
// attached and after. An application that names its interfaces by a pattern runs on eth0 and skips
// others; one that names eth0 skips none.
func TestAFloodOfDevicesHidesNoNamedOne(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w, known := world.New(t), newPods(t)
	known.add("well")
	crowded, later := known.add("crowded"), known.add("later")
	known.choose("pattern", "well", "crowded", "later")
	known.choose("named", "well", "crowded", "later")
	pattern, named := counter(w, "pattern", "xdp", "xdp_count", 500), counter(w, "named", "xdp", "xdp_count", 501)
	pattern.Programs[0].Attach[0].Interfaces = &v1alpha1.Interfaces{Names: []string{"eth*"}, Kinds: []string{"veth"}}
	named.Programs[0].Attach[0].Interfaces = &v1alpha1.Interfaces{Names: []string{"eth0"}}
	world.Within(t, crowded.path, crowd)
	a, stop := startIn(w, known)
	world.Must(t, w.Accept(a, pattern, named))
	all := []string{"eth0 in pod crowded", "eth0 in pod later", "eth0 in pod well"}
	runIn := func(pod string) bool {
		byPattern, skipped := placesOf(a, pattern.UID)
		byName, others := placesOf(a, named.UID)
		return slices.Equal(byPattern, all) && isCrowded(skipped, pod) && slices.Equal(byName, all) && others == ""
	}
	world.Until(t, "the programs to run in all pods, and other interfaces of one to be skipped", time.Minute, func() bool { return runIn("pod crowded") })
	for _, s := range a.Status() {
		if s.Error != "" {
			t.Errorf("%s fails: %s", s.Application, s.Error)
		}
	}
	world.Within(t, crowded.path, uncrowd)
	world.Within(t, later.path, crowd)
	stop()
	a, _ = startIn(w, known)
	world.Must(t, w.Accept(a))
	world.Until(t, "the other pod to be told as skipped", time.Minute, func() bool { return runIn("pod later") })
}

// TestAPodWithTooManyDevicesIsReadAgain: a reconcile that follows changes takes no such pod for one
// that was read, and a sweep reads it again after a while.
func TestAPodWithTooManyDevicesIsReadAgain(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w, r, now := world.New(t), world.NewRuntime(t), world.NewClock()
	a := onTurns(w, r, func(o *agent.Options) { o.Clock = now.Now })
	pod := r.Start("team-a", "web", "app", nil).Connected("cn-web")
	p := world.OfTeam(w, "team-a", "xdp_count", "count_packets", v1alpha1.Attachment{
		Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth*"}}, Pods: &v1alpha1.Pods{},
	})
	w.Give(a, p)
	rests(t, a)
	isSkipped := func() bool {
		attached, others := placesOf(a, p.UID)
		return len(attached) == 1 && isCrowded(others, "pod team-a/web")
	}
	// A busy machine may not read the pod in time, and does so later.
	later := func(sentence string, want bool) {
		t.Helper()
		world.Until(t, sentence, time.Minute, func() bool {
			now.Forward(3 * time.Second)
			a.Sweep(t.Context())
			return isSkipped() == want
		})
	}
	later("the pod to be read", false)
	world.Within(t, pod.Network(), crowd)
	a.Reconcile(t.Context())
	later("the pod to be skipped", true)
	a.Reconcile(t.Context())
	// Another pod comes, and this one is as it was.
	r.Start("team-a", "other", "app", nil).Connected("cn-other").Ends()
	for a.ReconcileIfWoken(t.Context()) {
		if !isSkipped() {
			t.Error("the pod is taken for one that was read, when another pod came")
		}
	}
	world.Within(t, pod.Network(), uncrowd)
	if a.Sweep(t.Context()) {
		t.Error("a sweep reads the pod again at once")
	}
	later("the pod to be read again", false)
}
