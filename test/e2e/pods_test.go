package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// asked is how many events of each kind a team's pod makes at a time.
const asked = 100_000

// fewest is how often the binary in the team's image passes its USDT probe that passes it least:
// what a pod does that lives once.
const fewest = 2

// TestTeamsTraceTheirOwnPods is a chapter of TestAUserInstallsSkep, and runs alone, too.
func TestTeamsTraceTheirOwnPods(t *testing.T) {
	if os.Getenv(stage) != stageTest {
		t.Skip("SKIPPED: a whole cluster is for make test-e2e")
	}
	if exists(filepath.Join(state, "pki")) {
		t.Skip("SKIPPED: TestAUserInstallsSkep has had it as a chapter")
	}
	n := newNode(t)
	n.home()
	n.tutorial()
	n.teams()
}

// traced is an application of the teams: an object of package programs, whose program attaches
// at some places in pods.
type traced struct {
	name, object, program string
	attach                []string
}

// ofTeamA are those of team-a itself, and ofTeamB those by which the cluster traces team-b.
func ofTeamA() []traced {
	return []traced{
		{"calls", "uprobe_count", "uprobe_count", []string{"pods: {}, binary: {path: /worker, symbol: main.work}"}},
		{"connects", "cgroup_connect4", "cgroup_connect4", []string{"pods: {}"}},
		{"packets", "tcx_drop_port", "drop_port", []string{"pods: {}"}},
		{"probes", "usdt_count", "usdt_count", inProbing("pods: {}")},
		{"syscalls", "tracepoint_count", "tracepoint_count", []string{"pods: {}, hook: tracepoint"}},
	}
}

func ofTeamB() []traced {
	const b = "pods: {namespaceSelector: {matchLabels: {team: b}}}"
	return []traced{
		{"b-calls", "uprobe_count", "uprobe_count", []string{b + ", binary: {path: /worker, symbol: main.work}"}},
		{"b-packets", "tcx_drop_port", "drop_port", []string{b}},
		{"b-probes", "usdt_count", "usdt_count", inProbing(b)},
	}
}

// inProbing are the USDT probes of all binaries that have them.
func inProbing(pods string) (attach []string) {
	for _, times := range []int{fewest, asked} {
		attach = append(attach, fmt.Sprintf("%s, binary: {path: /probes/%d, usdt: {provider: skep, name: work}}", pods, times))
	}
	return attach
}

// teams is two teams with pods of one name and one image, of which the first traces its own.
func (n *node) teams() {
	n.installForPods()
	a, b := n.team("a"), n.team("b")
	a.traces("BpfApplication", ofTeamA())
	b.traces("ClusterBpfApplication", ofTeamB())
	a.attached()
	b.attached()
	a.countsOwn(b)
	b.countsOwn(a)
	a.undisturbedBy(b)
	b.follows("b-packets", "team")
	for range 3 {
		a.returns()
	}
	n.denies()
	a.leaves()
	a.lives(b)
}

// The headings of the page on pods that are walked: the one the walk begins at, and the next.
const podsFrom, podsTo = "## A team traces its own pods", "## Choose pods"

// installForPods has the agent attach in pods, as the page says, after what this machine and this
// test need beside that.
func (n *node) installForPods() {
	n.t.Helper()
	cgroup2, err := hierarchy2()
	if err != nil {
		n.t.Fatal(err)
	}
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=agent.hostPaths.cgroup="+cgroup2, "--set=metrics.secure=false",
		"--set=agent.capabilities={BPF,NET_ADMIN,PERFMON}")
	n.walk(podsPage, podsFrom, podsTo)
	for _, object := range []string{"uprobe_count", "cgroup_connect4", "tcx_drop_port", "tracepoint_count", "usdt_count", "kprobe_count", "tp_poisoned"} {
		n.file("pods/"+object+".o", string(programs.Object(object)))
		n.run("skep", "image", "build", "-f", n.path("pods/"+object+".o"), imageOfObject(object))
		n.run("skep", "sign", "--key", n.path("home/cluster/release.key"), imageOfObject(object))
	}
}

// imageOfObject is where the image of an object is.
func imageOfObject(object string) string {
	return "registry.example.com/pods/" + strings.ReplaceAll(object, "_", "-") + ":v1"
}

// team is a namespace with one pod.
type team struct {
	*node
	name string
	// applications are what traces it, and counts their counters, by name.
	applications map[string][]string
	counts       map[string]*ebpf.Map
}

// team makes one, and starts its pod.
func (n *node) team(name string) *team {
	n.t.Helper()
	c := n.newTeam(name)
	n.must("create", "namespace", c.namespace())
	n.must("label", "namespace", c.namespace(), "team="+name)
	c.starts()
	return c
}

// newTeam has neither a pod nor an application.
func (n *node) newTeam(name string) *team {
	return &team{node: n, name: name, applications: map[string][]string{}, counts: map[string]*ebpf.Map{}}
}

func (c *team) namespace() string { return "team-" + c.name }

// starts starts the team's pod.
func (c *team) starts() {
	c.t.Helper()
	c.runs(c.name, podOf(c.namespace(), "worker", c.name, "labels: {app: worker}", ""))
}

// podOf is a pod in YAML that runs the worker, with more in its metadata and in its spec. Its tag is known to its process alone.
func podOf(namespace, name, tag, metadata, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, %s}\nspec:\n"+
		"  terminationGracePeriodSeconds: 1\n  automountServiceAccountToken: false\n  %s\n"+
		"  containers: [{name: worker, image: 'registry.example.com/worker:1', env: [{name: TEAM, value: %s}]}]\n", name, namespace, metadata, spec, tag)
}

// runs applies a pod, and waits until its container runs.
func (n *node) runs(tag, pod string) {
	n.t.Helper()
	file := "pods/" + tag + ".yaml"
	n.file(file, pod)
	n.until("the namespace's account", func() error {
		_, err := n.kubectl("apply", "--filename", n.path(file))
		return err
	})
	n.worker(tag)
}

// ends deletes the team's pod.
func (c *team) ends() {
	c.must("delete", "pod", "worker", "--namespace="+c.namespace(), "--timeout=1m")
}

// pid is the process of the team's container, once it runs.
func (c *team) pid() int {
	c.t.Helper()
	return c.worker(c.name)
}

// worker is the process of the container with a tag, once it runs.
func (n *node) worker(tag string) int {
	n.t.Helper()
	var found []int
	if err := untilEach(5*time.Millisecond, patience, func() error {
		if found = n.processes("worker", "TEAM="+tag+"\x00"); len(found) != 1 {
			return fmt.Errorf("%d processes", len(found))
		}
		return nil
	}); err != nil {
		n.t.Fatalf("wait for the container %s: %v", tag, err)
	}
	return found[0]
}

// traces applies what traces the team.
func (c *team) traces(kind string, all []traced) {
	c.t.Helper()
	for _, one := range all {
		file := "pods/" + one.name + ".yaml"
		c.file(file, definition(kind, one, c.namespace()))
		c.must("apply", "--filename", c.path(file))
		c.applications[one.name] = []string{strings.ToLower(kind), one.name, "--namespace=" + c.namespace()}
	}
	for _, one := range all {
		c.ready(c.applications[one.name]...)
		path, err := c.pinned("m-counts", c.applications[one.name]...)
		if err != nil {
			c.t.Fatal(err)
		}
		counts, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = counts.Close() })
		c.counts[one.name] = counts
	}
}

// definition is one in YAML. The namespace of a cluster's application is left out.
func definition(kind string, one traced, namespace string) string {
	metadata := "name: " + one.name
	if kind == "BpfApplication" {
		metadata += ", namespace: " + namespace
	}
	return fmt.Sprintf("apiVersion: skep.dev/v1alpha1\nkind: %s\nmetadata: {%s}\nspec:\n  bytecode: {image: %q}\n  programs: [{name: %s, attach: [{%s}]}]\n",
		kind, metadata, imageOfObject(one.object), one.program, strings.Join(one.attach, "}, {"))
}

// seen is what each program counted.
func (c *team) seen() map[string]uint64 {
	c.t.Helper()
	all := map[string]uint64{}
	for name, counts := range c.counts {
		var each []uint64
		if err := counts.Lookup(uint32(0), &each); err != nil {
			c.t.Fatal(err)
		}
		for _, one := range each {
			all[name] += one
		}
	}
	return all
}

// attached waits until everything that traces the team counts what its new container does, and
// returns how long after the container's start that was. The container rests afterwards.
func (c *team) attached() time.Duration {
	c.t.Helper()
	before, pid := c.seen(), c.pid()
	started := startOf(c.t, pid)
	address := c.addressOf(pid)
	if err := untilEach(5*time.Millisecond, patience, func() error {
		c.sendTo(address, 1)
		for name, now := range c.seen() {
			if now == before[name] {
				return fmt.Errorf("%s of %s counts nothing", name, c.namespace())
			}
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	took := sinceBoot(c.t) - started
	c.does(0)
	return took
}

// addressOf is the address of the network namespace of a process.
func (n *node) addressOf(pid int) string {
	n.t.Helper()
	out := n.run("nsenter", "--net=/proc/"+strconv.Itoa(pid)+"/ns/net", "ip", "-4", "-oneline", "addr", "show", "eth0")
	address, _, found := strings.Cut(strings.Fields(out)[3], "/")
	if !found {
		n.t.Fatalf("process %d has no address: %s", pid, out)
	}
	return address
}

// send sends packets to the discard port of an address.
func (n *node) sendTo(address string, packets int) {
	n.t.Helper()
	conn, err := net.Dial("udp", address+":9")
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	for range packets {
		// Nobody listens, which the next write hears of.
		_, _ = conn.Write([]byte{0})
	}
}

// does has the team's container do so much of everything.
func (c *team) does(times int) {
	c.t.Helper()
	if err := c.ask(c.name, times); err != nil {
		c.t.Fatal(err)
	}
}

// ask has the container with a tag do so much of everything. From then on it rests.
func (n *node) ask(tag string, times int) error {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.addressOf(n.worker(tag))+":7000")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(conn, times)
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || answer != "done\n" {
		return fmt.Errorf("the container %s answers %q, %w", tag, answer, err)
	}
	return nil
}

// countsOwn has the team's container do much, and receive as many packets: its own programs
// count that, and those of the other team count nothing.
func (c *team) countsOwn(other *team) {
	c.t.Helper()
	own, others := c.seen(), other.seen()
	c.does(asked)
	address := c.addressOf(c.pid())
	c.until("packets of "+c.namespace(), func() error {
		for range 100 {
			c.sendTo(address, 100)
		}
		for name, now := range c.seen() {
			if strings.HasSuffix(name, "packets") && now-own[name] < asked {
				return fmt.Errorf("%d are counted", now-own[name])
			}
		}
		return nil
	})
	for name, now := range c.seen() {
		if counted := now - own[name]; counted != asked && !strings.HasSuffix(name, "packets") {
			c.t.Errorf("%s of %s counted %d of %d events", name, c.namespace(), counted, asked)
		} else {
			c.t.Logf("%s of %s counted %d events", name, c.namespace(), counted)
		}
	}
	for name, now := range other.seen() {
		if counted := now - others[name]; counted != 0 {
			c.t.Errorf("%s of %s counted %d events of %s", name, other.namespace(), counted, c.namespace())
		}
	}
}

// undisturbedBy restarts the other team's pod, which changes nothing for this one.
func (c *team) undisturbedBy(other *team) {
	c.t.Helper()
	links, seen := c.links(), c.seen()
	other.ends()
	other.starts()
	other.attached()
	if now := c.links(); now != links {
		c.t.Errorf("%s is traced by the links %s, and by %s before another team's pod restarted", c.namespace(), now, links)
	}
	for name, now := range c.seen() {
		if now != seen[name] {
			c.t.Errorf("%s of %s counted %d events of another team's pod", name, c.namespace(), now-seen[name])
		}
	}
}

// links are the pins of the links of all that traces the team, each with its inode.
func (c *team) links() string {
	c.t.Helper()
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.applications)) {
		pinned, err := filepath.Glob(filepath.Join(pins, c.uid(name), "+links", "*"))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, path := range pinned {
			var is unix.Stat_t
			if err := unix.Lstat(path, &is); err != nil {
				c.t.Fatal(err)
			}
			fmt.Fprintf(&all, "%s %s %d\n", name, filepath.Base(path), is.Ino)
		}
	}
	return all.String()
}

func (c *team) uid(application string) string {
	c.t.Helper()
	return c.field("{.metadata.uid}", c.applications[application]...)
}

// follows takes a label off the team's namespace and puts it back: its cluster's program goes and
// comes.
func (c *team) follows(program, label string) {
	c.t.Helper()
	linked := func(want bool) func() error {
		return func() error {
			found, err := filepath.Glob(filepath.Join(pins, c.uid(program), "+links", "*"))
			if err == nil && len(found) > 0 != want {
				err = fmt.Errorf("these are there: %v", found)
			}
			return err
		}
	}
	c.until("a link for the labelled namespace", linked(true))
	c.must("label", "namespace", c.namespace(), label+"-")
	c.until("no link without the label", linked(false))
	c.must("label", "namespace", c.namespace(), label+"="+c.name)
	c.until("a link for the label that is back", linked(true))
}

// returns has the team's pod deleted and made again, and waits until it is traced.
func (c *team) returns() {
	c.t.Helper()
	c.ends()
	c.starts()
	c.t.Logf("team-%s is traced %v after its container started again", c.name, c.attached())
}

// linked are how many links of the kernel run the programs that trace the team.
func (c *team) linked() int {
	c.t.Helper()
	ours, count := c.programs(), 0
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		if info, err := links.Link.Info(); err == nil && ours[info.Program] {
			count++
		}
	}
	if err := links.Err(); err != nil {
		c.t.Fatal(err)
	}
	return count
}

// programs are the kernel's ids of the programs that trace the team.
func (c *team) programs() map[ebpf.ProgramID]bool {
	c.t.Helper()
	all := map[ebpf.ProgramID]bool{}
	for name := range c.applications {
		found, err := filepath.Glob(filepath.Join(pins, c.uid(name), "[0-9a-f]*", "p-*"))
		if err != nil || len(found) == 0 {
			c.t.Fatalf("programs of %s: %v, %v", name, found, err)
		}
		for _, path := range found {
			all[programAt(c.t, path)] = true
		}
	}
	return all
}

// programAt is the kernel's id of a pinned program.
func programAt(t *testing.T, path string) ebpf.ProgramID {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// leaves deletes the team's pod, of which nothing is left then.
func (c *team) leaves() {
	c.t.Helper()
	want := 0
	for _, one := range ofTeamA() {
		want += len(one.attach)
	}
	// The kernel may not have ended those of the container before.
	c.until("the pod to be traced by the links that it needs", func() error {
		if now := c.linked(); now != want {
			return fmt.Errorf("%s is traced by %d links, want %d", c.namespace(), now, want)
		}
		return nil
	})
	var network unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", c.pid()), &network); err != nil {
		c.t.Fatal(err)
	}
	c.ends()
	c.until("the links of the pod to go", func() error {
		if left, n := c.links(), c.linked(); left != "" || n > 0 {
			return fmt.Errorf("%d links, and the pins %s", n, left)
		}
		return nil
	})
	agents := c.processes("skep-agent", "")
	if len(agents) != 1 {
		c.t.Fatalf("%d processes are the agent", len(agents))
	}
	c.until("the network of the pod to go", func() error {
		return c.holdsNot(agents[0], network.Ino)
	})
}

// holdsNot fails where the agent has the pod's network namespace open, or something that was
// deleted.
func (c *team) holdsNot(agent int, network uint64) error {
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", agent))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("the agent has %d files: %w", len(found), err)
	}
	for _, fd := range found {
		to, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		if strings.HasSuffix(to, " (deleted)") || to == fmt.Sprintf("net:[%d]", network) {
			return fmt.Errorf("the agent has %s open", to)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", agent))
	if err == nil && strings.Contains(string(mounts), fmt.Sprintf("net:[%d]", network)) {
		err = errors.New("the network namespace is mounted for the agent")
	}
	return err
}

// denies has an editor of the team's namespace ask for more than its pods.
func (n *node) denies() {
	n.must("create", "rolebinding", "dev", "--namespace=team-a", "--clusterrole=edit", "--user=dev")
	for sentence, c := range map[string]struct{ object, program, attach, says string }{
		"pods of other namespaces": {"tracepoint_count", "tracepoint_count", "hook: tracepoint, pods: {namespaceSelector: {}}",
			"a BpfApplication reaches the Pods of its own namespace alone"},
		"interfaces of the node":           {"tcx_drop_port", "drop_port", "interfaces: {names: [eth0]}", "baseline/node-interfaces"},
		"a cgroup of the node":             {"cgroup_connect4", "cgroup_connect4", "cgroup: /", "shape/scope"},
		"a binary of the node":             {"uprobe_count", "uprobe_count", "binary: {path: /usr/bin/bash, symbol: main}", "shape/scope"},
		"packets that come in for anybody": {"kprobe_count", "kprobe_count", "hook: kprobe, pods: {}, functions: {names: [tcp_v4_rcv]}", "inspect/scope"},
		"memory of the kernel":             {"tp_poisoned", "tp_poisoned", "hook: tracepoint, pods: {}, tracepoint: syscalls/sys_enter_getpgid", "inspect/scope"},
	} {
		n.file("pods/denied.yaml", definition("BpfApplication", traced{"denied", c.object, c.program, []string{c.attach}}, "team-a"))
		dev := []string{"--kubeconfig=" + n.path("pki/dev.kubeconfig"), "--namespace=team-a"}
		n.until(sentence+" to be denied", func() error {
			_, err := n.kubectl(append(dev, "apply", "--filename", n.path("pods/denied.yaml"))...)
			if err == nil {
				n.must(append(dev, "delete", "bpfapplication", "denied")...)
				return errors.New("it is stored")
			}
			if !strings.Contains(err.Error(), c.says) {
				n.t.Errorf("%s: the answer does not name %s: %v", sentence, c.says, err)
			}
			n.t.Logf("%s: %s", sentence, strings.TrimSpace(err.Error()[strings.LastIndex(err.Error(), "denied"):]))
			return nil
		})
	}
}

// startOf is when a process started, since the boot (field 22 of /proc/PID/stat, in ticks of a
// hundredth of a second).
func startOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(body[strings.LastIndexByte(string(body), ')')+1:]))
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// sinceBoot is the time since the boot.
func sinceBoot(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
