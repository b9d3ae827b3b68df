package containers

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/need"
)

// patience bounds what a test waits for.
const patience = time.Minute

// until waits until the check has no error.
func until(t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := await.Until(ctx, 50*time.Millisecond, check); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// daemon is a real containerd of the test's own.
type daemon struct {
	t testing.TB
	// bin is the folder of containerd, its shim and ctr.
	bin, dir, socket string
	version          int
	cmd              *exec.Cmd
	conn             *grpc.ClientConn
	cri.RuntimeServiceClient
}

// parent is the cgroup of all pods of this process's tests, below every hierarchy's root.
var parent = "/skep-containers-" + strconv.Itoa(os.Getpid())

// daemons are the versions that the tests run with: Debian's, which has no events, and one of
// the cache.
func daemons(t *testing.T, test func(*testing.T, *daemon)) {
	t.Run("containerd of the system", func(t *testing.T) { test(t, startDaemon(t, "/usr/bin")) })
	t.Run("containerd 2", func(t *testing.T) { test(t, startDaemon(t, containerd2(t))) })
}

// containerd2 is the folder of a containerd that has events.
func containerd2(t testing.TB) string {
	t.Helper()
	dir, err := containerd.Folder()
	if err != nil {
		t.Skip("SKIPPED: needs containerd 2: make containerd")
	}
	return dir
}

func startDaemon(t testing.TB, bin string) *daemon {
	t.Helper()
	need.Kernel(t)
	for _, path := range []string{filepath.Join(bin, "containerd"), filepath.Join(bin, "ctr"), "/usr/sbin/runc", "/usr/lib/cni/bridge"} {
		need.File(t, path, "containerd runc containernetworking-plugins")
	}
	d := &daemon{t: t, bin: bin, dir: t.TempDir(), version: 2}
	if bin == "/usr/bin" {
		d.version = 1
	}
	d.socket = filepath.Join(d.dir, "s.sock")
	for _, hidden := range []string{"/run/containerd", "/run/netns"} {
		if err := errors.Join(os.MkdirAll(hidden, 0o755), unix.Mount("tmpfs", hidden, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(hidden, unix.MNT_DETACH) })
	}
	d.file("config.toml", strings.NewReplacer("%DIR%", d.dir, "%BIN%", bin).Replace(configs[d.version]))
	d.file("cni/10.conflist", strings.ReplaceAll(cniConfig, "%DIR%", d.dir))
	d.cgroups(func(dir string) error {
		err := os.MkdirAll(dir, 0o755)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, e := os.ReadFile(filepath.Join(filepath.Dir(dir), file)); e == nil {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), value, 0o600))
			}
		}
		return err
	})
	t.Cleanup(func() { d.cgroups(removeTree) })
	d.boot()
	t.Cleanup(d.clear)
	d.images()
	return d
}

var configs = map[int]string{1: `version = 2
root = "%DIR%/root"
state = "%DIR%/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "%DIR%/s.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "test.local/pause:1"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%DIR%/cni"
`, 2: `version = 3
root = "%DIR%/root"
state = "%DIR%/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "%DIR%/s.sock"
[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "test.local/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "%DIR%/cni"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "%DIR%/n.sock"
  plugin_path = "%DIR%/plugins"
  plugin_config_path = "%DIR%/plugins"
`}

const cniConfig = `{"cniVersion": "0.4.0", "name": "test", "plugins": [{"type": "bridge", "bridge": "skepcni0",
 "ipam": {"type": "host-local", "dataDir": "%DIR%/ipam", "ranges": [[{"subnet": "10.244.77.0/24"}]]}}]}`

func (d *daemon) file(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		d.t.Fatal(err)
	}
}

// cgroups does something with the parent in each hierarchy.
func (d *daemon) cgroups(do func(dir string) error) {
	d.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[2], "cgroup") {
			if err := do(fields[1] + parent); err != nil {
				d.t.Errorf("cgroup of tests: %v", err)
			}
		}
	}
}

// removeTree removes a cgroup with those below it.
func removeTree(root string) error {
	var all []string
	_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(all) {
		end := time.Now().Add(10 * time.Second)
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				return fmt.Errorf("remove %s: %w", dir, err)
			}
		}
	}
	return nil
}

// boot starts the daemon, which answers then.
func (d *daemon) boot() {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(filepath.Join(d.bin, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), "PATH="+d.bin+":"+os.Getenv("PATH"))
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(d.cmd); err != nil {
		d.t.Fatal(err)
	}
	if d.conn == nil {
		if d.conn, err = grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			d.t.Fatal(err)
		}
		d.RuntimeServiceClient = cri.NewRuntimeServiceClient(d.conn)
	}
	until(d.t, "containerd", func() error {
		_, err := d.Status(context.Background(), &cri.StatusRequest{}, grpc.WaitForReady(true))
		return err
	})
}

// kill ends the daemon at once; its containers run on.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// clear ends all containers and the daemon.
func (d *daemon) clear() {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	// A test may have failed while it hung, or was killed.
	_ = d.cmd.Process.Signal(unix.SIGCONT)
	if d.cmd.ProcessState != nil {
		d.boot()
	}
	all, err := d.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		d.t.Errorf("list what is left: %v", err)
	}
	for _, one := range all.GetItems() {
		d.end(one.GetId())
	}
	if d.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(d.dir, "log"))
		lines := strings.SplitAfter(string(log), "\n")
		d.t.Logf("%s", strings.Join(lines[max(0, len(lines)-12):], ""))
	}
	_ = d.conn.Close()
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	_ = d.cmd.Wait()
}

// end ends a sandbox with its containers.
func (d *daemon) end(sandbox string) {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	_, err := d.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox})
	if err == nil {
		_, err = d.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox})
	}
	if err != nil {
		d.t.Errorf("end sandbox: %v", err)
	}
}

// program is a static binary that waits for a signal.
var program = sync.OnceValues(func() ([]byte, error) {
	path, err := command.Cached(context.Background(), "./test/e2e/pause")
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// first is a static binary that calls functions at once, and ends.
var first = userbinary.Worker(1)

// images imports the image of sandboxes and the one of containers, which are alike.
func (d *daemon) images() {
	d.t.Helper()
	binary, err := program()
	if err != nil {
		d.t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, file := range []tar.Header{
		{Name: "pause", Mode: 0o755, Size: int64(len(binary))}, {Name: "first", Mode: 0o755, Size: int64(len(first))},
		{Name: "usr/bin/", Mode: 0o755, Typeflag: tar.TypeDir},
		{Name: "usr/bin/tool", Mode: 0o755, Linkname: "/pause", Typeflag: tar.TypeSymlink},
	} {
		err = errors.Join(err, w.WriteHeader(&file))
		if body := map[string][]byte{"pause": binary, "first": first}[file.Name]; body != nil {
			_, failed := w.Write(body)
			err = errors.Join(err, failed)
		}
	}
	err = errors.Join(err, w.Close())
	opened, failed := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err := errors.Join(err, failed); err != nil {
		d.t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, opened)
	if err == nil {
		image, err = mutate.ConfigFile(image, &v1.ConfigFile{OS: "linux", Architecture: goarch, RootFS: must(image.ConfigFile()).RootFS})
	}
	if err != nil {
		d.t.Fatal(err)
	}
	for _, ref := range []string{"test.local/pause:1", "test.local/work:1"} {
		image := must(mutate.Config(image, v1.Config{Entrypoint: []string{"/pause"}, Labels: map[string]string{"is": ref}}))
		file := filepath.Join(d.dir, "image.tar")
		if err := tarball.WriteToFile(file, must(name.ParseReference(ref)), image); err != nil {
			d.t.Fatal(err)
		}
		out, err := exec.CommandContext(d.t.Context(), filepath.Join(d.bin, "ctr"), "-a", d.socket, "-n", "k8s.io", "images", "import", "--all-platforms",
			file).CombinedOutput()
		if err != nil {
			d.t.Fatalf("import image: %v\n%s", err, out)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// pod is what a kubelet says of a pod.
type pod struct {
	namespace, name, uid string
	labels               map[string]string
	hostNetwork          bool
	environment          []*cri.KeyValue
	config               *cri.PodSandboxConfig
	sandbox              string
}

// run makes the pod's sandbox.
func (d *daemon) run(p *pod) *pod {
	d.t.Helper()
	p.config = &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: p.name, Namespace: p.namespace, Uid: p.uid}, Labels: p.labels, LogDirectory: d.dir,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: parent + "/pod" + p.uid, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER}}}}
	if p.hostNetwork {
		p.config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	}
	answer, err := d.RunPodSandbox(d.t.Context(), &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		d.t.Fatalf("run sandbox: %v", err)
	}
	p.sandbox = answer.GetPodSandboxId()
	return p
}

// create makes a container of the pod.
func (d *daemon) create(p *pod, name string, attempt uint32, command ...string) string {
	d.t.Helper()
	answer, err := d.CreateContainer(d.t.Context(), &cri.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: attempt}, Image: &cri.ImageSpec{Image: "test.local/work:1"}, Command: command, Envs: p.environment,
		Labels: map[string]string{"io.kubernetes.pod.namespace": "claimed", "io.kubernetes.pod.name": "claimed", "io.kubernetes.pod.uid": "claimed"},
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}}}})
	if err != nil {
		d.t.Fatalf("create container: %v", err)
	}
	return answer.GetContainerId()
}

// start makes and starts a container of the pod.
func (d *daemon) start(p *pod, name string) string {
	d.t.Helper()
	id := d.create(p, name, 0)
	d.begin(id)
	return id
}

func (d *daemon) begin(id string) {
	d.t.Helper()
	if _, err := d.StartContainer(d.t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		d.t.Fatalf("start container: %v", err)
	}
}

// stop ends a container, and removes it.
func (d *daemon) stop(id string) {
	d.t.Helper()
	_, err := d.StopContainer(d.t.Context(), &cri.StopContainerRequest{ContainerId: id})
	if err == nil {
		_, err = d.RemoveContainer(d.t.Context(), &cri.RemoveContainerRequest{ContainerId: id})
	}
	if err != nil {
		d.t.Fatalf("stop container: %v", err)
	}
}

// source returns a Source of the daemon's containers.
func (d *daemon) source(change func(*Options)) *source {
	d.t.Helper()
	return d.reads(change).(*source)
}

// reads returns a Source of the daemon's containers.
func (d *daemon) reads(change func(*Options)) Source {
	d.t.Helper()
	o := Options{Endpoint: "unix://" + d.socket, CgroupRoot: need.Cgroup(d.t)}
	if change != nil {
		change(&o)
	}
	s, err := NewCRI(o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = s.Close() })
	return s
}
