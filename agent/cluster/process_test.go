package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/skep-dev/skep/agent/cluster"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/controlplane"
)

// process is skep-agent as it runs in a Pod.
type process struct {
	*exec.Cmd
	address string
}

// build makes the binary once a test.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skep-agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", path, "./cmd/skep-agent")
	cmd.Dir = controlplane.Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build skep-agent: %v\n%s", err, out)
	}
	return path
}

// flags are those of the world's agent.
func (w *world) flags() []string {
	w.t.Helper()
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, plane.Env.KubeConfig, 0o600); err != nil {
		w.t.Fatal(err)
	}
	m := w.mirror.options()
	return []string{"--node-name", w.name, "--bpffs", w.bpffs, "--state", filepath.Join(w.dir, "state"), "--kubeconfig", kubeconfig,
		"--trust", filepath.Join(w.dir, "trust", "keys.pem"), "--mirror", m.URL, "--mirror-ca", m.CAFile, "--mirror-token", m.TokenFile,
		"--tls-server-name", m.ServerName, "--log-format", "json"}
}

// run starts the binary, or a command that does, with the world's flags.
func (w *world) run(command string, more ...string) *process {
	w.t.Helper()
	p := &process{address: w.freeAddress()}
	p.Cmd = exec.Command(command, append(more, append(w.flags(), "--listen", p.address)...)...)
	p.Stderr = w.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// freeAddress is one nobody listens at.
func (w *world) freeAddress() string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		w.t.Fatal(err)
	}
	return l.Addr().String()
}

// get asks the process.
func (p *process) get(path string) (int, string) {
	return get(http.DefaultClient, "http://"+p.address+path)
}

func get(c *http.Client, address string) (int, string) {
	r, err := c.Get(address)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(body)
}

// resident is the process's memory in KiB.
func (p *process) resident(t *testing.T) int {
	t.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

func TestTheProcessIsSmallTellsTheTruthAndLeavesProgramsBehind(t *testing.T) {
	needKernel(t)
	w, binary := newWorld(t, plane), build(t)
	_, profiles, _ := net.SplitHostPort(w.freeAddress())
	p := w.run(binary, "--pprof-port", profiles)
	until(t, "it to be ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	var apps []intent.Payload
	for i := range 20 {
		apps = append(apps, w.payload(fmt.Sprintf("app-%d", i)))
		w.apply(apps[i])
	}
	for _, app := range apps {
		w.awaits(app, v1alpha1.NodeLoaded)
	}
	w.quiet()
	kib := p.resident(t)
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB resident with %d applications, a binary of %d KiB", kib, len(apps), info.Size()>>10)
	if kib > 40<<10 {
		t.Errorf("%d KiB resident, want at most 40 MiB", kib)
	}
	for path, want := range map[string]string{"/healthz": "ok",
		"/metrics": `skep_agent_applications{state="Loaded"} 20`} {
		if code, body := p.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for address, want := range map[string]int{p.address: http.StatusNotFound, "127.0.0.1:" + profiles: http.StatusOK, "127.0.0.2:" + profiles: 0} {
		if code, body := get(http.DefaultClient, "http://"+address+"/debug/pprof/"); code != want {
			t.Errorf("profiles at %s: %d %s", address, code, body)
		}
	}
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(w.dir, "state", cluster.SocketName))
	}}}
	defer local.CloseIdleConnections()
	for path, want := range map[string]string{"/v1/applications": `"name":"app-19"`, "/v1/programs": `"raw_tp_count"`} {
		if code, body := get(local, "http://local"+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	// It holds the pins, so nobody cleans up under it.
	clean := exec.Command(binary, append(w.flags(), "--cleanup")...)
	if out, err := clean.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("clean up: ")) {
		t.Errorf("--cleanup beside an agent: %v, %s", err, out)
	}
	if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	for _, app := range apps {
		if !w.pinned(app) {
			t.Errorf("%s went with the process", app.Application)
		}
	}
	if out, err := exec.Command(binary, append(w.flags(), "--cleanup")...).CombinedOutput(); err != nil {
		t.Fatalf("--cleanup: %v, %s", err, out)
	}
	for _, dir := range []string{w.bpffs, filepath.Join(w.dir, "state")} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

func TestTheProcessDoesWithFewRights(t *testing.T) {
	needKernel(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("SKIPPED: no setpriv (util-linux)")
	}
	w, binary := newWorld(t, plane), build(t)
	w.run(setpriv, "--nnp", "--bounding-set=-all,+bpf,+net_admin,+perfmon", binary)
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	s := w.report().Status
	hooks := strings.Join(s.Kernel.Hooks, " ")
	if strings.Contains(hooks, "uprobe") || !strings.Contains(hooks, "raw_tp") {
		t.Errorf("hooks: %s", hooks)
	}
	if s.Counts.Programs != 0 || s.Counts.Loaded != 1 {
		t.Errorf("counts: %+v", s.Counts)
	}
	for _, words := range []string{"looking objects up by id needs CAP_SYS_ADMIN", "the agent may not attach to some hooks"} {
		if n := w.log.times(words); n != 1 {
			t.Errorf("%q is told %d times", words, n)
		}
	}
}

func TestTheProcessSaysWhatItLacks(t *testing.T) {
	needKernel(t)
	w, binary := newWorld(t, plane), build(t)
	for sentence, c := range map[string]struct {
		flags []string
		want  string
	}{
		"the keys":          {append(w.flags(), "--trust", "/none"), "read seal trust"},
		"a node":            {append(w.flags(), "--node-name="), "NodeName"},
		"a kubeconfig":      {append(w.flags(), "--kubeconfig", "/none"), "find the API server"},
		"a service":         {append(w.flags(), "--kubeconfig="), "find the API server"},
		"a known format":    {append(w.flags(), "--log-format", "xml"), `unknown log format "xml"`},
		"a BPF file system": {append(w.flags(), "--bpffs", t.TempDir()), "not on a bpf file system"},
	} {
		t.Run(sentence, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), binary, c.flags...).CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte(c.want)) {
				t.Errorf("%v, %s", err, out)
			}
		})
	}
}
