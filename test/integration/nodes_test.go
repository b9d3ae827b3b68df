package integration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/need"
)

// machine is a node for real: a network and a mount namespace of its own, held
// by a process that does nothing else, a veth into it, a bpffs of its own, and
// skep-agent inside.
type machine struct {
	c    *cluster
	name string
	// outside is the host's end of the veth and its address, inside the node's.
	outside, hostAddress, inside string
	sandbox                      *exec.Cmd
	flags                        []string
	agent                        *exec.Cmd
	exited                       chan error
	log                          *os.File
}

// bpffsOf is where a machine mounts its bpffs, in its own mount namespace.
const bpffsOf = "/sys/fs/bpf"

// begin is serve with a signer, team-a, and so many machines.
func (c *cluster) begin(n int, change ...func(*controller.Options)) ([]*machine, func()) {
	c.t.Helper()
	served, stop := c.serve(c.t.TempDir(), change...)
	c.create(c.Signer("team-a"))
	return c.machines(command.Build(c.t, "skep-agent"), served, n), stop
}

// machines starts n nodes and an agent on each.
func (c *cluster) machines(agent string, served served, n int) []*machine {
	c.t.Helper()
	need.Program(c.t, "ip", "iproute2")
	var all []*machine
	// Another run beside this one has other names and addresses.
	own := os.Getpid() % 50 * 5
	for i := range n {
		m := &machine{
			c: c, name: fmt.Sprintf("node-%d", i), outside: fmt.Sprintf("skep%d-%d", os.Getpid()%100000, i),
			hostAddress: fmt.Sprintf("10.213.%d.1", own+i), inside: fmt.Sprintf("10.213.%d.2", own+i),
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: map[string]string{"role": "edge"}}}
		c.create(node)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := c.Status().Update(c.t.Context(), node); err != nil {
			c.t.Fatal(err)
		}
		m.hold()
		m.configure(agent, served)
		m.start()
		all = append(all, m)
	}
	return all
}

// hold makes the namespaces and the veth.
func (m *machine) hold() {
	t := m.c.t
	t.Helper()
	m.sandbox = exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c",
		"ip link set lo up && mount -t bpf -o mode=0700 bpf "+bpffsOf+" && echo held && exec cat")
	out, err := m.sandbox.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// It ends when its input does, and so with the test, however that ends.
	if _, err := m.sandbox.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := m.sandbox.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.sandbox.Process.Kill(); _ = m.sandbox.Wait() })
	if line := make([]byte, 5); true {
		if _, err := io.ReadFull(out, line); err != nil {
			t.Fatalf("make namespaces of %s: %v", m.name, err)
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: m.outside}, PeerName: "eth0", PeerNamespace: netlink.NsPid(m.sandbox.Process.Pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatalf("make veth of %s: %v", m.name, err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	address, err := netlink.ParseAddr(m.hostAddress + "/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.AddrAdd(veth, address), netlink.LinkSetUp(veth)); err != nil {
		t.Fatal(err)
	}
	m.inNode("sh", "-c", "ip address add "+m.inside+"/24 dev eth0 && ip link set eth0 up")
}

// enter is a command inside the machine.
func (m *machine) enter(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(m.sandbox.Process.Pid), "--net", "--mount", "--"}, args...)...)
}

func (m *machine) inNode(args ...string) {
	m.c.t.Helper()
	if out, err := m.enter(args...).CombinedOutput(); err != nil {
		m.c.t.Fatalf("%v on %s: %v\n%s", args, m.name, err, out)
	}
}

// forward lets the machine reach a server on the host's loopback.
func (m *machine) forward(server string) string {
	t := m.c.t
	t.Helper()
	where, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	s, err := deployment.Listen(t.Context(), m.hostAddress+":0", where.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.Address()
}

// configure writes what the agent is told.
func (m *machine) configure(binary string, served served) {
	t, dir := m.c.t, m.c.t.TempDir()
	t.Helper()
	write := func(name string, body []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sealer, err := intent.ParseKey(m.c.key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := sealer.MarshalPublic()
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(m.c.plane.Config)
	kube := clientcmdapi.NewConfig()
	kube.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://" + m.forward(config.Host), TLSServerName: "localhost", CertificateAuthorityData: config.CAData,
	}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	kube.Contexts["x"], kube.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	body, err := clientcmd.Write(*kube)
	if err != nil {
		t.Fatal(err)
	}
	m.flags = []string{binary, "--node-name", m.name, "--bpffs", bpffsOf + "/skep", "--state", filepath.Join(dir, "state"),
		"--kubeconfig", write("kubeconfig", body), "--trust", write("trust.pem", public),
		"--mirror", "https://" + m.forward(served.url), "--mirror-ca", write("ca.pem", served.authority),
		"--mirror-token", write("token", []byte(m.c.token("skep-agent", mirror.Audience))), "--tls-server-name", "example.com"}
	if m.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(m.log.Name())
			t.Logf("%s:\n%s", m.name, said)
		}
	})
}

// start runs the agent.
func (m *machine) start() {
	m.c.t.Helper()
	m.agent, m.exited = m.enter(m.flags...), make(chan error, 1)
	m.agent.Stderr = m.log
	// A proxy of the machine's does not know the test's networks.
	m.agent.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	if err := m.agent.Start(); err != nil {
		m.c.t.Fatal(err)
	}
	agent, exited := m.agent, m.exited
	go func() { exited <- agent.Wait() }()
	m.c.t.Cleanup(func() { _ = agent.Process.Kill() })
}

// kill ends the agent as a crash would.
func (m *machine) kill() {
	m.c.t.Helper()
	if err := m.agent.Process.Kill(); err != nil {
		m.c.t.Fatal(err)
	}
	<-m.exited
}

// send sends packets to the machine, one by one, from a socket that is not
// connected: nobody listens, and a connected one would be told so instead of
// sending.
func (m *machine) send(n int) {
	m.c.t.Helper()
	from, err := (&net.ListenConfig{}).ListenPacket(m.c.t.Context(), "udp", m.hostAddress+":0")
	if err != nil {
		m.c.t.Fatal(err)
	}
	defer from.Close()
	to := &net.UDPAddr{IP: net.ParseIP(m.inside), Port: 9}
	for range n {
		if _, err := from.WriteTo([]byte("packet"), to); err != nil {
			m.c.t.Errorf("send to %s: %v", m.name, err)
			return
		}
	}
}

// pinned visits every file below the machine's pins.
func (m *machine) pinned(visit func(name string)) {
	root := fmt.Sprintf("/proc/%d/root%s/skep", m.sandbox.Process.Pid, bpffsOf)
	_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			visit(name)
		}
		return nil
	})
}

// pins counts them.
func (m *machine) pins() int {
	n := 0
	m.pinned(func(string) { n++ })
	return n
}

// counted is what the counters of all programs on the machine hold, and how
// many there are.
func (m *machine) counted() (packets uint64, counters int) {
	m.c.t.Helper()
	m.pinned(func(name string) {
		if !strings.Contains(filepath.Base(name), "counts") {
			return
		}
		pinned, err := ebpf.LoadPinnedMap(name, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return
		}
		defer pinned.Close()
		var perCPU []uint64
		if pinned.Lookup(uint32(0), &perCPU) != nil {
			return
		}
		counters++
		for _, n := range perCPU {
			packets += n
		}
	})
	return packets, counters
}

// counts sends packets until they are counted, all of them.
func (m *machine) counts() {
	m.c.t.Helper()
	before, _ := m.counted()
	m.send(100)
	m.c.until(m.name+" to count", func() error {
		if now, _ := m.counted(); now < before+100 {
			return fmt.Errorf("%d of 100 packets counted", now-before)
		}
		return nil
	})
}

// label sets a label of a node.
func (m *machine) label(role string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	m.c.change(node, func() { node.Labels["role"] = role })
}

// fleet is an XDP application on every edge node.
func fleet(image string) *v1alpha1.ClusterBpfApplication {
	return &v1alpha1.ClusterBpfApplication{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"},
		Spec: v1alpha1.BpfApplicationSpec{
			Bytecode:     v1alpha1.Bytecode{Image: image},
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}},
			Programs: []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{{
				Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}},
			}}}},
		},
	}
}

// summary waits until so many nodes of so many have an application loaded.
func (c *cluster) summary(app *v1alpha1.ClusterBpfApplication, want string) {
	c.t.Helper()
	c.until("nodes "+want, func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if n := app.Status.Nodes; n == nil || n.Summary != want || app.Status.ObservedGeneration != app.Generation {
			return fmt.Errorf("nodes %+v, conditions %v", n, app.Status.Conditions)
		}
		return nil
	})
}

// TestThreeNodes is the whole of cluster mode on this machine's kernel.
func TestThreeNodes(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	nodes, stop := c.begin(3)

	first, _ := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	app := fleet(first)
	c.create(app)
	c.summary(app, "3/3")
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	for _, m := range nodes {
		m.counts()
	}

	t.Log("label a node away, and back")
	nodes[2].label("core")
	c.summary(app, "2/2")
	c.until("the program to leave", func() error {
		if n := nodes[2].pins(); n != 0 {
			return fmt.Errorf("%d pins", n)
		}
		return nil
	})
	nodes[2].label("edge")
	c.summary(app, "3/3")
	nodes[2].counts()

	t.Log("update under load: no packet is missed")
	before, _ := nodes[0].counted()
	sent, stopSending := make(chan int), make(chan struct{})
	go func() {
		total := 0
		for {
			select {
			case <-stopSending:
				sent <- total
				return
			default:
				nodes[0].send(100)
				total += 100
			}
		}
	}()
	second, _ := c.Push("count:v2", programs.Object("xdp_count_v2"), "team-a")
	serial := app.Status.Serial
	c.change(app, func() { app.Spec.Bytecode.Image = second })
	c.until("the update", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if app.Status.Serial == serial || app.Status.Nodes == nil || app.Status.Nodes.Summary != "3/3" {
			return fmt.Errorf("serial %d, nodes %+v", app.Status.Serial, app.Status.Nodes)
		}
		return nil
	})
	close(stopSending)
	total := <-sent
	c.until("every packet to be counted", func() error {
		if now, counters := nodes[0].counted(); now < before+uint64(total) || counters != 1 {
			return fmt.Errorf("%d of %d packets, %d counters", now-before, total, counters)
		}
		return nil
	})

	t.Log("kill an agent; its program goes on counting, and it finds it again")
	nodes[1].kill()
	nodes[1].counts()
	nodes[1].start()

	t.Log("the controller away: nothing changes on any node")
	stop()
	for _, m := range nodes {
		m.counts()
	}
	nodes[0].kill()
	nodes[0].start()
	nodes[0].counts()
	c.control()

	t.Log("delete: gone everywhere, nothing left over")
	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	for _, m := range nodes {
		c.until(m.name+" to be clean", func() error {
			if n := m.pins(); n != 0 {
				return fmt.Errorf("%d pins", n)
			}
			return nil
		})
	}
}
