package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/module"
)

// pins is where the agent keeps what it loaded.
const pins = "/sys/fs/bpf/skep"

// TestAUserInstallsSkep is one story: each chapter goes on where the one before
// ended.
func TestAUserInstallsSkep(t *testing.T) {
	if os.Getenv(stage) != stageTest {
		t.Skip("SKIPPED: a whole cluster is for make test-e2e")
	}
	n := newNode(t)
	n.home()
	for _, chapter := range []struct {
		says string
		do   func(*node)
	}{
		{"the tutorial's commands say what the tutorial shows", (*node).tutorial},
		{"packets are counted in the kernel", (*node).counting},
		{"both controllers bring what the node answers", (*node).answering},
		{"an agent goes and comes back to what runs", (*node).agentGoes},
		{"the controller that leads is killed", (*node).leaderDies},
		{"an editor of a namespace runs what is signed, there", (*node).edits},
		{"a namespace goes and takes its application along", (*node).namespaceGoes},
		{"the namespace of Skep goes and takes nothing along", (*node).namespaceOfSkepGoes},
		{"the node starts anew, with no controller there", (*node).rebooting},
		{"the chart is upgraded under running programs", (*node).upgrading},
		{"a registry is known by an authority the chart is told of", (*node).elsewhere},
		{"programs of every kind attach from the agent's container", (*node).attaching},
		{"teams trace their own pods", (*node).teams},
		{"programs reach their own pods in each situation", (*node).situations},
		{"pods read the maps that they were granted", (*node).readMaps},
		{"the chart goes and takes all programs with it", (*node).uninstalling},
		{"a release is verified and installed, and the next one takes its place", (*node).releasing},
	} {
		done := t.Run(chapter.says, func(t *testing.T) {
			in := *n
			in.t = t
			chapter.do(&in)
		})
		if !done {
			t.FailNow()
		}
	}
}

// home gives the user a home and a shell with the tools he needs.
func (n *node) home() {
	n.t.Helper()
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		n.t.Setenv(name, strings.TrimSpace(n.run("go", "env", name)))
	}
	n.t.Setenv("HOME", n.folder("home"))
	if err := os.Symlink(os.Getenv(helm), n.path("bin/helm")); err != nil {
		n.t.Fatal(err)
	}
	n.t.Setenv("PATH", n.path("bin")+":"+os.Getenv(binaries)+":"+os.Getenv("PATH"))
}

// tutorial does the whole page but for its end.
func (n *node) tutorial() { n.walk(tutorialPage, "## 1. Install", "## 5. Uninstall") }

// must runs kubectl, which is to succeed.
func (n *node) must(args ...string) string {
	n.t.Helper()
	out, err := n.kubectl(args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// field is one of an object's, by JSONPath.
func (n *node) field(path string, object ...string) string {
	n.t.Helper()
	return n.must(append([]string{"get", "--output=jsonpath=" + path}, object...)...)
}

// pinned is the path of a pin of an application's, of which there is one.
func (n *node) pinned(name string, application ...string) (string, error) {
	uid := n.field("{.metadata.uid}", application...)
	found, err := filepath.Glob(filepath.Join(pins, uid, "[0-9a-f]*", name))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%v has %d pins %s, want one", application, len(found), name)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// counter is the application that the tutorial installs.
var counter = []string{"clusterbpfapplication", "counter"}

// program is the kernel's id of an application's program.
func (n *node) program(application ...string) ebpf.ProgramID {
	n.t.Helper()
	id, err := n.programNow(application...)
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

// still holds the counter's program to be the one it was.
func (n *node) still(id ebpf.ProgramID) {
	n.t.Helper()
	if now := n.program(counter...); now != id {
		n.t.Errorf("program %d runs in place of %d", now, id)
	}
}

// programNow is program, which during an update cannot be told.
func (n *node) programNow(application ...string) (ebpf.ProgramID, error) {
	path, err := n.pinned("p-count_packets", application...)
	if err != nil {
		return 0, err
	}
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// counted is what an application's program counted.
func (n *node) counted(application ...string) uint64 {
	n.t.Helper()
	path, err := n.pinned("m-counts", application...)
	if err != nil {
		n.t.Fatal(err)
	}
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer m.Close()
	var each []uint64
	if err := m.Lookup(uint32(0), &each); err != nil {
		n.t.Fatal(err)
	}
	var sum uint64
	for _, one := range each {
		sum += one
	}
	return sum
}

// packets are how many the other machine sends at a time.
const packets = 200

// sees holds a program to count every packet that comes in.
func (n *node) sees(application ...string) {
	n.t.Helper()
	before := n.counted(application...)
	n.send(packets)
	if got := n.counted(application...) - before; got < packets {
		n.t.Errorf("%v counted %d of %d packets", application, got, packets)
	}
}

// send has the other machine send packets.
func (n *node) send(count int) {
	n.t.Helper()
	n.run("ip", "netns", "exec", "outside", "bash", "-c", fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo >/dev/udp/%s/9; done", count, address))
}

func (n *node) counting() { n.sees(counter...) }

// answering asks for attachments again and again. Each request is for the controller to which the Service leads the agent next, and the
// API server asks one of the two.
func (n *node) answering() {
	n.must(namespaced("rollout", "status", "deployment/skep-controller", "--timeout=2m")...)
	for range 12 {
		if out := n.must("get", "clusterbpfattachments"); strings.Contains(out, "Warning") || !strings.Contains(out, "count_packets") {
			n.t.Fatalf("attachments are\n%s", out)
		}
	}
	if out := n.must("describe", "cbpfview", "counter"); !strings.Contains(out, "count_packets") || strings.Contains(out, "Left Out") {
		n.t.Fatalf("a description is\n%s", out)
	}
}

// namespaced puts the namespace of Skep's own Pods before the arguments.
func namespaced(args ...string) []string {
	return append([]string{"--namespace=skep-system"}, args...)
}

// ready waits for an application, and for its newest generation.
func (n *node) ready(application ...string) {
	n.t.Helper()
	n.until(strings.Join(application, " "), func() error {
		out, err := n.kubectl(append([]string{"get", "--output=jsonpath={.metadata.generation} {.status.observedGeneration} " +
			`{.status.conditions[?(@.type=="Ready")].status}`}, application...)...)
		parts := strings.Fields(out)
		if err != nil || len(parts) != 3 || parts[0] != parts[1] || parts[2] != "True" {
			return fmt.Errorf("it is %q: %w", out, err)
		}
		return nil
	})
}

// agentReady waits for the agent of a Pod other than the one given.
func (n *node) agentReady(before string) {
	n.t.Helper()
	n.until("an agent", func() error {
		out, err := n.kubectl(namespaced("get", "pods", "--selector=app.kubernetes.io/component=agent",
			`--output=jsonpath={.items[*].metadata.name} {.items[*].status.containerStatuses[0].ready}`)...)
		parts := strings.Fields(out)
		if err != nil || len(parts) != 2 || parts[0] == before || parts[1] != "true" {
			return fmt.Errorf("they are %q: %w", out, err)
		}
		return nil
	})
}

// agent is the name of the agent's Pod.
func (n *node) agent() string {
	n.t.Helper()
	return n.field("{.items[0].metadata.name}", namespaced("pods", "--selector=app.kubernetes.io/component=agent")...)
}

func (n *node) agentGoes() {
	before, id := n.agent(), n.program(counter...)
	n.must(namespaced("delete", "pod", before)...)
	n.sees(counter...)
	n.agentReady(before)
	n.ready(counter...)
	n.still(id)
	n.sees(counter...)
}

func (n *node) leaderDies() {
	holder := n.field("{.spec.holderIdentity}", namespaced("lease", "skep-controller")...)
	leader, _, _ := strings.Cut(holder, "_")
	if killed := n.kill("skep-controller", "HOSTNAME="+leader); killed != 1 {
		n.t.Fatalf("%d processes are the leader %s", killed, leader)
	}
	id, seen := n.program(counter...), n.counted(counter...)
	n.sets(`{"sampling":1}`)
	n.replaced(id)
	if now := n.counted(counter...); now < seen {
		n.t.Errorf("it counted %d before and %d now", seen, now)
	}
	n.sees(counter...)
}

// sets defines the counter anew, with these variables. A replica of the webhook
// that is dead is asked until its Pod is known not to be ready, and a connection
// that went with its Pod takes the API server ten seconds to give up.
func (n *node) sets(variables string) {
	n.t.Helper()
	n.until("the webhook to be reached", func() error {
		out, err := n.kubectl("patch", counter[0], counter[1], "--type=merge", "--patch", `{"spec":{"variables":`+variables+`}}`)
		if err != nil && !strings.Contains(out, "failed calling webhook") {
			n.t.Fatal(err)
		}
		return err
	})
}

// replaced waits for a newer version of the counter to run alone.
func (n *node) replaced(old ebpf.ProgramID) {
	n.t.Helper()
	n.until("the new version alone", func() error {
		now, err := n.programNow(counter...)
		if err == nil && now == old {
			err = errors.New("the old one runs")
		}
		return err
	})
	n.ready(counter...)
}

// kill kills the processes of a name that have something in their environment,
// and returns how many there were.
func (n *node) kill(name, environment string) int {
	n.t.Helper()
	pids := n.processes(name, environment)
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			n.t.Fatal(err)
		}
	}
	return len(pids)
}

// processes are those of a name that have something in their environment.
func (n *node) processes(name, environment string) []int {
	n.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		n.t.Fatal(err)
	}
	var pids []int
	for _, dir := range found {
		arguments, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		body, _ := os.ReadFile(filepath.Join(dir, "environ"))
		command, _, _ := strings.Cut(string(arguments), "\x00")
		if filepath.Base(command) != name || !strings.Contains("\x00"+string(body), "\x00"+environment) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			n.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// ours is the application that the editor leaves in the namespace.
var ours = []string{"--namespace=team", "bpfapplication", "ours"}

func (n *node) edits() {
	n.must("create", "namespace", "team")
	n.must("create", "rolebinding", "dev", "--namespace=team", "--clusterrole=edit", "--user=dev")
	dev := []string{"--kubeconfig=" + n.path("pki/dev.kubeconfig"), "--namespace=team", "apply", "--filename"}
	page, err := os.ReadFile(n.path("home/cluster/counter.yaml"))
	if err != nil {
		n.t.Fatal(err)
	}
	namespaced := strings.NewReplacer("ClusterBpfApplication", "BpfApplication", "name: counter", "name: mine", "primary: true",
		"names: [eth0]").Replace(string(page))
	n.file("mine.yaml", namespaced)
	n.file("ours.yaml", strings.ReplaceAll(namespaced, "name: mine", "name: ours"))
	n.file("unsigned.yaml", strings.NewReplacer("counter:v1", "firewall:v1", "count_packets", "drop_port", "name: mine", "name: theirs").Replace(namespaced))
	if _, err := n.kubectl(append(dev, n.path("mine.yaml"))...); err == nil || !strings.Contains(err.Error(), "baseline/node-interfaces") {
		n.t.Errorf("the node's interface, which nobody granted: %v", err)
	}
	n.grants()
	n.until("the interface to be granted", func() error {
		_, err := n.kubectl(append(dev, n.path("mine.yaml")+","+n.path("ours.yaml"))...)
		return err
	})
	mine := []string{"--namespace=team", "bpfapplication", "mine"}
	n.ready(mine...)
	n.ready(ours...)
	n.sees(mine...)
	n.sees(counter...)
	for what, c := range map[string]struct{ file, says string }{
		"what nobody signed":          {n.path("unsigned.yaml"), "no known signer signed registry.example.com/team/firewall"},
		"what is for the cluster":     {n.path("home/cluster/counter.yaml"), `cannot`},
		"a signer":                    {n.path("home/cluster/release.signer.yaml"), `cannot`},
		"an application of elsewhere": {n.path("mine.yaml"), `cannot`},
	} {
		args := append([]string{}, dev...)
		if what == "an application of elsewhere" {
			args[1] = "--namespace=default"
		}
		if _, err := n.kubectl(append(args, c.file)...); err == nil || !strings.Contains(err.Error(), c.says) {
			n.t.Errorf("%s: %v", what, err)
		}
	}
	n.must("--kubeconfig="+n.path("pki/dev.kubeconfig"), "--namespace=team", "delete", "bpfapplication", "mine")
	n.until("its program to go", func() error {
		if found, _ := filepath.Glob(pins + "/*/*/p-count_packets"); len(found) != 2 {
			return fmt.Errorf("%d are there", len(found))
		}
		return nil
	})
	n.sees(counter...)
}

// grants has the admin give the node's interface to the editor's namespace.
func (n *node) grants() {
	n.t.Helper()
	n.file("baseline.yaml", "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfPolicy\nmetadata: {name: baseline}\nspec:\n"+
		"  profile: baseline\n  parameters: {nodeInterfaces: {team: [eth0]}}\n")
	n.until("the policy to be compiled in time", func() error {
		_, err := n.kubectl("apply", "--filename", n.path("baseline.yaml"))
		return err
	})
}

// rebooting takes from the node what a reboot takes, and starts it again.
func (n *node) rebooting() {
	before := n.program(counter...)
	n.must(namespaced("scale", "deployment/skep-controller", "--replicas=0")...)
	n.must(namespaced("wait", "--for=delete", "pod", "--selector=app.kubernetes.io/component=controller", "--timeout=2m")...)
	n.stop("kubelet")
	n.stop("containerd")
	n.killContainers()
	// With its file system the kernel loses its last hold on what was pinned.
	n.unmount("/sys/fs/bpf", "/run/containerd/", "/run/netns/cni-", "/var/lib/kubelet/")
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		n.t.Fatal(err)
	}
	n.until("the kernel to forget", func() error {
		if p, err := ebpf.NewProgramFromID(before); err == nil {
			return errors.Join(p.Close(), errors.New("it has the program still"))
		}
		return nil
	})
	if err := os.RemoveAll("/run/containerd"); err != nil {
		n.t.Fatal(err)
	}
	n.boot()
	n.until("the program to come back", func() error {
		_, err := n.pinned("m-counts", counter...)
		return err
	})
	n.until("packets to be counted", func() error {
		if out := n.run("ip", "link", "show", "eth0"); !strings.Contains(out, "xdp") {
			return errors.New(out)
		}
		return nil
	})
	n.sees(counter...)
	n.must(namespaced("scale", "deployment/skep-controller", "--replicas=2")...)
	n.must(namespaced("rollout", "status", "deployment/skep-controller", "--timeout=2m")...)
	n.ready(counter...)
}

// unmount takes away whatever is mounted at paths that begin so.
func (n *node) unmount(paths ...string) {
	n.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		n.t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(mounts)))
	for _, line := range slices.Backward(lines) {
		at := strings.Fields(line)[1]
		if !slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(at, path) }) {
			continue
		}
		// Where mounts propagate, one goes with another.
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			n.t.Fatalf("unmount %s: %v", at, err)
		}
	}
}

// killContainers kills what runs in the node's cgroup, and containerd's shims.
func (n *node) killContainers() {
	n.t.Helper()
	roots, err := hierarchies()
	if err != nil {
		n.t.Fatal(err)
	}
	n.kill("containerd-shim-runc-v2", "")
	n.until("containers to end", func() error {
		left := 0
		for _, root := range roots {
			lists, _ := filepath.Glob(filepath.Join(root, cgroup))
			for _, dir := range lists {
				left += killBelow(dir)
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes are left", left)
		}
		return nil
	})
}

// killBelow kills every process of a cgroup and of those below it, and returns
// how many there were.
func killBelow(dir string) (found int) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // It went meanwhile, and its processes with it.
		}
		if d.Name() != "cgroup.procs" {
			return nil
		}
		body, _ := os.ReadFile(path)
		for line := range strings.Lines(string(body)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				_ = unix.Kill(pid, syscall.SIGKILL)
				found++
			}
		}
		return nil
	})
	return found
}

// helm runs helm, which is to succeed.
func (n *node) helm(args ...string) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), "helm", namespaced(args...)...)
	cmd.Dir = module.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (n *node) upgrading() {
	before, id := n.agent(), n.program(counter...)
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=agent.capabilities={BPF,NET_ADMIN,PERFMON}", "--set=controller.logFormat=text",
		"--set=registries.allowed={registry.example.com,private.example.com:8443}", "--wait")
	n.agentReady(before)
	n.ready(counter...)
	n.still(id)
	n.sees(counter...)
	// Fewer rights are enough to load what is new.
	n.sets(`{"sampling":1}`)
	n.replaced(id)
	n.sees(counter...)
}

// elsewhere has an application come from a registry whose authority the images
// of Skep do not know.
func (n *node) elsewhere() {
	const repository = "private.example.com:8443/team/counter:v1"
	other := newAuthority(n.t)
	n.serve(other, "private.example.com", "8443")
	// The user's machine has known both since it made the images.
	known, err := os.ReadFile(n.path("pki/ca.crt"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.over(authorities, string(known)+other.certificate)
	n.file("other.crt", other.certificate)
	n.run("skep", "image", "build", "-f", n.path("home/cluster/xdp_counter.bpf.o"), repository)
	n.run("skep", "sign", "--key", n.path("home/cluster/release.key"), repository)
	n.must(append([]string{"patch"}, append(counter, "--type=merge", "--patch", `{"spec":{"bytecode":{"image":"`+repository+`"}}}`)...)...)
	n.until("the registry not to be known", func() error {
		said := n.field(`{.status.conditions[?(@.type=="Verified")].message}`, counter...)
		// Why it is not reached is in the controller's log alone.
		if !strings.Contains(said, "registry private.example.com:8443 could not be reached") {
			return errors.New(said)
		}
		return nil
	})
	n.must(namespaced("create", "configmap", "authorities", "--from-file="+n.path("other.crt"))...)
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=registries.authorities=authorities", "--wait")
	n.ready(counter...)
	n.sees(counter...)
}

func (n *node) uninstalling() {
	n.weigh()
	id := n.program(counter...)
	n.walk(tutorialPage, "## 5. Uninstall", "## On kind")
	if p, err := ebpf.NewProgramFromID(id); err == nil {
		_ = p.Close()
		n.t.Errorf("program %d is still there", id)
	}
	if left, _ := filepath.Glob(pins + "/*"); len(left) > 0 {
		n.t.Errorf("these are left: %v", left)
	}
	if out := n.run("ip", "link", "show", "eth0"); strings.Contains(out, "xdp") {
		n.t.Error(out)
	}
	n.until("all of Skep's to be gone", func() error {
		out, err := n.kubectl("api-resources", "--api-group=skep.dev", "--output=name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
}

// weigh tells how much memory each process of the node's had at most.
func (n *node) weigh() {
	found, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range found {
		body, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		about := map[string]string{}
		for line := range strings.Lines(string(body)) {
			key, value, _ := strings.Cut(line, ":")
			about[key] = strings.TrimSpace(value)
		}
		n.t.Logf("%s: at most %s", about["Name"], about["VmHWM"])
	}
}
