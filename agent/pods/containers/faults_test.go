package containers

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// away waits until the Snapshot says that the runtime does not answer, while it has these
// containers.
func away(t testing.TB, s Source, ids ...string) *AwayError {
	t.Helper()
	gone := new(AwayError)
	until(t, "the runtime to be away", func() error {
		now, err := s.Snapshot()
		if fault := has(ids...)(now); fault != nil {
			t.Fatalf("while the runtime is away: %v", fault)
		}
		if !errors.As(err, &gone) {
			return fmt.Errorf("Snapshot = %w", err)
		}
		return nil
	})
	return gone
}

func TestARuntimeThatIsAwayTakesNothingAway(t *testing.T) {
	daemons(t, func(t *testing.T, d *daemon) {
		p := d.run(&pod{namespace: "blue", name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true})
		stays, ends := d.start(p, "stays"), d.start(p, "ends")
		var wakes atomic.Int64
		s := d.source(func(o *Options) {
			o.Wake = func(...Pod) { wakes.Add(1) }
			o.Timeout = 500 * time.Millisecond
			// What is quick is so by events and processes.
			o.Relist = 500 * time.Millisecond
		})
		got := snapshotOf(t, s, "two containers", has(stays, ends))
		doomed, _ := got.Container(ends)
		before := wakes.Load()
		since := time.Now()
		d.kill()
		if gone := away(t, s, stays, ends); gone.Since.Before(since.Add(-time.Second)) || gone.Since.After(time.Now()) || gone.Endpoint != d.socket {
			t.Errorf("away: %v", gone)
		}
		if n := wakes.Load() - before; n != 0 {
			t.Errorf("%d wakes for a runtime that is away", n)
		}
		// A process ends meanwhile.
		killed := time.Now()
		if err := unix.Kill(doomed.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "the container to be gone", func() error {
			now, _ := s.Snapshot()
			return has(stays)(now)
		})
		if took := time.Since(killed); took > time.Second || wakes.Load() == before {
			t.Errorf("its end took %s, and woke %d times", took, wakes.Load()-before)
		}
		d.boot()
		again := d.start(p, "again")
		snapshotOf(t, s, "the runtime to be back", has(stays, again))
		// It hangs.
		if err := d.cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if gone := away(t, s, stays, again); !strings.Contains(gone.Error(), "DeadlineExceeded") {
			t.Errorf("a runtime that hangs: %v", gone)
		}
		if err := d.cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		d.stop(again)
		snapshotOf(t, s, "the runtime to go on", has(stays))
	})
}

// TestEventsAloneTell reads no list after the first ones.
func TestEventsAloneTell(t *testing.T) {
	d := startDaemon(t, containerd2(t))
	s := d.source(func(o *Options) { o.Interval, o.Relist = time.Hour, time.Hour })
	snapshotOf(t, s, "no container", has())
	p := d.run(&pod{namespace: "blue", name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true})
	id := d.start(p, "main")
	got := snapshotOf(t, s, "a container by its event", has(id))
	if c, _ := got.Container(id); c.Pod.Name != "web" || c.Pod.Sandbox.PID == 0 {
		t.Errorf("%+v", c)
	}
	d.end(p.sandbox)
	got = snapshotOf(t, s, "its end", has())
	if len(got.Pods()) != 0 {
		t.Errorf("pods: %+v", got.Pods())
	}
}

// descriptors is how many this process has.
func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestLivesOfContainersLeaveNothing(t *testing.T) {
	daemons(t, func(t *testing.T, d *daemon) {
		p := d.run(&pod{namespace: "blue", name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true})
		s := d.source(func(o *Options) { o.Interval = 20 * time.Millisecond })
		live := func(attempt int) {
			id := d.create(p, "main", uint32(attempt))
			d.begin(id)
			snapshotOf(t, s, "the container", has(id))
			d.stop(id)
			snapshotOf(t, s, "its end", has())
		}
		live(0)
		fds, goroutines, heap := descriptors(t), runtime.NumGoroutine(), heapInUse()
		for i := range 60 {
			live(i + 1)
		}
		if now := descriptors(t); now > fds+2 {
			t.Errorf("%d descriptors after all lives, and %d before", now, fds)
		}
		if now := runtime.NumGoroutine(); now > goroutines+2 {
			t.Errorf("%d goroutines after all lives, and %d before", now, goroutines)
		}
		if now := heapInUse(); now > heap+1<<20 {
			t.Errorf("%d bytes of heap after all lives, and %d before", now, heap)
		}
		st := s.run.state
		until(t, "nothing to be left", func() error {
			st.mu.Lock()
			defer st.mu.Unlock()
			if len(st.containers) != 0 || len(st.pods) != 1 || len(st.skipped) != 0 {
				return fmt.Errorf("left: %v, %v, %v", st.containers, st.pods, st.skipped)
			}
			return nil
		})
	})
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkSeen reports how long after the runtime started a container, and after its process
// was killed, the Snapshot says so.
func BenchmarkSeen(b *testing.B) {
	for name, bin := range map[string]string{"list": "/usr/bin", "events": containerd2(b)} {
		b.Run(name, func(b *testing.B) {
			d := startDaemon(b, bin)
			p := d.run(&pod{namespace: "blue", name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true})
			wake := make(chan struct{}, 1)
			s := d.source(func(o *Options) {
				o.Wake = func(...Pod) {
					select {
					case wake <- struct{}{}:
					default:
					}
				}
			})
			snapshotOf(b, s, "no container", has())
			var seen, gone, most time.Duration
			wait := func(check func(*Snapshot) error) time.Duration {
				began := time.Now()
				for {
					now, _ := s.Snapshot()
					if check(now) == nil {
						return time.Since(began)
					}
					<-wake
				}
			}
			for i := range b.N {
				id := d.create(p, "main", uint32(i))
				if _, err := d.StartContainer(b.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
					b.Fatal(err)
				}
				took := wait(has(id))
				seen, most = seen+took, max(most, took)
				now, _ := s.Snapshot()
				c, _ := now.Container(id)
				if err := unix.Kill(c.PID, unix.SIGKILL); err != nil {
					b.Fatal(err)
				}
				gone += wait(has())
				d.stop(id)
			}
			perMS := float64(time.Millisecond) * float64(b.N)
			b.ReportMetric(float64(seen)/perMS, "ms-seen")
			b.ReportMetric(float64(most)/float64(time.Millisecond), "ms-seen-most")
			b.ReportMetric(float64(gone)/perMS, "ms-gone")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkList reports what one more look at a list without a change costs, with so many pods of
// one container each.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{100, maxContainers} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFaulty(b)
			f.sandboxes = nil
			st := newState(func(...Pod) {})
			for i := range n {
				id, labels := fmt.Sprintf("%064d", i), map[string]string{"app": "web", "pod-template-hash": "0123456789", "io.kubernetes.pod.name": "web-0123456789-abcde"}
				f.sandboxes = append(f.sandboxes, &cri.PodSandbox{Id: id, Labels: labels})
				f.containers = append(f.containers, &cri.Container{Id: "c" + id[1:], PodSandboxId: id, Labels: labels})
				st.addPod(Pod{SandboxID: id})
				st.add(Container{ID: "c" + id[1:], Pod: Pod{SandboxID: id}}, Pod{SandboxID: id})
			}
			f.serve(b)
			conn, err := grpc.NewClient("unix://"+f.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			o := Options{}
			o.fill()
			r := &reader{looker: looker{opts: o, state: st, client: cri.NewRuntimeServiceClient(conn)}, retries: map[string]retry{}}
			r.begin()
			b.ReportAllocs()
			for b.Loop() {
				if err := r.list(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
