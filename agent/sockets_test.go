package agent_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// handed is a connection that a container made to a server in no pod, and the socket that it handed over.
type handed struct{ connection, socket int }

// onLoopback gives the pod a network that reaches itself.
func (p *podOf) onLoopback() *podOf {
	within(p.r.t, p.network(), events.LoopbackUp)
	return p
}

// hands has a container connect to this process, which is in no pod, and hand it a socket.
func (p *podOf) hands() handed {
	t := p.r.t.(*testing.T)
	t.Helper()
	server := socket(t, unix.AF_UNIX, unix.SOCK_STREAM)
	path := filepath.Join(p.files, "server")
	must(t, unix.Bind(server, &unix.SockaddrUnix{Name: path}))
	must(t, unix.Listen(server, 1))
	p.task.Does("hand:/server", 1)
	connection, _, err := unix.Accept(server)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(connection) })
	must(t, unix.Unlink(path))
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(connection, data, rights, unix.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	must(t, err)
	sockets, err := unix.ParseUnixRights(&messages[0])
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(sockets[0]) })
	return handed{connection, sockets[0]}
}

func socket(t *testing.T, family, kind int) int {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// peer is the process that a server is told to be the other end of a connection.
func peer(t *testing.T, connection int) int {
	t.Helper()
	credentials, err := unix.GetsockoptUcred(connection, unix.SOL_SOCKET, unix.SO_PEERCRED)
	must(t, err)
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
			w, r := newWorld(t), newRuntime(t)
			pod := r.start("team-a", "web", "app", nil).onLoopback()
			a, _ := w.startOn(r)
			before := pod.hands()
			for _, at := range []v1alpha1.Program{
				{Name: "forge_peer", Attach: []v1alpha1.Attachment{{Hook: "cgroup/getsockopt", Pods: &v1alpha1.Pods{}}}},
				{Name: "deny_all", Attach: []v1alpha1.Attachment{{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}}}},
			} {
				p := w.ofTeam("team-a", "sockets", at.Name, at.Attach[0])
				if kind == v1alpha1.KindClusterBpfApplication {
					p.Application = v1alpha1.Identity{Kind: kind, Name: at.Name}
				}
				must(t, w.accept(a, p))
				w.hasLinks(a, p.UID, 1)
			}
			if pod.task.Can("connect") {
				t.Error("the program decides nothing for the pod's own task")
			}
			for when, got := range map[string]handed{"before": before, "after": pod.hands()} {
				pid, err := peer(t, got.connection), connectTo(got.socket, 9)
				if kind == v1alpha1.KindBpfApplication && (pid != pod.task.PID() || err != nil) {
					t.Errorf("made %s the programs came: the server is told process %d of %d, and connects: %v", when, pid, pod.task.PID(), err)
				}
				// What the cluster decides about a socket it decides in every hand.
				if kind == v1alpha1.KindClusterBpfApplication && (pid != 1 || err == nil) {
					t.Errorf("made %s the programs came: the cluster's are not asked: process %d, %v", when, pid, err)
				}
			}
		})
	}
}

// TestTheClusterDecidesAboutWhatATeamMadeOfACall has a team send connections to another port, which a program of
// the cluster denies, in both orders.
func TestTheClusterDecidesAboutWhatATeamMadeOfACall(t *testing.T) {
	need.Kernel(t)
	for _, first := range []string{"deny_4343", "rewrite_4242"} {
		t.Run(first+" first", func(t *testing.T) {
			w, r := newWorld(t), newRuntime(t)
			pod := r.start("team-a", "web", "app", nil).onLoopback()
			a, _ := w.startOn(r)
			team := w.ofTeam("team-a", "sockets", "rewrite_4242", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}})
			cluster := w.ofTeam("", "sockets", "deny_4343", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}})
			cluster.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "deny-4343"}
			if first == "deny_4343" {
				must(t, w.accept(a, cluster))
			}
			must(t, w.accept(a, team))
			must(t, w.accept(a, cluster))
			for port, want := range map[string]bool{"connect:4242": false, "connect:4343": false, "connect:4241": true} {
				if pod.task.Can(port) != want {
					t.Errorf("the pod can %s: %v", port, !want)
				}
			}
		})
	}
}

// TestATeamDecidesNothingOnTheNodesNetwork has a pod share the network of the node.
func TestATeamDecidesNothingOnTheNodesNetwork(t *testing.T) {
	need.Kernel(t)
	w, r := newWorld(t), newRuntime(t)
	pod := r.start("team-a", "web", "app", nil).onLoopback()
	pod.Pod.HostNetwork = true
	r.tell(func() { r.all[pod.ID] = pod.Container }, pod.Pod)
	a, _ := w.startOn(r)
	for _, hook := range []string{"cgroup/connect4", "cgroup/getsockopt"} {
		program := map[string]string{"cgroup/connect4": "deny_all", "cgroup/getsockopt": "forge_peer"}[hook]
		p := w.ofTeam("team-a", "sockets", program, v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}})
		must(t, w.accept(a, p))
		w.hasLinks(a, p.UID, 0)
	}
	if !pod.task.Can("connect") {
		t.Error("a team decides about the node's network")
	}
}

// TestATeamGivesItsPodsNoPort has programs let tasks without capabilities bind ports below 1024: by a number in the
// program, which the gate would deny, and by one that only the kernel knows.
func TestATeamGivesItsPodsNoPort(t *testing.T) {
	need.Kernel(t)
	for _, program := range []string{"low_port", "low_port_by_variable"} {
		for kind, want := range map[string]bool{v1alpha1.KindBpfApplication: false, v1alpha1.KindClusterBpfApplication: true} {
			t.Run(program+" of a "+kind, func(t *testing.T) {
				w, r := newWorld(t), newRuntime(t)
				pod := r.start("team-a", "web", "app", nil).onLoopback()
				a, _ := w.startOn(r)
				p := w.ofTeam("team-a", "lifts", program, v1alpha1.Attachment{Hook: "cgroup/bind4", Pods: &v1alpha1.Pods{}})
				if kind == v1alpha1.KindClusterBpfApplication {
					p.Application = v1alpha1.Identity{Kind: kind, Name: "lifts"}
				}
				must(t, w.accept(a, p))
				w.hasLinks(a, p.UID, 1)
				if pod.task.Can("bind:81") != want || !pod.task.Can("bind:8181") {
					t.Errorf("the pod binds port 81: %v, port 8181: %v", pod.task.Can("bind:81"), pod.task.Can("bind:8181"))
				}
			})
		}
	}
}
