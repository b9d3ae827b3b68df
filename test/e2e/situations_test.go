package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// TestEachSituationOfAPod is a chapter of TestAUserInstallsSkep, and runs alone, too.
func TestEachSituationOfAPod(t *testing.T) {
	if os.Getenv(stage) != stageTest {
		t.Skip("SKIPPED: a whole cluster is for make test-e2e")
	}
	if exists(filepath.Join(state, "pki")) {
		t.Skip("SKIPPED: TestAUserInstallsSkep has had it as a chapter")
	}
	n := newNode(t)
	n.home()
	n.tutorial()
	n.installForPods()
	n.situations()
}

// situation is two namespaces: own traces its own pods, and other is traced by the cluster.
type situation struct{ own, other *team }

// ofOwn are the programs of own, in order, and byTask those that reach the tasks of a pod wherever its network is.
const ofOwn, byTask, ofCluster = "calls connects packets probes syscalls", "calls probes syscalls", "d-connects d-packets d-syscalls"

// situations holds, in each situation that kubelet and runtime bring pods into, that programs reach their own pods and no others.
func (n *node) situations() {
	const d = "pods: {namespaceSelector: {matchLabels: {team: d}}}"
	n.must("create", "namespace", "team-c")
	own, other := n.newTeam("c"), n.team("d")
	other.rests("d")
	own.traces("BpfApplication", ofTeamA())
	other.traces("ClusterBpfApplication", []traced{
		{"d-connects", "cgroup_connect4", "cgroup_connect4", []string{d}},
		{"d-packets", "tcx_drop_port", "drop_port", []string{d}},
		{"d-syscalls", "tracepoint_count", "tracepoint_count", []string{"hook: tracepoint, " + d}},
	})
	for _, row := range []struct {
		says string
		do   func(situation)
	}{
		{"a pod on the node's network", situation.onTheNodesNetwork},
		{"static pods", situation.staticPods},
		{"labels that change", situation.labels},
		{"an agent that hangs or ends while pods start", situation.agentHangs},
		{"a runtime that hangs, and ends while pods start", situation.runtimeRestarts},
		{"a namespace that goes and comes back", situation.namespaceReturns},
	} {
		done := n.t.Run(row.says, func(t *testing.T) {
			began, in, a, b := time.Now(), *n, *own, *other
			in.t, a.node, b.node = t, &in, &in
			row.do(situation{&a, &b})
			t.Logf("took %v", time.Since(began).Round(time.Second))
		})
		if !done {
			n.t.FailNow()
		}
	}
	n.must("delete", "namespace", "team-c", "team-d", "--wait=false")
}

// rests has the container with a tag rest, once it listens.
func (n *node) rests(tag string) {
	n.t.Helper()
	n.until("container "+tag, func() error { return n.ask(tag, 0) })
}

// starting starts a pod, and waits until it rests.
func (n *node) starting(namespace, tag, metadata, spec string) {
	n.t.Helper()
	n.runs(tag, podOf(namespace, tag, tag, metadata, spec))
	n.rests(tag)
}

// reaching are the programs that count what the container with a tag does, in order. All containers rest.
func (c *team) reaching(tag string) string {
	c.t.Helper()
	before := c.seen()
	if err := c.ask(tag, fewest); err != nil {
		c.t.Fatal(err)
	}
	c.sendTo(c.addressOf(c.worker(tag)), 1)
	var names []string
	for name, now := range c.seen() {
		if now > before[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// reaches waits until these programs, and no others, reach the container with a tag.
func (c *team) reaches(tag, want string) {
	c.t.Helper()
	c.until("programs of "+c.namespace()+" in "+tag, func() error {
		if is := c.reaching(tag); is != want {
			return fmt.Errorf("%q reach it, want %q", is, want)
		}
		return nil
	})
}

// isReached fails unless these programs, and no others, reach the container with a tag now.
func (c *team) isReached(tag, want string) {
	c.t.Helper()
	if is := c.reaching(tag); is != want {
		c.t.Errorf("%q of %s reach %s, want %q", is, c.namespace(), tag, want)
	}
}

// deletes deletes pods of a namespace.
func (n *node) deletes(namespace string, pods ...string) {
	n.t.Helper()
	n.must(append([]string{"delete", "pod", "--namespace=" + namespace, "--timeout=1m"}, pods...)...)
}

// onTheNodesNetwork: programs reach the tasks of such a pod, and neither the node's packets nor what is of its cgroup.
func (s situation) onTheNodesNetwork() {
	s.own.starting("team-c", "host", "labels: {app: host}", "hostNetwork: true")
	s.own.reaches("host", byTask)
	s.other.isReached("host", "")
	for _, name := range []string{"connects", "packets"} {
		s.own.until("the status of "+name+" to say why", func() error {
			if said := s.own.field("{.status}", s.own.applications[name]...); !strings.Contains(said, "on the node's network") {
				return errors.New(said)
			}
			return nil
		})
	}
	s.own.deletes("team-c", "host")
	s.own.starts()
	s.own.rests("c")
	s.own.reaches("c", ofOwn)
}

// staticPods: a static pod is of the namespace that its file names, which the node's admin wrote, whatever becomes of its mirror.
func (s situation) staticPods() {
	static := func(namespace, tag, spec string) (path string) {
		s.own.file("manifests/"+tag+".yaml", podOf(namespace, tag, tag, "labels: {app: static}", spec))
		s.own.rests(tag)
		return s.own.path("manifests/" + tag + ".yaml")
	}
	// No namespace has that name, so that the last one has no mirror.
	files := []string{static("kube-system", "static-kube", ""), static("team-c", "static-host", "hostNetwork: true"), static("absent", "static-absent", "")}
	files = append(files, static("team-c", "static-own", ""))
	s.own.reaches("static-own", ofOwn)
	s.own.isReached("static-host", byTask)
	for _, tag := range []string{"static-kube", "static-absent"} {
		s.own.isReached(tag, "")
		s.other.isReached(tag, "")
	}
	mirror := []string{"pod", "static-own-node1", "--namespace=team-c"}
	s.own.until("the mirror", func() error {
		_, err := s.own.kubectl(append([]string{"get"}, mirror...)...)
		return err
	})
	uid, config := s.own.field("{.metadata.uid}", mirror...), s.own.field(`{.metadata.annotations.kubernetes\.io/config\.hash}`, mirror...)
	if uid == config || config == "" {
		s.own.t.Errorf("the mirror's UID is %q, and the static pod's %q", uid, config)
	}
	pid := s.own.worker("static-own")
	s.own.must(append([]string{"delete", "--grace-period=0", "--force"}, mirror...)...)
	s.own.until("another mirror", func() error {
		if now, err := s.own.kubectl(append([]string{"get", "--output=jsonpath={.metadata.uid}"}, mirror...)...); err != nil || now == uid {
			return fmt.Errorf("it is %q: %w", now, err)
		}
		return nil
	})
	if now := s.own.worker("static-own"); now != pid {
		s.own.t.Errorf("the static pod is process %d, and was %d", now, pid)
	}
	s.own.isReached("static-own", ofOwn)
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			s.own.t.Fatal(err)
		}
	}
	s.own.until("static pods to end", func() error {
		if left := s.own.processes("worker", "TEAM=static-"); len(left) > 0 {
			return fmt.Errorf("%d are there", len(left))
		}
		return nil
	})
}

// labels: those of a pod are those of its start, and no label of a pod leads out of what its namespace chooses.
func (s situation) labels() {
	labelled := s.own.newTeam("c")
	labelled.traces("BpfApplication", []traced{{"labelled", "tracepoint_count", "tracepoint_count",
		[]string{"hook: tracepoint, pods: {selector: {matchLabels: {traced: \"yes\"}}}"}}})
	s.own.starting("team-c", "labelled", "labels: {traced: \"yes\"}", "")
	labelled.reaches("labelled", "labelled")
	labelled.isReached("c", "")
	s.own.must("label", "pod", "labelled", "--namespace=team-c", "traced-")
	s.own.must("label", "pod", "worker", "--namespace=team-c", "traced=yes")
	s.own.must("label", "pod", "worker", "--namespace=team-d", "app-", "team=c")
	// When the agent has seen another pod, it would have seen these labels.
	s.own.starting("team-c", "labelled-2", "labels: {traced: \"yes\"}", "")
	labelled.reaches("labelled-2", "labelled")
	labelled.isReached("labelled", "labelled")
	labelled.isReached("c", "")
	s.other.isReached("d", ofCluster)
	s.own.deletes("team-c", "labelled", "labelled-2")
	s.own.starting("team-c", "unlabelled", "labels: {traced: \"no\"}", "")
	s.own.reaches("unlabelled", ofOwn)
	labelled.isReached("unlabelled", "")
	s.other.starting("team-d", "d-unlabelled", "labels: {team: c, kubernetes.io/metadata.name: team-c, io.kubernetes.pod.namespace: team-c}", "")
	s.other.reaches("d-unlabelled", ofCluster)
	s.own.isReached("d-unlabelled", "")
	s.other.follows("d-packets", "team")
	s.other.reaches("d", ofCluster)
	s.own.must("delete", labelled.applications["labelled"][0], "labelled", "--namespace=team-c")
	s.own.deletes("team-c", "unlabelled")
	s.own.deletes("team-d", "d-unlabelled")
}

// agentHangs: containers start whether or not the agent answers the runtime, and have their programs when it does.
func (s situation) agentHangs() {
	agents := s.own.processes("skep-agent", "")
	if len(agents) != 1 {
		s.own.t.Fatalf("%d processes are the agent", len(agents))
	}
	links, announced := s.own.links(), s.own.announced()
	signals(s.own.t, agents[0], unix.SIGSTOP)
	began := time.Now()
	s.own.starting("team-c", "hung", "labels: {app: hung}", "")
	s.other.starting("team-d", "d-hung", "labels: {app: hung}", "")
	s.own.t.Logf("two containers started in %v while the agent hung", time.Since(began).Round(time.Millisecond))
	s.own.isReached("c", ofOwn)
	s.own.isReached("d-hung", "")
	s.other.isReached("hung", "")
	signals(s.own.t, agents[0], unix.SIGCONT)
	s.own.reaches("hung", ofOwn)
	s.other.reaches("d-hung", ofCluster)
	s.own.isReached("d-hung", "")
	s.own.deletes("team-c", "hung")
	s.other.deletes("team-d", "d-hung")
	s.own.until("the runtime to ask the agent again", func() error {
		if now := s.own.announced(); exists(nriSocket) && now <= announced {
			return fmt.Errorf("it registered %d times, as before", now)
		}
		return nil
	})

	if n := s.own.kill("skep-agent", ""); n != 1 {
		s.own.t.Fatalf("%d processes are the agent", n)
	}
	s.own.starting("team-c", "killed", "labels: {app: killed}", "")
	s.own.isReached("c", ofOwn)
	s.own.reaches("killed", ofOwn)
	s.other.isReached("killed", "")
	s.own.deletes("team-c", "killed")
	s.own.until("links of pods that ended to go", func() error {
		if now := s.own.links(); now != links {
			return fmt.Errorf("these are there:\n%s\nwant\n%s", now, links)
		}
		return nil
	})
	s.own.seesFirstAgain()
}

// announced is how often the agent has registered with the runtime to be asked before containers start.
func (c *team) announced() int {
	c.t.Helper()
	return strings.Count(c.must(namespaced("logs", "daemonset/skep-agent")...), "the container runtime announces containers")
}

// seesFirstAgain waits until all is counted again that a pod does first, by a runtime that asks the agent before.
func (c *team) seesFirstAgain() {
	c.t.Helper()
	if !exists(nriSocket) {
		return
	}
	c.until("the first instruction of a pod to be counted again", func() error {
		before := c.seen()
		c.live(0, 1)
		for name, want := range map[string]uint64{"calls": 1, "connects": 1, "probes": fewest, "syscalls": 1} {
			if counted := c.seen()[name] - before[name]; counted != want {
				return fmt.Errorf("%s counted %d events of %d", name, counted, want)
			}
		}
		return nil
	})
}

func signals(t *testing.T, pid int, which unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, which); err != nil {
		t.Fatal(err)
	}
}

// runtimeRestarts: programs stay while the runtime does not answer, and what others do there waits for nothing. What starts
// when the runtime ends is reached by the programs of its namespace alone.
func (s situation) runtimeRestarts() {
	own := s.own
	revocable := own.revocable()
	links, others := own.links(), s.other.links()
	signals(own.t, own.running["containerd"].Process.Pid, unix.SIGSTOP)
	own.isReached("c", ofOwn)
	s.other.isReached("d", ofCluster)
	began := time.Now()
	own.must("patch", "bpfsigner", "thief", "--type=merge", "--patch", `{"spec":{"revoked":true}}`)
	own.until("the revocation", func() error {
		if left, _ := filepath.Glob(filepath.Join(pins, revocable, "+links", "*")); len(left) > 0 {
			return fmt.Errorf("%v are there", left)
		}
		return nil
	})
	own.t.Logf("the revocation took %v while the runtime hung", time.Since(began).Round(time.Millisecond))
	own.file("pods/node.yaml", definition("ClusterBpfApplication", traced{"node", "tracepoint_count", "tracepoint_count", []string{"hook: tracepoint"}}, ""))
	own.must("apply", "--filename", own.path("pods/node.yaml"))
	own.ready("clusterbpfapplication", "node")
	signals(own.t, own.running["containerd"].Process.Pid, unix.SIGCONT)

	made := own.sandboxes()
	own.file("pods/making.yaml", podOf("team-c", "making", "making", "labels: {app: making}", "")+"---\n"+
		podOf("team-d", "d-making", "d-making", "labels: {app: making}", "")+"---\n"+podOf("team-c", "making-2", "making-2", "labels: {app: making}", ""))
	own.must("apply", "--filename", own.path("pods/making.yaml"))
	if err := untilEach(time.Millisecond, patience, func() error {
		if now := own.sandboxes(); now <= made {
			return fmt.Errorf("%d sandboxes, as before", now)
		}
		return nil
	}); err != nil {
		own.t.Fatal(err)
	}
	own.dies("containerd")
	own.isReached("c", ofOwn)
	s.other.isReached("d", ofCluster)
	own.runtime()
	for _, tag := range []string{"making", "making-2", "d-making"} {
		own.rests(tag)
	}
	own.reaches("making", ofOwn)
	own.reaches("making-2", ofOwn)
	s.other.reaches("d-making", ofCluster)
	own.isReached("d-making", "")
	s.other.isReached("making", "")
	own.deletes("team-c", "making", "making-2")
	s.other.deletes("team-d", "d-making")
	own.until("links to be those of before", func() error {
		if now := own.links() + s.other.links(); now != links+others {
			return fmt.Errorf("these are there:\n%s\nwant\n%s", now, links+others)
		}
		return nil
	})
	own.must("delete", "clusterbpfapplication", "node")
}

// dies ends a process of the node at once.
func (n *node) dies(name string) {
	n.t.Helper()
	cmd := n.running[name]
	delete(n.running, name)
	if err := cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	_ = cmd.Wait()
}

// sandboxes is how many sandboxes and containers the runtime has.
func (n *node) sandboxes() int {
	found, _ := filepath.Glob("/run/containerd/io.containerd.runtime.v2.task/k8s.io/*")
	return len(found)
}

// revocable is the UID of an application of the team that another signer signed, once it runs.
func (c *team) revocable() string {
	c.t.Helper()
	c.file("pods/revoked.o", string(programs.Object("tracepoint_count")))
	c.run("skep", "key", "generate", "--output-key-prefix", c.path("pods/thief"))
	c.must("apply", "--filename", c.path("pods/thief.signer.yaml"))
	c.run("skep", "image", "build", "-f", c.path("pods/revoked.o"), imageOfObject("revoked"))
	c.run("skep", "sign", "--key", c.path("pods/thief.key"), imageOfObject("revoked"))
	one := c.newTeam(c.name)
	one.traces("BpfApplication", []traced{{"revoked", "revoked", "tracepoint_count", []string{"hook: tracepoint, pods: {}"}}})
	one.reaches(c.name, "revoked")
	return one.uid("revoked")
}

// namespaceReturns: what a namespace ran goes with it, also where its pod was deleted by force and runs on, since the kubelet is
// away. The namespace of its name that comes next has nothing of it.
func (s situation) namespaceReturns() {
	own, inE := s.own, "pods: {}"
	own.must("create", "namespace", "team-e")
	first := own.newTeam("e")
	first.traces("BpfApplication", []traced{
		{"connects", "cgroup_connect4", "cgroup_connect4", []string{inE}}, {"syscalls", "tracepoint_count", "tracepoint_count", []string{"hook: tracepoint, " + inE}},
	})
	first.starting("team-e", "e", "labels: {app: first}", "")
	first.reaches("e", "connects syscalls")
	programs, old, kubelet := first.programs(), first.pid(), own.running["kubelet"].Process.Pid
	signals(own.t, kubelet, unix.SIGSTOP)
	own.must("delete", "namespace", "team-e", "--wait=false")
	var said string
	own.until("the namespace to wait for its pod", func() error {
		if said = own.field("{.status.conditions}", "namespace", "team-e"); !strings.Contains(said, "pods") {
			return errors.New(said)
		}
		return nil
	})
	// Before Kubernetes 1.33, applications do not wait for pods.
	if strings.Contains(said, "Resource=pods") {
		first.isReached("e", "connects syscalls")
	}
	own.must("delete", "pod", "e", "--namespace=team-e", "--force", "--grace-period=0")
	own.must("wait", "--for=delete", "namespace/team-e", "--timeout=2m")
	own.until("programs of the namespace to go", func() error {
		for id := range programs {
			if p, err := ebpf.NewProgramFromID(id); err == nil {
				return errors.Join(p.Close(), fmt.Errorf("program %d is there", id))
			}
		}
		return nil
	})
	if now := own.worker("e"); now != old {
		own.t.Fatalf("the container that nobody ended is process %d, and was %d", now, old)
	}
	own.isReached("e", "")
	s.other.isReached("e", "")
	own.must("create", "namespace", "team-e")
	second := own.newTeam("e")
	second.traces("BpfApplication", []traced{{"connects", "cgroup_connect4", "cgroup_connect4", []string{inE}}})
	own.t.Logf("%q of the new namespace reach what the kubelet has not ended", second.reaching("e"))
	signals(own.t, kubelet, unix.SIGCONT)
	own.until("the kubelet to end it", func() error {
		if err := unix.Kill(old, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d runs: %w", old, err)
		}
		return nil
	})
	second.starting("team-e", "e", "labels: {app: second}", "")
	second.reaches("e", "connects")
	own.must("delete", "namespace", "team-e", "--wait=false")
}
