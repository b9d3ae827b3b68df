package cost_test

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// BenchmarkWindow is the work of one window: the kernel's statistics on and off, and four reads of all programs.
func BenchmarkWindow(b *testing.B) {
	need.Kernel(b)
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("programs=%d", n), func(b *testing.B) {
			for range n {
				p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() {
					_ = p.Close()
					// A kernel that frees a thousand programs at once may hang (see leaks.Hangs).
					<-time.After(time.Millisecond)
				})
			}
			c := cost.New(cost.Options{})
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := threadTime(b)
			for b.Loop() {
				measured(b, c, nil)
			}
			b.ReportMetric(float64(threadTime(b)-began)/float64(b.N)/1e6, "cpu-ms/window")
			b.ReportMetric(100*float64(threadTime(b)-began)/float64(b.N)/float64(cost.Interval), "%-of-cpu")
		})
	}
}

// threadTime is the processor time of this thread, which the caller has locked.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		b.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// path is what programs are on: once through it runs one program once.
type path func(b *testing.B) (once func())

// packets go through a veth with a program on its other end.
func packets(b *testing.B) func() {
	world.Quiet(b)
	world.Veth(b, "ct0", "ct1")
	p, _ := program(b)
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: world.Index(b, "ct0")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	from, err := net.InterfaceByName("ct1")
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Close(fd) })
	frame, to := make([]byte, 64), &unix.SockaddrLinklayer{Ifindex: from.Index, Halen: 6}
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	return func() {
		if err := unix.Sendto(fd, frame, 0, to); err != nil {
			b.Fatal(err)
		}
	}
}

// calls are system calls with a program on one of the two ways in.
func calls(b *testing.B) func() {
	need.Kernel(b)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	l, err := link.Tracepoint("syscalls", "sys_enter_getppid", p, nil)
	if err != nil {
		b.Skip("no tracepoints of system calls here: ", err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return func() { unix.Getppid() }
}

// BenchmarkPath goes through what programs are on, out of windows and in them, in turn. "always-%" is the cost of a
// window of the length that a clock chooses while the path is used without a pause, divided among its fifteen seconds.
func BenchmarkPath(b *testing.B) {
	for name, of := range map[string]path{"packets": packets, "calls": calls} {
		b.Run(name, func(b *testing.B) {
			once := of(b)
			c := cost.New(cost.Options{})
			var off, on costs
			for b.Loop() {
				off.block(b, once)
				measured(b, c, func() { on.block(b, once) })
			}
			length := chosen(b, once)
			b.ReportMetric(length*1e3, "window-ms")
			b.ReportMetric(off.mean(), "ns/off")
			b.ReportMetric(on.mean(), "ns/on")
			b.ReportMetric(100*(on.mean()/off.mean()-1), "window-%")
			b.ReportMetric(100*(on.mean()/off.mean()-1)*length/cost.Interval.Seconds(), "always-%")
			b.ReportMetric(off.p99(), "p99-ns/off")
			b.ReportMetric(on.p99(), "p99-ns/on")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// chosen is the mean length of windows, in seconds, while a path is used without a pause.
func chosen(b *testing.B, once func()) float64 {
	b.Helper()
	c := cost.New(cost.Options{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 10 {
			measured(b, c, nil)
		}
	}()
	for {
		select {
		case <-ended:
			sum := 0.0
			for _, w := range c.Windows() {
				sum += w.Seconds
			}
			return sum / float64(len(c.Windows()))
		default:
			for range 1000 {
				once()
			}
		}
	}
}

// costs are those of a path, one of each block: the mean processor time, and the p99 of the latencies.
type costs struct{ means, p99s []float64 }

// block goes through a path some thousand times.
func (c *costs) block(b *testing.B, once func()) {
	b.Helper()
	const times = 5_000
	// The time of a thread is no other one's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(b)
	for range times {
		once()
	}
	c.means = append(c.means, float64(threadTime(b)-began)/times)
	latencies := make([]time.Duration, times)
	for i := range latencies {
		began := time.Now()
		once()
		latencies[i] = time.Since(began)
	}
	slices.Sort(latencies)
	c.p99s = append(c.p99s, float64(latencies[times*99/100]))
}

// calm is the tenth of those that took least: in the others, another process had the processor or its other thread.
func calm(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/10]
}

func (c *costs) mean() float64 { return calm(c.means) }

func (c *costs) p99() float64 { return calm(c.p99s) }

// BenchmarkSwitch goes through a path while statistics are switched on and off without a pause, and while they are not. A clock switches twice
// in fifteen seconds.
func BenchmarkSwitch(b *testing.B) {
	once := packets(b)
	var off, on costs
	switched := 0
	for b.Loop() {
		off.block(b, once)
		stop, ended := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					ended <- n
					return
				default:
					if stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err == nil {
						_ = stats.Close()
						n += 2
					}
				}
			}
		}()
		on.block(b, once)
		close(stop)
		switched += <-ended
	}
	b.ReportMetric(float64(switched)/float64(b.N), "switches/block")
	b.ReportMetric(off.p99(), "p99-ns/without")
	b.ReportMetric(on.p99(), "p99-ns/with")
	b.ReportMetric(0, "ns/op")
}
