package hooks_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// handed is a connection that a container made to a server in no pod, and the socket that it handed over.
type handed struct{ connection, socket int }

// onLoopback gives the pod a network that reaches itself.
func onLoopback(t *testing.T, p *world.Pod) *world.Pod {
	t.Helper()
	world.Within(t, p.Network(), events.LoopbackUp)
	return p
}

// hands has a container connect to this process, which is in no pod, and hand it a socket.
func hands(t *testing.T, p *world.Pod) handed {
	t.Helper()
	server := socket(t, unix.AF_UNIX, unix.SOCK_STREAM)
	path := filepath.Join(p.Files, "server")
	world.Must(t, unix.Bind(server, &unix.SockaddrUnix{Name: path}))
	world.Must(t, unix.Listen(server, 1))
	p.Task.Does("hand:/server", 1)
	connection, _, err := unix.Accept(server)
	world.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(connection) })
	world.Must(t, unix.Unlink(path))
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(connection, data, rights, unix.MSG_CMSG_CLOEXEC)
	world.Must(t, err)
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	world.Must(t, err)
	sockets, err := unix.ParseUnixRights(&messages[0])
	world.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(sockets[0]) })
	return handed{connection, sockets[0]}
}

func socket(t *testing.T, family, kind int) int {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	world.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// peer is the process that a server is told to be the other end of a connection.
func peer(t *testing.T, connection int) int {
	t.Helper()
	credentials, err := unix.GetsockoptUcred(connection, unix.SOL_SOCKET, unix.SO_PEERCRED)
	world.Must(t, err)
	return int(credentials.Pid)
}

func connectTo(fd, port int) error {
	return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

// TestATeamAnswersNoProcessOutsideOfItsPods has a team's programs answer and decide about sockets that its pod
// made, and that a server in no pod accepted or was handed.
func TestATeamAnswersNoProcessOutsideOfItsPods(t *testing.T) {
	need.Kernel(t)
	for _, kind := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
		t.Run(kind, func(t *testing.T) {
			w, r := world.New(t), world.NewRuntime(t)
			pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
			a, _ := world.StartOn(w, r)
			before := hands(t, pod)
			for _, at := range []v1alpha1.Program{
				{Name: "forge_peer", Attach: []v1alpha1.Attachment{{Hook: "cgroup/getsockopt", Pods: &v1alpha1.Pods{}}}},
				{Name: "deny_all", Attach: []v1alpha1.Attachment{{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}}}},
			} {
				p := world.OfTeam(w, "team-a", "sockets", at.Name, at.Attach[0])
				if kind == v1alpha1.KindClusterBpfApplication {
					p.Application = v1alpha1.Identity{Kind: kind, Name: at.Name}
				}
				world.Must(t, w.Accept(a, p))
				world.HasLinks(w, a, p.UID, 1)
			}
			if pod.Task.Can("connect") {
				t.Error("the program decides nothing for the pod's own task")
			}
			for when, got := range map[string]handed{"before": before, "after": hands(t, pod)} {
				pid, err := peer(t, got.connection), connectTo(got.socket, 9)
				if kind == v1alpha1.KindBpfApplication && (pid != pod.Task.PID() || err != nil) {
					t.Errorf("made %s the programs came: the server is told process %d of %d, and connects: %v", when, pid, pod.Task.PID(), err)
				}
				// What the cluster decides about a socket it decides in every hand.
				if kind == v1alpha1.KindClusterBpfApplication && (pid != 1 || err == nil) {
					t.Errorf("made %s the programs came: the cluster's are not asked: process %d, %v", when, pid, err)
				}
			}
		})
	}
}

// orders reports whether the kernel attaches a program before others of a cgroup.
func orders(t *testing.T, cgroup string) bool {
	t.Helper()
	folder, err := os.Open(cgroup)
	world.Must(t, err)
	defer func() { _ = folder.Close() }()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(folder.Fd()), Program: lets(t), Attach: ebpf.AttachCGroupInet4Connect, Flags: unix.BPF_F_BEFORE})
	if err == nil {
		world.Must(t, l.Close())
	}
	return !errors.Is(err, unix.EINVAL)
}

// lets is a program on connect4 that lets all through.
func lets(t *testing.T) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	world.Must(t, err)
	t.Cleanup(func() { _ = program.Close() })
	return program
}

// TestTheClusterDecidesAboutWhatATeamMadeOfACall has a team send connections to another port, which a program of
// the cluster denies, in both orders.
func TestTheClusterDecidesAboutWhatATeamMadeOfACall(t *testing.T) {
	need.Kernel(t)
	for _, c := range []struct {
		first string
		// chosen are the containers that the cluster's program is for.
		chosen []string
	}{{"deny_4343", nil}, {"rewrite_4242", nil}, {"deny_4343", []string{"app"}}, {"rewrite_4242", []string{"app"}}} {
		t.Run(fmt.Sprintf("%s first of %d containers", c.first, len(c.chosen)), func(t *testing.T) {
			w, r := world.New(t), world.NewRuntime(t)
			pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
			if c.first == "deny_4343" && c.chosen != nil && !orders(t, pod.Cgroup) {
				t.Skip("SKIPPED: this kernel orders no programs of one cgroup (BPF_F_BEFORE)")
			}
			a, _ := world.StartOn(w, r)
			team := world.OfTeam(w, "team-a", "sockets", "rewrite_4242", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}})
			cluster := world.OfTeam(w, "", "sockets", "deny_4343", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{Containers: c.chosen}})
			cluster.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "deny-4343"}
			if c.first == "deny_4343" {
				world.Must(t, w.Accept(a, cluster))
			}
			world.Must(t, w.Accept(a, team))
			world.Must(t, w.Accept(a, cluster))
			for port, want := range map[string]bool{"connect:4242": false, "connect:4343": false, "connect:4241": true} {
				if pod.Task.Can(port) != want {
					t.Errorf("the pod can %s: %v", port, !want)
				}
			}
		})
	}
}

// TestABindOfAProgramAsksNoOther shows why the gate denies bpf_bind to a namespace: the kernel asks no program on bind then.
func TestABindOfAProgramAsksNoOther(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
	a, _ := world.StartOn(w, r)
	for _, hook := range []string{"cgroup/bind4", "cgroup/post_bind4"} {
		program := map[string]string{"cgroup/bind4": "deny_binds", "cgroup/post_bind4": "deny_bound"}[hook]
		p := world.OfTeam(w, "", "sockets", program, v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}})
		p.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: program}
		world.Must(t, w.Accept(a, p))
		world.HasLinks(w, a, p.UID, 1)
	}
	if pod.Task.Can("bind:4545") || !pod.Task.Can("connect") {
		t.Fatal("the cluster's programs do not deny what the task binds, or more")
	}
	world.Must(t, w.Accept(a, world.OfTeam(w, "team-a", "lifts", "bound", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}})))
	if !pod.Task.Can("connect:from:4545") {
		t.Error("the kernel asks the cluster's programs about what a program binds: allow bpf_bind again")
	}
}

// TestATeamDecidesNothingOnTheNodesNetwork has a pod share the network of the node.
func TestATeamDecidesNothingOnTheNodesNetwork(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
	pod.Pod.HostNetwork = true
	r.Tell(func() { r.All[pod.ID] = pod.Container }, pod.Pod)
	a, _ := world.StartOn(w, r)
	for _, hook := range []string{"cgroup/connect4", "cgroup/getsockopt"} {
		program := map[string]string{"cgroup/connect4": "deny_all", "cgroup/getsockopt": "forge_peer"}[hook]
		p := world.OfTeam(w, "team-a", "sockets", program, v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}})
		world.Must(t, w.Accept(a, p))
		world.HasLinks(w, a, p.UID, 0)
		if s := fmt.Sprintf("%+v", world.StatusOf(a, p.Application.Name)); !strings.Contains(s, "pod team-a/web is on the node's network") {
			t.Errorf("%s: it does not say why it runs nowhere: %s", hook, s)
		}
	}
	if !pod.Task.Can("connect") {
		t.Error("a team decides about the node's network")
	}
}

// TestATeamGivesItsPodsNoPort has programs let tasks without capabilities bind ports below 1024: by a number in the
// program, which the gate would deny, and by one that only the kernel knows.
func TestATeamGivesItsPodsNoPort(t *testing.T) {
	need.Kernel(t)
	for _, program := range []string{"low_port", "low_port_by_variable", "low_port_of_no_type"} {
		for kind, want := range map[string]bool{v1alpha1.KindBpfApplication: false, v1alpha1.KindClusterBpfApplication: true} {
			t.Run(program+" of a "+kind, func(t *testing.T) {
				w, r := world.New(t), world.NewRuntime(t)
				pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
				a, _ := world.StartOn(w, r)
				p := world.OfTeam(w, "team-a", "lifts", program, v1alpha1.Attachment{Hook: "cgroup/bind4", Pods: &v1alpha1.Pods{}})
				if kind == v1alpha1.KindClusterBpfApplication {
					p.Application = v1alpha1.Identity{Kind: kind, Name: "lifts"}
				}
				world.Must(t, w.Accept(a, p))
				world.HasLinks(w, a, p.UID, 1)
				if pod.Task.Can("bind:81") != want || !pod.Task.Can("bind:8181") {
					t.Errorf("the pod binds port 81: %v, port 8181: %v", pod.Task.Can("bind:81"), pod.Task.Can("bind:8181"))
				}
			})
		}
	}
}

// ranUnguarded leaves the state of an agent that ran a team's program in a pod without a guard, as agents
// run one of the cluster, beside others.
func ranUnguarded(t *testing.T, w *world.World, r *world.Runtime, p intent.Payload, others ...intent.Payload) {
	t.Helper()
	a, stop := world.StartOn(w, r)
	cluster := p
	cluster.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: p.Application.Name}
	has(w, a, append(others, cluster)...)
	stop()
	dir, err := statedir.Open(filepath.Join(w.Dir, "state"))
	world.Must(t, err)
	for _, kind := range []statedir.Kind{statedir.Newest, statedir.Deployed} {
		world.Must(t, dir.PutIntent(p.UID, kind, w.Seal(p)))
	}
}

// onConnect counts the programs on connect4 of a cgroup, without those of the ones above it.
func onConnect(t *testing.T, cgroup string) int {
	t.Helper()
	folder, err := os.Open(cgroup)
	world.Must(t, err)
	defer func() { _ = folder.Close() }()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(folder.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	world.Must(t, err)
	return len(found.Programs)
}

// TestAnUpgradeGuardsWhatRuns has an agent find a team's program that a former one attached to the pod without a guard.
// What it lacks at first it is given when it says so.
func TestAnUpgradeGuardsWhatRuns(t *testing.T) {
	need.Kernel(t)
	for name, c := range map[string]struct {
		program string
		lacks   func(*testing.T, *world.World, *world.Pod) (back func())
		says    string
	}{
		"all is there":                                  {"deny_all", lacksNothing, ""},
		"the kernel denies it":                          {"deny_deep", lacksNothing, "stack size"},
		"the object is not to be had":                   {"deny_all", lacksObjects, "no object"},
		"the runtime does not answer":                   {"deny_all", lacksPods, "without a guard until they are known"},
		"the runtime does not answer for the container": {"deny_all", lacksAnswer, "without a guard until they are known"},
		"the container's cgroup takes no more programs": {"deny_all", lacksRoom, "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := world.New(t), world.NewRuntime(t)
			pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
			above := filepath.Dir(pod.Cgroup)
			p := world.OfTeam(w, "team-a", "sockets", c.program, v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}})
			ranUnguarded(t, w, r, p)
			back := c.lacks(t, w, pod)
			a, _ := world.StartOn(w, r)
			world.Until(t, "the agent to say what it lacks", 30*time.Second, func() bool { return strings.Contains(fmt.Sprintf("%+v", a.Status()), c.says) })
			if n := onConnect(t, above); c.says != "" && (n != 1 || pod.Task.Can("connect")) {
				t.Fatalf("the pod has %d programs, and the container none with a guard", n)
			}
			if back(); c.program != "deny_all" {
				return
			}
			world.Until(t, "the guarded program to be on the container alone", 30*time.Second, func() bool {
				if pod.Task.Can("connect") {
					t.Fatal("no program runs meanwhile")
				}
				return onConnect(t, above) == 0 && onConnect(t, pod.Cgroup) == 1
			})
			if err := connectTo(hands(t, pod).socket, 9); err != nil {
				t.Errorf("the program has no guard: %v", err)
			}
		})
	}
}

func lacksNothing(*testing.T, *world.World, *world.Pod) (back func()) { return func() {} }

// lacksObjects takes the objects away.
func lacksObjects(t *testing.T, w *world.World, _ *world.Pod) (back func()) {
	world.Must(t, os.RemoveAll(filepath.Join(w.Dir, "state", "objects")))
	swap := func(objects map[string][]byte) map[string][]byte {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		was := w.Objects
		w.Objects = objects
		return was
	}
	all := swap(nil)
	return func() { swap(all) }
}

// lacksPods has the runtime not answer.
func lacksPods(_ *testing.T, _ *world.World, pod *world.Pod) (back func()) {
	pod.R.Tell(func() { pod.R.Err = errors.New("it hangs") })
	return func() { pod.R.Tell(func() { pod.R.Err = nil }, pod.Pod) }
}

// lacksAnswer has the runtime not answer for the container, of a pod that is known.
func lacksAnswer(_ *testing.T, _ *world.World, pod *world.Pod) (back func()) {
	return pod.Unanswered(pod.Pod)
}

// lacksRoom attaches as many programs to the container's cgroup as it takes.
func lacksRoom(t *testing.T, _ *world.World, pod *world.Pod) (back func()) {
	return fills(t, pod.Cgroup)
}

// fills attaches as many programs to a cgroup as it takes.
func fills(t *testing.T, cgroup string) (empties func()) {
	t.Helper()
	program := lets(t)
	var links []link.Link
	empties = func() {
		for _, l := range links {
			_ = l.Close()
		}
		links = nil
	}
	t.Cleanup(func() { empties() })
	for {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: program})
		if err != nil {
			return empties
		}
		links = append(links, l)
	}
}
