package e2e

import (
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/module"
)

// patience bounds what a test waits for; far more than anything takes.
const patience = 3 * time.Minute

// Where the node is: address is its own, outside another machine's on the same
// wire, kubernetes the API server's Service.
const (
	address    = "10.91.0.11"
	outside    = "10.91.0.1"
	kubernetes = "10.0.0.1"
)

// node is a cluster of one node.
type node struct {
	t *testing.T
	// running are the node's processes, by name.
	running map[string]*exec.Cmd
}

// newNode brings a cluster up, to which the kubelet has come.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, running: map[string]*exec.Cmd{}}
	t.Cleanup(n.tell)
	n.mount()
	n.wire()
	authority := newAuthority(t)
	n.credentials(authority)
	n.registry(authority)
	n.names()
	n.controlPlane()
	n.file("containerd.toml", containerdConfig(n.t))
	n.file("certs.d/docker.io/hosts.toml", dockerHub)
	n.file("cni/10-node.conflist", cniConfig)
	n.file("kubelet.yaml", kubeletConfig)
	n.file("proxy.yaml", proxyConfig)
	n.boot()
	n.start("kube-proxy", "--config="+n.path("proxy.yaml"), "--hostname-override=node1")
	n.until("the node", func() error {
		_, err := n.kubectl("wait", "--for=condition=Ready", "node/node1", "--timeout=1s")
		return err
	})
	return n
}

// path is that of a file of the node's.
func (n *node) path(name string) string { return filepath.Join(state, name) }

// file writes one of the node's.
func (n *node) file(name, content string) {
	n.t.Helper()
	path := n.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "%STATE%", state)), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// mount gives the node the folders of a machine of its own.
func (n *node) mount() {
	n.t.Helper()
	dist := filepath.Join(module.Root(), "dist")
	if err := os.MkdirAll(dist, 0o755); err != nil {
		n.t.Fatal(err)
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		// What happens here is not seen outside; what happens on the node is in
		// its containers.
		{"", "/", "", unix.MS_SLAVE | unix.MS_REC},
		{"", "/", "", unix.MS_SHARED | unix.MS_REC},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/log", "tmpfs", 0},
		{n.folder("lib"), "/var/lib", "", unix.MS_BIND},
		{"bpf", "/sys/fs/bpf", "bpf", 0},
		// The images of the machine's user are not those of the reader.
		{"tmpfs", dist, "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			n.t.Fatalf("mount %s on %s: %v", m.source, m.target, err)
		}
	}
	n.over("/etc/hosts", "127.0.0.1 localhost\n"+address+" node1 registry.example.com private.example.com\n")
	// The kubelet insists on these, and is not to change the machine's.
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		n.over("/proc/sys/"+name, value+"\n")
	}
	if err := unix.Sethostname([]byte("node1")); err != nil {
		n.t.Fatal(err)
	}
}

// folder makes one of the node's.
func (n *node) folder(name string) string {
	n.t.Helper()
	if err := os.MkdirAll(n.path(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return n.path(name)
}

// over lays a file over one of the machine's.
func (n *node) over(target, content string) {
	n.t.Helper()
	name := "over/" + strings.ReplaceAll(strings.Trim(target, "/"), "/", "_")
	n.file(name, content)
	if err := unix.Mount(n.path(name), target, "", unix.MS_BIND, ""); err != nil {
		n.t.Fatalf("lay a file over %s: %v", target, err)
	}
}

// wire connects the node with another machine, which is its way to everywhere.
func (n *node) wire() {
	n.t.Helper()
	for _, command := range []string{
		"ip link set lo up",
		"ip netns add outside",
		"ip link add eth0 type veth peer name eth0 netns outside",
		"ip addr add " + address + "/24 dev eth0",
		"ip link set eth0 up",
		"ip -n outside addr add " + outside + "/24 dev eth0",
		"ip -n outside link set eth0 up",
		"ip route add default via " + outside,
	} {
		n.run(strings.Fields(command)...)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// run runs a command that is to succeed.
func (n *node) run(args ...string) string {
	n.t.Helper()
	out, err := exec.CommandContext(n.t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// credentials writes what the parts of the control plane know each other by.
func (n *node) credentials(a *authority) {
	n.t.Helper()
	n.file("pki/ca.crt", a.certificate)
	n.over(authorities, a.certificate)
	n.pair("pki/apiserver", a, x509.ExtKeyUsageServerAuth, "apiserver", address, kubernetes, "kubernetes.default.svc")
	n.pair("pki/accounts", a, x509.ExtKeyUsageServerAuth, "accounts")
	n.pair("pki/client", a, x509.ExtKeyUsageClientAuth, "apiserver")
	// As kubeadm has it: by an authority of its own, kube-apiserver hands requests on to aggregated APIs.
	front := newAuthority(n.t)
	n.file("pki/front-proxy-ca.crt", front.certificate)
	n.pair("pki/front-proxy-client", front, x509.ExtKeyUsageClientAuth, "front-proxy-client")
	n.file("pki/tokens.csv", users)
	for line := range strings.Lines(users) {
		user, _, _ := strings.Cut(line, ",")
		n.file("pki/"+user+".kubeconfig", strings.ReplaceAll(kubeconfig, "%USER%", user))
	}
	n.t.Setenv("KUBECONFIG", n.path("pki/admin.kubeconfig"))
}

// pair writes a certificate and its key.
func (n *node) pair(name string, a *authority, usage x509.ExtKeyUsage, subject string, names ...string) {
	n.t.Helper()
	certificate, key := a.issue(n.t, usage, subject, names...)
	n.file(name+".crt", certificate)
	n.file(name+".key", key)
}

// controlPlane starts etcd, the API server, and who acts by it.
func (n *node) controlPlane() {
	n.t.Helper()
	n.start("etcd", "--data-dir="+n.path("etcd"), "--unsafe-no-fsync", "--log-level=warn")
	n.start("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", "--advertise-address="+address,
		"--cert-dir="+n.folder("apiserver"), "--tls-cert-file="+n.path("pki/apiserver.crt"), "--tls-private-key-file="+n.path("pki/apiserver.key"),
		"--client-ca-file="+n.path("pki/ca.crt"), "--token-auth-file="+n.path("pki/tokens.csv"),
		"--kubelet-client-certificate="+n.path("pki/client.crt"), "--kubelet-client-key="+n.path("pki/client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file="+n.path("pki/front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+n.path("pki/front-proxy-client.crt"), "--proxy-client-key-file="+n.path("pki/front-proxy-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+n.path("pki/accounts.crt"),
		"--service-account-signing-key-file="+n.path("pki/accounts.key"), "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	n.until("the API server", func() error {
		_, err := n.kubectl("get", "--raw", "/readyz")
		return err
	})
	// Who shows the API server's certificate to a kubelet may do as an admin.
	n.run(n.binary("kubectl"), "create", "clusterrolebinding", "apiserver-to-kubelets", "--clusterrole=system:kubelet-api-admin", "--user=apiserver")
	n.start("kube-controller-manager", append(n.asUser("kcm"), "--use-service-account-credentials", "--leader-elect=false",
		"--service-account-private-key-file="+n.path("pki/accounts.key"), "--root-ca-file="+n.path("pki/ca.crt"), "--cert-dir="+n.folder("kcm"))...)
	n.start("kube-scheduler", append(n.asUser("scheduler"), "--leader-elect=false", "--cert-dir="+n.folder("scheduler"))...)
}

// asUser are the flags that name a user of the control plane.
func (n *node) asUser(name string) []string {
	path := n.path("pki/" + name + ".kubeconfig")
	return []string{"--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path}
}

// boot starts what a machine starts.
func (n *node) boot() {
	n.t.Helper()
	roots, err := hierarchies()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, root := range roots {
		if err := makeCgroup(root); err != nil {
			n.t.Fatal(err)
		}
	}
	n.runtime()
	n.folder("manifests")
	n.start("kubelet", "--config="+n.path("kubelet.yaml"), "--kubeconfig="+n.path("pki/kubelet.kubeconfig"),
		"--hostname-override=node1", "--node-ip="+address)
}

// runtime starts the container runtime, which answers then.
func (n *node) runtime() {
	n.t.Helper()
	n.start("containerd", "--config="+n.path("containerd.toml"))
	n.until("containerd", func() error {
		return exec.CommandContext(n.t.Context(), n.binary("ctr"), "version").Run()
	})
}

// makeCgroup makes the node's cgroup in a hierarchy. One of cpusets is of no use
// before it has some.
func makeCgroup(root string) error {
	dir := filepath.Join(root, cgroup)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// binary is the path of one of the node's.
func (n *node) binary(name string) string {
	for _, folder := range []string{binaries, runtimeFolder} {
		if path := filepath.Join(os.Getenv(folder), name); exists(path) {
			return path
		}
	}
	return name
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// start starts a process, which ends with the node if not before.
func (n *node) start(name string, args ...string) {
	n.t.Helper()
	said, err := os.Create(filepath.Join(n.folder("said"), name))
	if err != nil {
		n.t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command(n.binary(name), args...)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.running[name] = cmd
}

// stop ends a process.
func (n *node) stop(name string) {
	n.t.Helper()
	cmd := n.running[name]
	delete(n.running, name)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	_ = cmd.Wait()
}

// kubectl runs kubectl as an admin, and returns what it says.
func (n *node) kubectl(args ...string) (string, error) {
	out, err := exec.CommandContext(n.t.Context(), n.binary("kubectl"), args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// until waits until check is content.
func (n *node) until(what string, check func() error) {
	n.t.Helper()
	if err := until(patience, check); err != nil {
		n.t.Fatalf("wait for %s: %v", what, err)
	}
}

// tell shows what everybody said last, where the test failed.
func (n *node) tell() {
	if !n.t.Failed() {
		return
	}
	said, _ := filepath.Glob(n.path("said/*"))
	logs, _ := filepath.Glob("/var/log/pods/skep*/*/*.log")
	for _, path := range append(said, logs...) {
		body, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		lines := strings.SplitAfter(string(body), "\n")
		n.t.Logf("%s:\n%s", path, strings.Join(lines[max(0, len(lines)-25):], ""))
	}
	for _, what := range []string{"pods,events", "bpfapplications,clusterbpfapplications,bpfnodes"} {
		out, err := n.kubectl("get", what, "--all-namespaces", "--output=wide")
		n.t.Logf("%s %v", out, err)
	}
}
