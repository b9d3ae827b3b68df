package agent_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	if os.Getenv(busyFile) != "" {
		fmt.Fprintln(os.Stderr, beBusy())
		os.Exit(1)
	}
	if isBehindDoor = os.Getenv(behindDoor) != ""; isBehindDoor {
		// Processes that tests start are others.
		_ = os.Unsetenv(behindDoor)
		os.Exit(m.Run())
	}
	events.MaybeChild()
	tasks.Main(m)
}

// world is one node for tests: its directories, its key and its objects.
type world struct {
	t       testing.TB
	dir     string
	bpffs   string
	key     seals.Key
	mu      sync.Mutex
	objects map[string][]byte
	serial  int64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	name := make([]byte, 6)
	if _, err := rand.Read(name); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: t.TempDir(), bpffs: "/sys/fs/bpf/skep-test-" + hex.EncodeToString(name),
		key: seals.New(t), objects: map[string][]byte{}, serial: time.Now().UnixMilli()}
	t.Cleanup(func() {
		w.keepsNothingElse()
		_ = os.RemoveAll(w.bpffs)
	})
	return w
}

// keepsNothingElse holds that RemoveState removes all that agents kept.
func (w *world) keepsNothingElse() {
	dir := filepath.Join(w.dir, "state")
	if err := agent.RemoveState(dir); err != nil {
		w.t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		w.t.Errorf("RemoveState leaves %v, %v", left, err)
	}
}

// object gives an object a digest.
func (w *world) object(body []byte) string {
	sum := sha256.Sum256(body)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects[digest] = body
	return digest
}

func (w *world) fetch(_ context.Context, digest string) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if body, ok := w.objects[digest]; ok {
		return body, nil
	}
	return nil, fmt.Errorf("no object %s", digest)
}

func (w *world) options() agent.Options {
	return agent.Options{
		BPFFS: w.bpffs, StateDir: filepath.Join(w.dir, "state"), Trust: w.key.Trust,
		Fetch:         w.fetch,
		SweepInterval: 200 * time.Millisecond,
		Log:           slog.New(slog.NewTextHandler(logWriter{w.t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

type logWriter struct{ t testing.TB }

func (l logWriter) Write(p []byte) (int, error) {
	l.t.Log(string(p))
	return len(p), nil
}

// intent seals an application of one object.
func (w *world) intent(name, object string, programs ...v1alpha1.Program) intent.Payload {
	w.serial++
	return intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name},
		UID:         "uid-" + name, Serial: w.serial, ImageDigest: "sha256:image",
		ObjectDigest: w.object(programsObject(object)), Programs: programs,
	}
}

func programsObject(name string) []byte { return programs.Object(name) }

func (w *world) seal(p intent.Payload) intent.Envelope {
	w.t.Helper()
	return w.key.Seal(w.t, p)
}

// start runs an agent until stop or the end of the test.
func (w *world) start() (*agent.Agent, func()) {
	w.t.Helper()
	return w.run(w.options())
}

// startWith runs one with other options until the end of the test.
func (w *world) startWith(o agent.Options) *agent.Agent {
	w.t.Helper()
	a, _ := w.run(o)
	return a
}

func (w *world) run(o agent.Options) (*agent.Agent, func()) {
	w.t.Helper()
	a, err := agent.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return a, w.serve(a)
}

// serve has an agent run until the returned function is called, or the test ends.
func (w *world) serve(a *agent.Agent) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v", err)
		}
		if err := a.Close(); err != nil {
			w.t.Errorf("Close = %v", err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// accept hands intents over and waits until they were worked on.
func (w *world) accept(a *agent.Agent, payloads ...intent.Payload) error {
	w.t.Helper()
	w.give(a, payloads...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return a.Settled(ctx)
}

// give seals intents and sends them.
func (w *world) give(a *agent.Agent, payloads ...intent.Payload) {
	w.t.Helper()
	for _, p := range payloads {
		if err := a.Accept(w.seal(p)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// veth makes a pair of interfaces that are up.
func veth(t testing.TB, name, peer string) {
	t.Helper()
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	for _, n := range []string{name, peer} {
		one, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(one); err != nil {
			t.Fatal(err)
		}
	}
}

func on(hook, iface string) []v1alpha1.Attachment {
	return []v1alpha1.Attachment{{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{iface}}}}
}

// rawProgram attaches raw_tp_count, on a hook that every kernel has.
func rawProgram() v1alpha1.Program {
	return v1alpha1.Program{Name: "raw_tp_count", Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "sys_enter"}}}
}

func TestOneProgramLoadsSurvivesAndGoes(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "sk0", "sk1")
	a, stop := w.start()
	p := w.intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "sk0")})
	if err := w.accept(a, p); err != nil {
		t.Fatal(err)
	}
	before := a.Status()
	if len(before) != 1 || len(before[0].Programs) != 1 || len(before[0].Programs[0].Links) != 1 || before[0].Programs[0].ID == 0 {
		t.Fatalf("Status = %+v", before)
	}
	stop()

	a, _ = w.start()
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	after := a.Status()
	if after[0].Programs[0].ID != before[0].Programs[0].ID || after[0].Programs[0].Links[0].ID != before[0].Programs[0].Links[0].ID {
		t.Errorf("the restarted agent did not adopt: %+v then %+v", before, after)
	}
	tomb := intent.Payload{Application: p.Application, UID: p.UID, Serial: p.Serial + 1, Tombstone: true, Reason: "gone from git"}
	if err := w.accept(a, tomb); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(w.bpffs)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("left behind: %s", e.Name())
	}
}
