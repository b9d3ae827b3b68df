package hooks_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// traffic is a hook of packets, a program there that returns a given verdict, and its answers.
type traffic struct {
	hook, object, program string
	// next lets the next program run, drop ends the packet, and passes ends the hook.
	next, drop, passes int
}

// onTraffic runs a test for each hook of packets that a namespace may have.
func onTraffic(t *testing.T, test func(*testing.T, traffic)) {
	need.Kernel(t)
	world.Quiet(t)
	for _, c := range []traffic{
		{"xdp", "xdp_verdict", "xdp_verdict", 2, 1, 2},
		{"tcx/ingress", "tcx_verdict", "by_itself", -1, 2, 0},
		{"tcx/egress", "tcx_verdict", "by_itself", -1, 2, 0},
		{"tc/ingress", "tcx_verdict", "by_itself", -1, 2, 0},
		{"tc/egress", "tcx_verdict", "by_itself", -1, 2, 0},
	} {
		t.Run(c.hook, func(t *testing.T) {
			world.NeedHook(t, c.hook)
			test(t, c)
		})
	}
}

// answering is a program that answers so, of an application of the cluster where no namespace is given.
func (c traffic) answering(w *world.World, namespace, name string, priority int32, answer int) intent.Payload {
	p := w.Intent(name, c.object, v1alpha1.Program{Name: c.program, Attach: []v1alpha1.Attachment{{
		Hook: c.hook, Pods: &v1alpha1.Pods{}, Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}, Priority: &priority}}})
	raw := fmt.Append(nil, answer)
	if c.hook == "xdp" {
		raw = fmt.Append(nil, uint32(answer))
	}
	p.Variables = map[string]apiextensionsv1.JSON{"verdict": {Raw: raw}}
	if namespace != "" {
		p.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name}
	}
	return p
}

// after has the program run after those of namespaces.
func after(p intent.Payload) intent.Payload {
	p.Programs[0].Attach[0].AfterNamespaces = true
	return p
}

// has gives intents to the agent until each application has a link, or is gone: a machine may be too busy to look at a pod at once.
func has(w *world.World, a *agent.Agent, payloads ...intent.Payload) {
	w.T.Helper()
	if err := w.Accept(a, payloads...); err != nil {
		w.T.Log(err)
	}
	for _, p := range payloads {
		if p.Tombstone {
			world.Until(w.T, p.UID+" to go", 30*time.Second, func() bool {
				return !slices.ContainsFunc(a.Status(), func(s agent.ApplicationStatus) bool { return s.UID == p.UID })
			})
			continue
		}
		world.HasLinks(w, a, p.UID, 1)
	}
}

// sent sends a frame through the hook of a pod and returns how many each of the applications counts of it, once one counts
// any: the first of them sees all packets.
func (c traffic) sent(w *world.World, pod *world.Pod, uids ...string) []uint64 {
	w.T.Helper()
	before := counts(w, uids)
	c.send(w.T, pod)
	var all []uint64
	world.Until(w.T, "a packet to come", 10*time.Second, func() bool {
		all = counts(w, uids)
		return all[0] > before[0]
	})
	for i := range all {
		all[i] -= before[i]
	}
	return all
}

func counts(w *world.World, uids []string) (all []uint64) {
	w.T.Helper()
	for _, uid := range uids {
		all = append(all, world.Counted(w, uid))
	}
	return all
}

// send sends a frame through the hook of a pod. Programs have run when it returns.
func (c traffic) send(t testing.TB, pod *world.Pod) {
	t.Helper()
	if strings.HasSuffix(c.hook, "/egress") {
		world.Within(t, pod.Network(), func() error {
			eth0, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			if err := world.SendFrame(eth0.Index); !errors.Is(err, unix.ENOBUFS) {
				return err
			}
			// A program dropped it.
			return nil
		})
		return
	}
	peer, err := net.InterfaceByName(pod.Peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := world.SendFrame(peer.Index); err != nil {
		t.Fatal(err)
	}
}

// TestTheClusterDecidesFirstAboutAPacket has a program of the cluster drop each packet, which a team's would see before it by its priority: in
// both orders of arrival, and after a restart. What the cluster lets through, the team sees.
func TestTheClusterDecidesFirstAboutAPacket(t *testing.T) {
	onTraffic(t, func(t *testing.T, c traffic) {
		for _, first := range []string{"team", "cluster"} {
			t.Run(first+" first", func(t *testing.T) {
				w, r := world.New(t), world.NewRuntime(t)
				pod := r.Start("team-a", "web", "app", nil).Connected("peer-a")
				a, stop := world.StartOn(w, r)
				team, cluster := c.answering(w, "team-a", "team", 0, c.next), c.answering(w, "", "cluster", 1000, c.drop)
				apps := []intent.Payload{team, cluster}
				if first == "cluster" {
					slices.Reverse(apps)
				}
				has(w, a, apps[0])
				has(w, a, apps[1])
				if got := c.sent(w, pod, cluster.UID, team.UID); got[1] != 0 {
					t.Errorf("the cluster drops a packet, and the team sees it: %v", got)
				}
				stop()
				a, _ = world.StartOn(w, r)
				world.HasLinks(w, a, team.UID, 1)
				if got := c.sent(w, pod, cluster.UID, team.UID); got[1] != 0 {
					t.Errorf("after a restart, the team sees a packet that the cluster drops: %v", got)
				}
				has(w, a, c.answering(w, "", "cluster", 1000, c.next))
				if got := c.sent(w, pod, cluster.UID, team.UID); !slices.Equal(got, []uint64{1, 1}) {
					t.Errorf("of a packet that the cluster lets through, the two count %v", got)
				}
			})
		}
	})
}

// TestATeamHidesNoPacketFromTheCluster has a program of a team return anything between two of the cluster. What the last one does not see is
// dropped.
func TestATeamHidesNoPacketFromTheCluster(t *testing.T) {
	onTraffic(t, func(t *testing.T, c traffic) {
		w, r := world.New(t), world.NewRuntime(t)
		pod := r.Start("team-a", "web", "app", nil).Connected("peer-a")
		a, _ := world.StartOn(w, r)
		first, last := c.answering(w, "", "z-first", 1000, c.next), after(c.answering(w, "", "a-last", 0, c.next))
		has(w, a, last, first)
		programs, drops := []string{c.program, "by_tail_call", "of_no_type"}, []int{2, 4, 7, 8}
		if c.hook == "xdp" {
			programs, drops = []string{c.program}, []int{0, 1, 3, 4, 5, 6, 7, 8, 9, -1, -2}
		}
		for _, program := range programs {
			for answer := -2; answer < 10; answer++ {
				if program != c.program && answer != 0 && answer != 2 && answer != 7 {
					continue
				}
				team := c.answering(w, "team-a", fmt.Sprintf("%s%d", program, answer+2), 0, answer)
				team.Programs[0].Name = program
				if c.hook == "xdp" {
					// Its Pass ends the chain, if it may.
					team.Programs[0].Attach[0].ProceedOn = []string{"Aborted"}
				}
				has(w, a, team)
				want := []uint64{1, 1, 1}
				if slices.Contains(drops, answer) && (c.hook != "xdp" || answer != 0) {
					want[2] = 0
				}
				if got := c.sent(w, pod, first.UID, team.UID, last.UID); !slices.Equal(got, want) {
					t.Errorf("%s answers %d, and the three count %v, want %v", program, answer, got, want)
				}
				has(w, a, w.Tombstone(team))
			}
		}
	})
}

// TestAnUpgradeMovesTheClusterToTheFront has an agent find programs in the order of one that knew priorities alone. The team's ends the hook, so
// that the cluster sees nothing. It sees every packet once it has moved, and the team misses none meanwhile. That waits for nothing of the team's:
// a chain of XDP continues without a program of a team whose object is lost.
func TestAnUpgradeMovesTheClusterToTheFront(t *testing.T) {
	onTraffic(t, func(t *testing.T, c traffic) {
		for _, isLost := range []bool{false, true} {
			t.Run(fmt.Sprintf("the team's object is lost: %v", isLost), func(t *testing.T) { movesToTheFront(t, c, isLost) })
		}
	})
}

func movesToTheFront(t *testing.T, c traffic, isLost bool) {
	w, r := world.New(t), world.NewRuntime(t)
	pod := r.Start("team-a", "web", "app", nil).Connected("peer-a")
	team, cluster := c.answering(w, "team-a", "team", 0, c.passes), c.answering(w, "", "cluster", 500, c.next)
	object, program := "tcx_count", "count_ingress"
	if c.hook == "xdp" {
		object, program = "xdp_count", "count_packets"
		team.Programs[0].Attach[0].ProceedOn = []string{"Drop"}
	}
	cluster.ObjectDigest, cluster.Programs[0].Name, cluster.Variables = w.Object(world.ProgramsObject(object)), program, nil
	ranUnguarded(t, w, r, team, cluster)
	renamed(t, w, cluster.Application, team)
	if isLost {
		lacksObject(t, w, team.ObjectDigest)
	}
	sent := uint64(1)
	if got := c.sent(w, pod, team.UID, cluster.UID); !slices.Equal(got, []uint64{1, 0}) {
		t.Fatalf("of a packet, the former agent has the team's and the cluster's program count %v", got)
	}
	a, _ := world.StartOn(w, r)
	sees := func() bool {
		before := world.Counted(w, cluster.UID)
		c.send(t, pod)
		sent++
		return world.Counted(w, cluster.UID) > before
	}
	world.Until(t, "the cluster to see a packet", 30*time.Second, sees)
	if !isLost {
		settled(t, a)
	}
	for range 20 {
		if !sees() {
			t.Fatal("the cluster does not see each packet")
		}
	}
	if got := world.Counted(w, team.UID); got < sent && (c.hook != "xdp" || !isLost) {
		t.Errorf("the team's program missed packets: it counted %d of %d", got, sent)
	}
	if isLost {
		return
	}
	world.Within(t, pod.Network(), func() error {
		if n := len(world.FiltersOf(t, "eth0", strings.HasSuffix(c.hook, "/egress"))); n != 2 && n != 0 {
			t.Errorf("two programs have %d filters", n)
		}
		return nil
	})
	has(w, a, c.answering(w, "", "cluster", 500, c.drop))
	if got := c.sent(w, pod, cluster.UID, team.UID); got[1] != 0 {
		t.Errorf("the team sees a packet that the cluster drops: %v", got)
	}
}

func settled(t *testing.T, a *agent.Agent) {
	t.Helper()
	if err := a.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lacksObject takes an object away.
func lacksObject(t *testing.T, w *world.World, digest string) {
	t.Helper()
	w.Mu.Lock()
	delete(w.Objects, digest)
	w.Mu.Unlock()
	_, hex, _ := strings.Cut(digest, ":")
	files, err := filepath.Glob(filepath.Join(w.Dir, "state", "objects", "*"+hex+"*"))
	world.Must(t, err)
	if len(files) != 1 {
		t.Fatal(files)
	}
	world.Must(t, os.Remove(files[0]))
}

// renamed has what a stopped agent wrote beside its pins say that the program of an application is a namespace's.
func renamed(t *testing.T, w *world.World, of v1alpha1.Identity, p intent.Payload) {
	t.Helper()
	of.Name = p.Application.Name
	was, err := json.Marshal(of)
	world.Must(t, err)
	is, err := json.Marshal(p.Application)
	world.Must(t, err)
	n := 0
	world.Must(t, filepath.WalkDir(w.BPFFS, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() != fs.ModeSymlink {
			return err
		}
		text, err := os.Readlink(path)
		if err != nil || !strings.Contains(text, string(was)) {
			return err
		}
		n++
		return errors.Join(os.Remove(path), os.Symlink(strings.ReplaceAll(text, string(was), string(is)), path))
	}))
	if n == 0 {
		t.Fatalf("nothing beside the pins is of %s", was)
	}
}
