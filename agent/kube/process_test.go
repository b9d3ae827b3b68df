package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// process is skep-agent as it runs in a Pod.
type process struct {
	*exec.Cmd
	address string
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
	p.Cmd = exec.Command(command, append(more, append(w.flags(), "--listen", p.address, "--metrics-secure=false")...)...)
	p.Stderr = w.log
	if err := child.Start(p.Cmd); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = errors.Join(p.Process.Kill(), p.Wait()) })
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

// holds starts the binary, seals so many applications for it, and returns them
// when all are loaded.
func (w *world) holds(many int, binary string, flags ...string) (*process, []intent.Payload) {
	w.t.Helper()
	p := w.run(binary, flags...)
	until(w.t, "it to be ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	var apps []intent.Payload
	for i := range many {
		apps = append(apps, w.payload(fmt.Sprintf("app-%d", i)))
		w.apply(apps[i])
	}
	loaded := fmt.Sprintf("skep_agent_applications{state=%q} %d\n", v1alpha1.NodeLoaded, many)
	until(w.t, "all applications to be loaded", func() bool { _, body := p.get("/metrics"); return strings.Contains(body, loaded) })
	w.quiet()
	return p, apps
}

// BenchmarkResident reports what memory skep-agent takes when so many
// applications are loaded and it is at rest: all that is resident, the most that
// ever was, and what is its own rather than pages of its binary.
func BenchmarkResident(b *testing.B) {
	need.Kernel(b)
	binary := command.Build(b, "skep-agent")
	for _, many := range []int{20, 100} {
		b.Run(fmt.Sprintf("applications=%d", many), func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, plane)
				p, _ := w.holds(many, binary)
				m := command.MemoryOf(b, p.Process.Pid)
				b.ReportMetric(m.Resident, "MB-resident")
				b.ReportMetric(m.Peak, "MB-peak")
				b.ReportMetric(m.Own, "MB-own")
				if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAtRest reports how much of one core skep-agent takes when so many
// applications are loaded and nothing changes, over two of its full turns. Their
// programs run at no event of this machine, so that none adds to the figure.
func BenchmarkAtRest(b *testing.B) {
	need.Kernel(b)
	binary := command.Build(b, "skep-agent")
	for _, many := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("applications=%d", many), func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, plane)
				w.tracepoint = "xdp_exception"
				p, _ := w.holds(many, binary)
				began, used := time.Now(), command.CPUOf(b, p.Process.Pid)
				<-time.After(time.Minute)
				used = command.CPUOf(b, p.Process.Pid) - used
				b.ReportMetric(100*used.Seconds()/time.Since(began).Seconds(), "%-of-a-core")
				if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestTheProcessIsSmallTellsTheTruthAndLeavesProgramsBehind(t *testing.T) {
	need.Kernel(t)
	// The suite may have tests collect less garbage.
	t.Setenv("GOGC", "")
	w, binary := newWorld(t, plane), command.Build(t, "skep-agent")
	_, profiles, _ := net.SplitHostPort(w.freeAddress())
	p, apps := w.holds(20, binary, "--pprof-port", profiles)
	if m := command.MemoryOf(t, p.Process.Pid); m.Resident > 40 {
		t.Errorf("%.1f MB resident, want at most 40", m.Resident)
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
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(w.dir, "state", kube.SocketName))
	}}}
	defer local.CloseIdleConnections()
	for path, want := range map[string]string{"/v1/applications": `"name":"app-19"`, "/v1/programs": `"raw_tp_count"`,
		"/v1/node": `"kind":"NodeView"`} {
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

// TestTheProcessGivesMapsTheMemoryThatItsFlagsSay: what maps have by --memory-limit is
// half of a small one.
func TestTheProcessGivesMapsTheMemoryThatItsFlagsSay(t *testing.T) {
	need.Kernel(t)
	binary := command.Build(t, "skep-agent")
	for _, flag := range []string{"--map-memory=1Ki", "--memory-limit=2048"} {
		t.Run(flag, func(t *testing.T) {
			w := newWorld(t, plane)
			w.run(binary, flag)
			app := w.payload("app")
			w.apply(app)
			if is := w.awaits(app, v1alpha1.NodeFailed); !strings.Contains(is.Message, "raise --map-memory") {
				t.Errorf("it failed with %q", is.Message)
			}
		})
	}
}

func TestTheProcessDoesWithFewRights(t *testing.T) {
	need.Kernel(t)
	setpriv := need.Program(t, "setpriv", "util-linux")
	w, binary := newWorld(t, plane), command.Build(t, "skep-agent")
	w.run(setpriv, "--nnp", "--bounding-set=-all,+bpf,+net_admin,+perfmon", binary)
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	s := w.report().Status
	if slices.Contains(s.Kernel.Hooks, "uprobe") || !slices.Contains(s.Kernel.Hooks, "raw_tp") {
		t.Errorf("hooks: %v", s.Kernel.Hooks)
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
	need.Kernel(t)
	w, binary := newWorld(t, plane), command.Build(t, "skep-agent")
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

// TestTheLogTellsTheStoryOfAnApplication of the process: each state once, with the keys of the controller's log, and each line is JSON.
func TestTheLogTellsTheStoryOfAnApplication(t *testing.T) {
	need.Kernel(t)
	w, binary := newWorld(t, plane), command.Build(t, "skep-agent")
	p := w.run(binary)
	on := func(program, iface string) []v1alpha1.Program {
		at := v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{iface}}}
		return []v1alpha1.Program{{Name: program, Attach: []v1alpha1.Attachment{at}}}
	}
	first := w.payload("story")
	w.apply(first)
	w.awaits(first, v1alpha1.NodeLoaded)
	second := w.payload("story")
	second.ImageDigest = "sha256:second"
	w.apply(second)
	w.awaits(second, v1alpha1.NodeLoaded)
	third := w.payload("story")
	third.ObjectDigest = w.mirror.put(programs.Object("xdp_rejected"))
	third.Programs = on("xdp_rejected", "lo")
	w.apply(third)
	w.awaits(third, v1alpha1.NodeFailed)
	waits := w.payload("story")
	waits.ObjectDigest = w.mirror.put(programs.Object("xdp_count"))
	waits.Programs = on("count_packets", "none0")
	w.apply(waits)
	w.awaits(waits, v1alpha1.NodeWaiting)
	gone := w.tombstone(waits)
	w.apply(gone)
	until(t, "it to be removed", func() bool { return w.reported(gone).State == v1alpha1.NodeRemoved })
	if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	type line struct {
		Msg, Level, Application, Digest, Node, Reason string
		Serial                                        int64
	}
	var story []string
	for text := range strings.Lines(w.log.text.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		if !strings.HasPrefix(l.Msg, "application ") {
			continue
		}
		if l.Level != "INFO" || l.Application != "story" || l.Node != w.name || l.Reason == "" {
			t.Errorf("%s", text)
		}
		story = append(story, fmt.Sprint(l.Msg, " ", l.Serial))
	}
	want := []string{fmt.Sprint("application loaded ", first.Serial), fmt.Sprint("application loaded ", second.Serial),
		fmt.Sprint("application failed ", third.Serial), fmt.Sprint("application waiting ", waits.Serial), fmt.Sprint("application unloaded ", gone.Serial)}
	if !slices.Equal(story, want) {
		t.Errorf("it tells %q, want %q", story, want)
	}
}
