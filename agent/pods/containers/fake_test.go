package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/need"
)

// faulty is a runtime that answers as no real one does. The processes in its answers are real.
type faulty struct {
	cri.UnimplementedRuntimeServiceServer
	socket string
	lists  atomic.Int64
	// hangs begins the ids of containers and sandboxes of which nothing is said.
	hangs string
	// hung is how many calls about them are under way, and most the most at once.
	hung, most atomic.Int64
	// events are sent; nil where the runtime has none.
	events     chan *cri.ContainerEventResponse
	mu         sync.Mutex
	sandboxes  []*cri.PodSandbox
	containers []*cri.Container
	sandbox    map[string]*cri.PodSandboxStatusResponse
	container  map[string]*cri.ContainerStatusResponse
}

func (f *faulty) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &cri.ListPodSandboxResponse{Items: slices.Clone(f.sandboxes)}, nil
}

func (f *faulty) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	f.lists.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	return &cri.ListContainersResponse{Containers: slices.Clone(f.containers)}, nil
}

func (f *faulty) GetContainerEvents(q *cri.GetEventsRequest, to grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	if f.events == nil {
		return f.UnimplementedRuntimeServiceServer.GetContainerEvents(q, to)
	}
	for {
		select {
		case e, ok := <-f.events:
			if !ok {
				return errors.New("events are off")
			}
			if err := to.Send(e); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

// hang waits for the end of a call about what is not answered.
func (f *faulty) hang(ctx context.Context, id string) error {
	if f.hangs == "" || !strings.HasPrefix(id, f.hangs) {
		return nil
	}
	now := f.hung.Add(1)
	defer f.hung.Add(-1)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
		continue
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *faulty) PodSandboxStatus(ctx context.Context, q *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	if err := f.hang(ctx, q.GetPodSandboxId()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.sandbox[q.GetPodSandboxId()]; a != nil {
		return a, nil
	}
	return nil, errors.New("nobody knows this sandbox")
}

func (f *faulty) ContainerStatus(ctx context.Context, q *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	if err := f.hang(ctx, q.GetContainerId()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.container[q.GetContainerId()]; a != nil {
		a = proto.CloneOf(a)
		if !q.GetVerbose() {
			a.Info = nil
		}
		return a, nil
	}
	return nil, errors.New("nobody knows this container")
}

// newFaulty is a runtime with one good pod, with a container of each name.
func newFaulty(t testing.TB, names ...string) *faulty {
	t.Helper()
	f := &faulty{
		socket: filepath.Join(t.TempDir(), "s"), sandbox: map[string]*cri.PodSandboxStatusResponse{}, container: map[string]*cri.ContainerStatusResponse{},
	}
	f.pod("pod", &cri.PodSandboxMetadata{Name: "web", Namespace: "blue", Uid: "u"}, nil, `{"pid": 0}`)
	for _, name := range names {
		f.add(name, "pod", fmt.Sprintf(`{"pid": %d, "sandboxID": "pod"}`, spawn(t, name)))
	}
	return f
}

func (f *faulty) pod(id string, m *cri.PodSandboxMetadata, labels map[string]string, info string) {
	f.sandboxes = append(f.sandboxes, &cri.PodSandbox{Id: id})
	f.sandbox[id] = &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: id, Metadata: m, Labels: labels}, Info: map[string]string{"info": info}}
}

func (f *faulty) add(id, sandbox, info string) {
	f.containers = append(f.containers, &cri.Container{Id: id, PodSandboxId: sandbox})
	f.container[id] = &cri.ContainerStatusResponse{
		Status: &cri.ContainerStatus{Id: id, Metadata: &cri.ContainerMetadata{Name: id}}, Info: map[string]string{"info": info},
	}
}

// serve begins to answer.
func (f *faulty) serve(t testing.TB) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	cri.RegisterRuntimeServiceServer(server, f)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		// A test that is skipped may end before it serves.
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
}

func (f *faulty) source(t testing.TB, change func(*Options)) *source {
	t.Helper()
	o := Options{Endpoint: f.socket, CgroupRoot: need.Cgroup(t), Interval: 10 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	s, err := NewCRI(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*source)
}

// spawn starts a process in a cgroup of its own, below the test's.
func spawn(t testing.TB, cgroup string) int {
	t.Helper()
	need.Kernel(t)
	root := need.Cgroup(t)
	path := filepath.Join(root, cgroup)
	top, _, _ := strings.Cut(cgroup, "/")
	if _, err := os.Stat(filepath.Join(root, top)); err != nil {
		// The first of those in it is ended last.
		t.Cleanup(func() {
			if err := removeTree(filepath.Join(root, top)); err != nil {
				t.Error(err)
			}
		})
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestWhatTheKernelDoesNotConfirmIsLeftOut(t *testing.T) {
	f := newFaulty(t, "good")
	good := fmt.Sprintf(`{"pid": %d}`, spawn(t, "other/good2"))
	f.pod("labels", &cri.PodSandboxMetadata{Name: "web", Namespace: "blue", Uid: "u"}, map[string]string{"a": strings.Repeat("b", maxLabels)}, "{}")
	f.pod("nobody", nil, map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "blue", "io.kubernetes.pod.uid": "u"}, "{}")
	f.pod("other", &cri.PodSandboxMetadata{Name: "web", Namespace: "blue", Uid: "u"}, nil, "{}")
	f.sandbox["other"].Status.Id = "pod"
	f.sandboxes = append(f.sandboxes, &cri.PodSandbox{Id: "unknown"})
	want := map[string]Reason{"nobody": Malformed, "other": Malformed, "unknown": NoAnswer}
	for id, tc := range map[string]struct {
		info string
		why  Reason
	}{
		"elsewhere": {fmt.Sprintf(`{"pid": %d}`, os.Getpid()), OtherCgroup},
		"first":     {`{"pid": 1}`, OtherCgroup},
		"ended":     {`{"pid": 4194304}`, NoProcess},
		"none":      {`{}`, NoProcess},
		"negative":  {`{"pid": -1}`, Malformed},
		"huge":      {`{"pid": 99999999999999999999}`, Malformed},
		"text":      {`{"pid": "1"}`, Malformed},
		"broken":    {`{"pid": 1`, Malformed},
		"empty":     {``, Malformed},
		"deep":      {`{"runtimeSpec":` + strings.Repeat("[", 100000), Malformed},
		"long":      {`{"x": "` + strings.Repeat("x", maxMessage) + `"}`, NoProcess},
		"stolen":    {`{"pid": 1, "sandboxID": "labels"}`, Malformed},
		"d2":        {good, OtherCgroup},
	} {
		f.add(id, "pod", tc.info)
		want[id] = tc.why
	}
	f.add("of-labels", "labels", good)
	f.add("renamed", "pod", good)
	f.container["renamed"].Status.Id = "good"
	f.add("../good", "pod", good)
	f.add("bare", "pod", "")
	f.container["bare"].Info = nil
	want["of-labels"], want["renamed"], want["../good"], want["bare"] = OtherCgroup, Malformed, Malformed, Malformed
	f.serve(t)
	s := f.source(t, nil)
	got := snapshotOf(t, s, "the good container", has("good"))
	for _, one := range got.Skipped() {
		if want[one.ID] != one.Reason || one.Err == nil {
			t.Errorf("%s: %s, want %s: %v", one.ID, one.Reason, want[one.ID], one.Err)
		}
		if len(one.Err.Error()) > 2000 {
			t.Errorf("%s: the error has %d bytes", one.ID, len(one.Err.Error()))
		}
		delete(want, one.ID)
	}
	if len(want) > 0 {
		t.Errorf("not left out: %v", want)
	}
	// A pod hides from nobody who chooses all of them.
	if i := slices.IndexFunc(got.Pods(), func(p Pod) bool { return p.SandboxID == "labels" }); i < 0 || got.Pods()[i].Name != "web" ||
		len(got.Pods()[i].Labels) > 0 {
		t.Errorf("a pod with labels beyond the bound: %v", got.Pods())
	}
	if c, _ := got.Container("good"); c.Pod.CgroupPath != "" || c.Pod.NetnsID == 0 {
		t.Errorf("%+v", c)
	}
	// What is left out is looked at again.
	f.mu.Lock()
	f.container["d2"].Info["info"] = fmt.Sprintf(`{"pid": %d}`, spawn(t, "d2"))
	f.mu.Unlock()
	snapshotOf(t, s, "the one that is right by now", has("good", "d2"))
}

// TestSystemdAndCRIO has the cgroups of systemd, and a sandbox without a process.
func TestSystemdAndCRIO(t *testing.T) {
	f := newFaulty(t)
	for _, tc := range []struct{ sandbox, uid, id, cgroup, own string }{
		{"one", "1-2", "abc", "kubepods.slice/kubepods-pod1_2.slice/cri-containerd-abc.scope", ""},
		{"two", "3-4", "def", "kubepods.slice/kubepods-pod3_4.slice/crio-def.scope/container", "kubepods.slice/kubepods-pod3_4.slice/crio-def.scope"},
	} {
		f.pod(tc.sandbox, &cri.PodSandboxMetadata{Name: tc.sandbox, Namespace: "blue", Uid: tc.uid}, nil, `{"pid": 0}`)
		f.add(tc.id, tc.sandbox, fmt.Sprintf(`{"pid": %d, "runtimeSpec": {"linux": {"cgroupsPath": "x.slice:y:z"}}}`, spawn(t, tc.cgroup)))
	}
	f.serve(t)
	s := f.source(t, nil)
	got := snapshotOf(t, s, "both containers", has("abc", "def"))
	for id, want := range map[string]string{
		"abc": "kubepods.slice/kubepods-pod1_2.slice/cri-containerd-abc.scope", "def": "kubepods.slice/kubepods-pod3_4.slice/crio-def.scope",
	} {
		c, _ := got.Container(id)
		if c.CgroupPath != want || c.Pod.CgroupPath != filepath.Dir(want) || c.Pod.CgroupID == 0 || c.Pod.NetnsID == 0 ||
			c.Pod.Sandbox.PID != 0 {
			t.Errorf("%+v", c)
		}
	}
	// A pod without a process goes when the runtime has it no more.
	if len(got.Pods()) != 3 {
		t.Errorf("pods: %+v", got.Pods())
	}
	f.mu.Lock()
	f.sandboxes = f.sandboxes[1:]
	f.mu.Unlock()
	snapshotOf(t, s, "the pod to go", func(s *Snapshot) error {
		if len(s.Pods()) != 2 {
			return fmt.Errorf("pods: %+v", s.Pods())
		}
		return nil
	})
	// What has a process stays, although the runtime has lost it.
	f.mu.Lock()
	f.sandboxes, f.containers = nil, nil
	f.mu.Unlock()
	lists := f.lists.Load()
	got = snapshotOf(t, s, "lists without them", func(*Snapshot) error {
		if f.lists.Load() < lists+3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := has("abc", "def")(got); err != nil || len(got.Pods()) != 2 {
		t.Errorf("a runtime that lost its record: %v, %+v", err, got.Pods())
	}
}

// TestEventsOfAnyKind has events that name no sandbox, or nothing that is there.
func TestEventsOfAnyKind(t *testing.T) {
	f := newFaulty(t, "good")
	f.events = make(chan *cri.ContainerEventResponse)
	f.serve(t)
	s := f.source(t, func(o *Options) { o.Interval, o.Relist = time.Hour, time.Hour })
	snapshotOf(t, s, "the container", has("good"))
	send := func(id string, kind cri.ContainerEventType, sandbox string) {
		e := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: kind}
		if sandbox != "" {
			e.PodSandboxStatus = &cri.PodSandboxStatus{Id: sandbox}
		}
		f.events <- e
	}
	started := cri.ContainerEventType_CONTAINER_STARTED_EVENT
	send("ghost", started, "pod")
	send("", started, "")
	send("ghost", cri.ContainerEventType_CONTAINER_STOPPED_EVENT, "pod")
	send("good", cri.ContainerEventType_CONTAINER_DELETED_EVENT, "pod")
	send("good", 99, "")
	until(t, "the list that an event without an id asks for", func() error {
		if n := f.lists.Load(); n != 2 {
			return fmt.Errorf("%d lists", n)
		}
		return nil
	})
	f.mu.Lock()
	f.add("alone", "pod", fmt.Sprintf(`{"pid": %d}`, spawn(t, "alone")))
	f.add("known", "pod", fmt.Sprintf(`{"pid": %d}`, spawn(t, "known")))
	f.mu.Unlock()
	lists := f.lists.Load()
	send("known", started, "pod")
	got := snapshotOf(t, s, "the container of an event", has("good", "known"))
	if len(got.Skipped()) != 0 || f.lists.Load() != lists {
		t.Errorf("skipped: %v; %d lists for an event", got.Skipped(), f.lists.Load()-lists)
	}
	send("alone", started, "")
	snapshotOf(t, s, "the container of an event without a sandbox", has("good", "known", "alone"))
	// Without events, the list is read.
	close(f.events)
	away := f.source(t, nil)
	snapshotOf(t, away, "the containers by the list", has("good", "known", "alone"))
}

func TestALookWithoutTheRightNamesTheCapability(t *testing.T) {
	pid := spawn(t, "abc")
	n, err := openNode(need.Cgroup(t))
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	drop.Capabilities(t, func() { _, err = n.confirm(pid, "abc", "") }, unix.CAP_SYS_PTRACE)
	why := new(skip)
	if !errors.As(err, &why) || why.reason != Unreadable || !strings.Contains(err.Error(), "this process lacks CAP_SYS_PTRACE; grant it") {
		t.Errorf("confirm = %v", err)
	}
}

func TestTooMuchIsAnErrorAndTakesNothingAway(t *testing.T) {
	for sentence, tc := range map[string]struct {
		grow func(f *faulty)
		want string
	}{
		"containers": {func(f *faulty) {
			for i := range maxContainers {
				f.containers = append(f.containers, &cri.Container{Id: fmt.Sprint(i), PodSandboxId: "pod"})
			}
		}, "list containers: the runtime has 4097, and at most 4096 are read"},
		"bytes": {func(f *faulty) {
			f.containers = append(f.containers, &cri.Container{Id: "x", Labels: map[string]string{"x": strings.Repeat("x", maxMessage)}})
		}, "received message larger than max"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFaulty(t, "good")
			f.serve(t)
			s := f.source(t, nil)
			snapshotOf(t, s, "the container", has("good"))
			f.mu.Lock()
			tc.grow(f)
			f.mu.Unlock()
			gone := away(t, s, "good")
			if !strings.Contains(gone.Error(), tc.want) {
				t.Errorf("Snapshot = %v", gone)
			}
		})
	}
}

func TestAContainerThatHangsTheRuntimeDelaysNoOther(t *testing.T) {
	f := newFaulty(t, "hangs", "good")
	f.hangs = "hangs"
	f.serve(t)
	s := f.source(t, func(o *Options) { o.Timeout = 100 * time.Millisecond })
	got := snapshotOf(t, s, "the other container", has("good"))
	if left := got.Skipped(); len(left) != 1 || left[0].ID != "hangs" || left[0].Reason != NoAnswer || left[0].Pod.Name == "" {
		t.Errorf("skipped: %+v", left)
	}
}

// TestANamespaceWhosePodsHangDelaysNoOther has the runtime answer nothing about a hundred pods of one
// namespace, which come first in its list.
func TestANamespaceWhosePodsHangDelaysNoOther(t *testing.T) {
	f := newFaulty(t, "good")
	f.hangs = "hangs"
	for i := range 100 {
		id := fmt.Sprint("hangs-", i)
		f.sandboxes = slices.Insert(f.sandboxes, 0, &cri.PodSandbox{Id: id, Metadata: &cri.PodSandboxMetadata{Namespace: "red"}})
		f.containers = slices.Insert(f.containers, 0, &cri.Container{Id: id + "-main", PodSandboxId: id})
	}
	f.serve(t)
	s := f.source(t, func(o *Options) { o.Timeout = time.Second })
	began := time.Now()
	got := snapshotOf(t, s, "the other container", has("good"))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the other container is seen after %s", took)
	}
	if left := got.Skipped(); len(left) < 100 || left[0].Pod.Namespace != "red" {
		t.Errorf("%d are left out, want all that hang with the namespaces that the list says: %+v", len(left), left[0])
	}
}

// TestNamespacesWhosePodsHangDelayNoOther has the runtime answer nothing about the pods of sixty-four namespaces, of which
// each has one call under way while the other pod is seen.
func TestNamespacesWhosePodsHangDelayNoOther(t *testing.T) {
	const namespaces = 64
	f := newFaulty(t, "good")
	f.hangs = "hangs"
	for i := range 3 * namespaces {
		f.sandboxes = slices.Insert(f.sandboxes, 0, &cri.PodSandbox{Id: fmt.Sprint("hangs-", i),
			Metadata: &cri.PodSandboxMetadata{Namespace: fmt.Sprint("red-", i%namespaces)}})
	}
	f.serve(t)
	s := f.source(t, nil)
	got := snapshotOf(t, s, "the other container", has("good"))
	if n := f.hung.Load(); n == 0 || f.most.Load() > namespaces {
		t.Errorf("%d calls hang, and at most %d did; want some, and one of each namespace at most", n, f.most.Load())
	}
	if left := got.Skipped(); len(left) < 3*namespaces {
		t.Errorf("%d are left out, want all that hang", len(left))
	}
}

// TestAnAnswerThatHangsHoldsUpNoEvent has a pod appear while the runtime does not answer about another one.
func TestAnAnswerThatHangsHoldsUpNoEvent(t *testing.T) {
	f := newFaulty(t)
	f.hangs, f.events = "hangs", make(chan *cri.ContainerEventResponse)
	f.serve(t)
	s := f.source(t, func(o *Options) { o.Interval, o.Relist = time.Hour, time.Hour })
	snapshotOf(t, s, "no container", has())
	f.mu.Lock()
	f.add("good", "pod", fmt.Sprintf(`{"pid": %d, "sandboxID": "pod"}`, spawn(t, "good")))
	f.mu.Unlock()
	for id, namespace := range map[string]string{"hangs": "red", "good": "blue"} {
		sandbox := &cri.PodSandboxStatus{Id: "pod", Metadata: &cri.PodSandboxMetadata{Namespace: namespace}}
		f.events <- &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: cri.ContainerEventType_CONTAINER_STARTED_EVENT, PodSandboxStatus: sandbox}
		if id == "hangs" {
			until(t, "the call to hang", func() error {
				if f.hung.Load() == 0 {
					return errors.New("none does")
				}
				return nil
			})
		}
	}
	snapshotOf(t, s, "the other container", has("good"))
	if f.hung.Load() == 0 {
		t.Error("the other container is seen after the call ended")
	}
}

func TestNothingIsConnectedBeforeSomebodyAsks(t *testing.T) {
	f := newFaulty(t, "good")
	f.serve(t)
	fds, goroutines := descriptors(t), runtime.NumGoroutine()
	s := f.source(t, func(o *Options) { o.IdleAfter = 300 * time.Millisecond })
	if runtime.NumGoroutine() != goroutines || descriptors(t) != fds || f.lists.Load() != 0 {
		t.Error("a source that nobody asks works")
	}
	snapshotOf(t, s, "the container", has("good"))
	// Nobody asks any more.
	until(t, "the source to stop", func() error {
		if n := runtime.NumGoroutine(); n > goroutines {
			return fmt.Errorf("%d goroutines, and %d before", n, goroutines)
		}
		if n := descriptors(t); n > fds {
			return fmt.Errorf("%d descriptors, and %d before", n, fds)
		}
		return nil
	})
	if got, err := s.Snapshot(); !errors.Is(err, ErrNotRead) || len(got.containers) != 0 || got.IsWhole() {
		t.Errorf("after a rest: %v, %v", got, err)
	}
	snapshotOf(t, s, "the container again", has("good"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed source: %v", err)
	}
}

func TestAWakeIsAChange(t *testing.T) {
	f := newFaulty(t, "good")
	f.serve(t)
	var wakes atomic.Int64
	s := f.source(t, func(o *Options) { o.Wake = func(...Pod) { wakes.Add(1) } })
	first := snapshotOf(t, s, "the container", has("good"))
	n, lists := wakes.Load(), f.lists.Load()
	until(t, "five lists more", func() error {
		if f.lists.Load() < lists+5 {
			return errors.New("not yet")
		}
		return nil
	})
	if again, _ := s.Snapshot(); wakes.Load() != n || again != first {
		t.Errorf("%d wakes without a change", wakes.Load()-n)
	}
}

func TestNoRuntimeIsAnError(t *testing.T) {
	var wakes atomic.Int64
	s, err := NewCRI(Options{Endpoint: "/no/such/socket", CgroupRoot: need.Cgroup(t), Wake: func(...Pod) { wakes.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if now, _ := s.Snapshot(); now.IsWhole() {
		t.Error("a Snapshot without an answer is whole")
	}
	if gone := away(t, s); !strings.Contains(gone.Error(), "read containers of /no/such/socket: no valid answer since 2") {
		t.Errorf("Snapshot = %v", gone)
	}
	until(t, "a wake", func() error {
		if wakes.Load() != 1 {
			return fmt.Errorf("%d wakes", wakes.Load())
		}
		return nil
	})
	for _, o := range []Options{{}, {Endpoint: "relative", CgroupRoot: "/x"}, {Endpoint: "/x"}} {
		if _, err := NewCRI(o); err == nil {
			t.Errorf("NewCRI(%+v) fails not", o)
		}
	}
}

func FuzzDetails(f *testing.F) {
	f.Add(`{"sandboxID":"a","pid":42,"runtimeSpec":{"linux":{"cgroupsPath":"/kubepods/x"}}}`)
	f.Add(`{"pid":1e3}`)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDetails(map[string]string{"info": text})
		if err != nil {
			return
		}
		if !json.Valid([]byte(text)) || d.PID < 0 || d.PID > 1<<22 {
			t.Errorf("%q: %+v", text, d)
		}
		for _, in := range []string{"/kubepods/pod1/abc/x", "/"} {
			if own := ownCgroup(in, "abc", d.RuntimeSpec.Linux.CgroupsPath); own != "" && !strings.HasPrefix(in, own) {
				t.Errorf("%q leads out of the process's cgroup: %q", d.RuntimeSpec.Linux.CgroupsPath, own)
			}
		}
	})
}

// TestAContainerHidesByNoEnvironment: where the runtime says more of a container than is read, the kernel says which
// processes it has, whatever else is in its pod's cgroup. The first one that the runtime started counts. The pod has no
// process of its own.
func TestAContainerHidesByNoEnvironment(t *testing.T) {
	f := newFaulty(t)
	spawn(t, "pods/other/podu/large")
	first := spawn(t, "pods/podu/crio-large.scope/init")
	for _, other := range []string{"crio-large.scope", "crio-large.scope/a", "crio-conmon-large.scope", "crio-larger.scope", "other/crio-large.scope"} {
		spawn(t, "pods/podu/"+other)
	}
	f.add("large", "pod", `{"x": "`+strings.Repeat("x", maxMessage)+`"}`)
	f.serve(t)
	got := snapshotOf(t, f.source(t, nil), "the container", has("large"))
	if c, _ := got.Container("large"); c.PID != first || c.CgroupPath != "pods/podu/crio-large.scope" || c.Pod.CgroupPath != "pods/podu" {
		t.Errorf("%+v, want the process %d", c, first)
	}
}

// TestWhatAContainerStartsIsNotItsFirstProcess: its parent is in the container.
func TestWhatAContainerStartsIsNotItsFirstProcess(t *testing.T) {
	pid := spawn(t, "container/below")
	n, err := openNode(need.Cgroup(t))
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	own, err := process.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	in, err := own.Cgroup()
	if err != nil {
		t.Fatal(err)
	}
	if n.isChildIn(pid, "container") || !n.isChildIn(pid, strings.Trim(path.Join(n.origin, in), "/")) || !n.isChildIn(1<<22, "container") {
		t.Error("parents are told apart wrongly")
	}
}
