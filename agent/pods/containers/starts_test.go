package containers

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containerd/nri/pkg/api"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/nri"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// hearer implements Starts by functions. It chooses all pods but those of the namespace other.
type hearer struct {
	chooses func(Container) bool
	attach  func(context.Context, Container)
	// asked, attached and unseen are how often they were called.
	asked, attached, unseen atomic.Int64
}

func (l *hearer) Unseen(Container) { l.unseen.Add(1) }

func (l *hearer) Chooses(c Container) bool {
	l.asked.Add(1)
	if l.chooses != nil {
		return l.chooses(c)
	}
	return c.Pod.Namespace != "other"
}

func (l *hearer) Attach(ctx context.Context, c Container) {
	l.attached.Add(1)
	if l.attach != nil {
		l.attach(ctx, c)
	}
}

// TestAContainerThatTheRuntimeDoesNotShowIsUnseen has the runtime not answer for one that starts.
func TestAContainerThatTheRuntimeDoesNotShowIsUnseen(t *testing.T) {
	f := newFaulty(t)
	f.hangs = "hangs"
	f.serve(t)
	conn, err := dialCRI(f.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	heard, o := new(hearer), Options{}
	o.fill()
	l := &listener{looker: looker{opts: o, kept: newKept(), state: newState(func(...Pod) {}), client: cri.NewRuntimeServiceClient(conn)}, starts: heard}
	for id, want := range map[string]int64{"hangs": 1, "unknown": 0} {
		heard.unseen.Store(0)
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		l.starting(ctx, &api.StartContainerRequest{Pod: &api.PodSandbox{Id: id, Uid: "u", Namespace: "blue", Name: "web"},
			Container: &api.Container{Id: id + "-main", PodSandboxId: id, Name: "main", Pid: 1}})
		stop()
		if heard.attached.Load() != 0 || heard.unseen.Load() != want {
			t.Errorf("%s: attached in %d, unseen %d times, want %d", id, heard.attached.Load(), heard.unseen.Load(), want)
		}
	}
}

// announced is a Source of a containerd 2, whose listener is registered.
func (d *daemon) announced(l *hearer, registered int64) Source {
	d.t.Helper()
	s := d.reads(func(o *Options) { o.NRI = filepath.Join(d.dir, "n.sock") })
	s.(Announcer).AnnounceTo(l)
	d.registered(s, l, registered)
	return s
}

// registered starts containers until the listener was asked about more than so many.
func (d *daemon) registered(s Source, l *hearer, more int64) {
	d.t.Helper()
	p := d.run(&pod{namespace: "other", name: fmt.Sprint("probe-", more), uid: fmt.Sprintf("99999999-0000-0000-0000-%012d", more), hostNetwork: true})
	defer d.end(p.sandbox)
	tries := uint32(0)
	until(d.t, "containers to be announced", func() error {
		_, _ = s.Snapshot()
		id := d.create(p, "probe", tries)
		d.begin(id)
		d.stop(id)
		if tries++; l.asked.Load() <= more {
			return errors.New("none is")
		}
		return nil
	})
}

func (d *daemon) pod(namespace string) *pod {
	d.t.Helper()
	return d.run(&pod{namespace: namespace, name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true})
}

// life starts a container that does one thing at once and ends, and waits for its end.
func (d *daemon) life(p *pod, attempt uint32) {
	d.t.Helper()
	id := d.create(p, "first", attempt, "/first")
	d.begin(id)
	until(d.t, "the container to end", func() error {
		is, err := d.ContainerStatus(d.t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
		if state := is.GetStatus().GetState(); err == nil && state != cri.ContainerState_CONTAINER_EXITED {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
	d.stop(id)
}

// counter is a program that counts calls of work in containers.
type counter struct {
	t       *testing.T
	program *ebpf.Program
	counts  *ebpf.Map
	address uint64
	mu      sync.Mutex
	link    link.Link
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("uprobe_count")))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loaded.Close)
	file, err := elf.NewFile(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	return &counter{t: t, program: loaded.Programs["uprobe_count"], counts: loaded.Maps["counts"], address: file.Entry - file.Progs[0].Vaddr + file.Progs[0].Off}
}

// attach attaches it at the first instruction of the binary of a container.
func (c *counter) attach(to Container) {
	file, err := link.OpenExecutable(fmt.Sprintf("/proc/%d/root/first", to.PID))
	if err != nil {
		// It ended meanwhile.
		return
	}
	made, err := file.Uprobe("", c.program, &link.UprobeOptions{Address: c.address})
	if err != nil {
		c.t.Errorf("attach: %v", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = made
}

// detach takes it away.
func (c *counter) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		_ = c.link.Close()
	}
	c.link = nil
}

func (c *counter) seen() (sum uint64) {
	c.t.Helper()
	var each []uint64
	if err := c.counts.Lookup(uint32(0), &each); err != nil {
		c.t.Fatal(err)
	}
	for _, one := range each {
		sum += one
	}
	return sum
}

func TestTheFirstInstructionOfAnAnnouncedContainerIsCounted(t *testing.T) {
	d := startDaemon(t, containerd2(t))
	c := newCounter(t)
	var source Source
	l := &hearer{attach: func(_ context.Context, of Container) {
		if now, err := source.Snapshot(); err != nil || now == nil {
			t.Errorf("read containers: %v", err)
		} else if got, ok := now.Container(of.ID); !ok || got.Process != of.Process {
			t.Errorf("container %s is not among %v", of.ID, now.containers)
		}
		c.attach(of)
	}}
	source = d.announced(l, 0)
	p := d.pod("blue")
	const lives = 100
	for i := range uint32(lives) {
		d.life(p, i)
		c.detach()
	}
	if got := c.seen(); got != lives {
		t.Errorf("%d first instructions of %d are counted", got, lives)
	}
	d.end(p.sandbox)
	snapshotOf(t, source, "all to be gone", has())
}

func TestAContainerThatIsNotAnnouncedRunsBeforeAnythingIsAttached(t *testing.T) {
	d := startDaemon(t, containerd2(t))
	c, s := newCounter(t), d.source(nil)
	snapshotOf(t, s, "the list", has())
	p := d.pod("blue")
	ctx, stop := context.WithCancel(t.Context())
	var looks sync.WaitGroup
	looks.Go(func() {
		known := map[string]bool{}
		for ctx.Err() == nil {
			now, _ := s.Snapshot()
			for _, one := range now.containers {
				if !known[one.ID] {
					known[one.ID] = true
					c.attach(one)
				}
			}
		}
	})
	const lives = 10
	for i := range uint32(lives) {
		d.life(p, i)
		c.detach()
	}
	stop()
	looks.Wait()
	if got := c.seen(); got == lives {
		t.Errorf("all %d first instructions are counted without an announcement: the other test shows nothing", got)
	}
}

func TestAContainerThatIsHeldUpStartsInTime(t *testing.T) {
	d := startDaemon(t, containerd2(t))
	l := &hearer{attach: func(ctx context.Context, _ Container) { <-ctx.Done() }}
	s := d.announced(l, 0)
	slow, other := d.pod("slow"), d.run(&pod{namespace: "other", name: "web", uid: "22222222-2222-2222-2222-222222222222", hostNetwork: true})
	id := d.create(slow, "main", 0)
	began := time.Now()
	d.begin(id)
	if took := time.Since(began); took < nri.LongestHold || l.attached.Load() != 1 {
		t.Errorf("it started after %v, and %d containers were held up", took, l.attached.Load())
	}
	d.start(other, "main")
	if n := l.attached.Load(); n != 1 {
		t.Errorf("a container that nobody chooses was held up: %d are", n)
	}
	// The plug-in was in time: the runtime asks it still.
	d.start(slow, "second")
	if n := l.attached.Load(); n != 2 {
		t.Errorf("%d containers were held up, want 2", n)
	}
	snapshotOf(t, s, "all to run", func(now *Snapshot) error {
		if len(now.containers) != 3 {
			return fmt.Errorf("%d containers", len(now.containers))
		}
		return nil
	})
}

func TestContainersStartWhateverBecomesOfThePlugin(t *testing.T) {
	d := startDaemon(t, containerd2(t))
	stuck := make(chan struct{})
	l := &hearer{chooses: func(c Container) bool {
		if c.Name == "stuck" {
			<-stuck
		}
		return c.Pod.Namespace != "other"
	}}
	second := &hearer{}
	s := d.announced(l, 0)
	twice := d.announced(second, 0)
	p := d.run(&pod{namespace: "blue", name: "web", uid: "33333333-3333-3333-3333-333333333333", hostNetwork: true})
	d.start(p, "stuck")
	if n := second.attached.Load(); n != 1 {
		t.Errorf("another plug-in of the same name was asked about %d containers, want 1", n)
	}
	d.start(p, "main")
	if n := l.attached.Load(); n != 1 {
		t.Errorf("a plug-in with a call that hangs heard of %d other containers, want 1", n)
	}
	close(stuck)
	d.kill()
	d.boot()
	d.start(p, "second")
	d.registered(s, l, l.asked.Load())
	d.registered(twice, second, second.asked.Load())
	before := l.attached.Load()
	d.start(p, "third")
	if n := l.attached.Load() - before; n != 1 {
		t.Errorf("after the runtime restarted, %d containers were announced, want 1", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before = l.asked.Load()
	d.start(p, "fourth")
	if n := l.asked.Load() - before; n != 0 {
		t.Errorf("a source that is closed was asked about %d containers", n)
	}
}

func TestARuntimeWithoutNRIHasItsContainersReadFromCRI(t *testing.T) {
	d := startDaemon(t, "/usr/bin")
	s, l := d.reads(func(o *Options) { o.NRI = filepath.Join(d.dir, "n.sock") }), &hearer{}
	s.(Announcer).AnnounceTo(l)
	id := d.start(d.pod("blue"), "main")
	snapshotOf(t, s, "the container", has(id))
	if n := l.asked.Load(); n != 0 {
		t.Errorf("%d containers were announced", n)
	}
}
