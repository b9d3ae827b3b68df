package cost_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
)

// program loads a program that counts packets.
func program(t testing.TB) (p *ebpf.Program, id uint32) {
	t.Helper()
	need.Kernel(t)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("xdp_count")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, p = range c.Programs {
	}
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	of, _ := info.ID()
	return p, uint32(of)
}

// run has a program run.
func run(t testing.TB, p *ebpf.Program, times uint32) {
	t.Helper()
	if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: times}); err != nil {
		t.Fatal(err)
	}
}

// measured is a window during which something happens.
func measured(t testing.TB, c *cost.Clock, during func()) {
	t.Helper()
	if err := c.Measure(t.Context(), during); err != nil {
		t.Fatal(err)
	}
}

// counts reports whether the kernel counts the runs of a program now.
func counts(t testing.TB, p *ebpf.Program) bool {
	t.Helper()
	before, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	run(t, p, 10)
	after, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return after.RunCount > before.RunCount
}

// quiet reports whether the kernel counts nothing: at once, or soon, as another process may have a window.
func quiet(t testing.TB, p *ebpf.Program) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return await.Until(ctx, 50*time.Millisecond, func() error {
		if counts(t, p) {
			return errors.New("the kernel counts")
		}
		return nil
	}) == nil
}

// TestStatisticsAreOffBetweenWindows unless another process wants them, or the administrator.
func TestStatisticsAreOffBetweenWindows(t *testing.T) {
	p, id := program(t)
	c := cost.New(cost.Options{})
	if !quiet(t, p) {
		t.Skip("another process has the kernel's statistics enabled")
	}
	measured(t, c, func() {
		if !counts(t, p) {
			t.Error("in a window nothing counts")
		}
	})
	if !quiet(t, p) {
		t.Error("after a window the kernel still counts")
	}
	other, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	measured(t, c, func() { run(t, p, 20) })
	if !counts(t, p) {
		t.Error("after a window nothing counts, though another process has statistics enabled")
	}
	_ = other.Close()
	if runs := c.Latest()[id].Runs; runs != 20 {
		t.Errorf("beside another process it sees %d runs of 20", runs)
	}
}

// TestTheAdministratorsSettingStays: a clock reads, and switches nothing.
func TestTheAdministratorsSettingStays(t *testing.T) {
	p, id := program(t)
	const sysctl = "/proc/sys/kernel/bpf_stats_enabled"
	was, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(was)) != "0" {
		t.Skip("the setting is on already")
	}
	set := func(to []byte) {
		t.Helper()
		if err := os.WriteFile(sysctl, to, 0); err != nil {
			t.Skip("the setting cannot be changed here: ", err)
		}
	}
	set([]byte("1"))
	t.Cleanup(func() { set(was) })
	c := cost.New(cost.Options{})
	// Where the setting is there, no right to enable statistics is needed.
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range entries {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "bpf-stats") {
				n++
			}
		}
		return n
	}
	measured(t, c, func() {
		run(t, p, 20)
		if n := descriptors(); n != 0 {
			t.Errorf("it enabled statistics %d times though they are on", n)
		}
	})
	if now, err := os.ReadFile(sysctl); err != nil || strings.TrimSpace(string(now)) != "1" || !counts(t, p) {
		t.Errorf("after the window the setting is %s, %v", now, err)
	}
	if runs := c.Latest()[id].Runs; runs != 20 {
		t.Errorf("it sees %d runs of 20", runs)
	}
}

// TestWithoutTheRightNothingIsMeasured: the clock says so once, and ends.
func TestWithoutTheRightNothingIsMeasured(t *testing.T) {
	need.Kernel(t)
	var log bytes.Buffer
	c := cost.New(cost.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The thread ends with the goroutine, and its rights with it.
		runtime.LockOSThread()
		header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		if err := c.Measure(t.Context(), func() {}); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Measure: %v", err)
		}
		c.Run(t.Context())
	}()
	await.True(t, "the clock to end", time.Minute, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if n := strings.Count(log.String(), "CAP_SYS_ADMIN"); n != 1 || c.Latest() != nil {
		t.Errorf("%d lines: %s, %v", n, &log, c.Latest())
	}
}

// TestAHotProgramEndsItsWindowEarly, and what is measured is right for the length that it had: one program runs ten times as often as another.
func TestAHotProgramEndsItsWindowEarly(t *testing.T) {
	hot, hotID := program(t)
	seldom, seldomID := program(t)
	c := cost.New(cost.Options{})
	c.MostRuns(1_000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			run(t, hot, 100)
			run(t, seldom, 10)
		}
	}()
	await.True(t, "a window to end early", time.Minute, func() bool {
		before := c.Totals()
		measured(t, c, nil)
		w := c.Windows()
		length := w[len(w)-1].Seconds
		a, b := c.Latest()[hotID], c.Latest()[seldomID]
		if ratio := float64(a.Runs) / float64(b.Runs); a.Runs > 1_000 && (ratio < 8 || ratio > 12.5) {
			t.Errorf("%d runs beside %d: a ratio of %.1f, not 10", a.Runs, b.Runs, ratio)
		}
		// The counters have the rate of the window, as if it had lasted for the whole interval.
		rate := (c.Totals()[hotID].Runs - before[hotID].Runs) / cost.Interval.Seconds()
		if of := rate / (float64(a.Runs) / a.WindowSeconds); of < 0.99 || of > 1.01 || a.WindowSeconds > length {
			t.Errorf("the counter has %.0f runs a second of %d in %.3f s", rate, a.Runs, a.WindowSeconds)
		}
		return length < cost.Length.Seconds()
	})
}

// TestTheClockRunsAndEnds: the first window is at once, and in the middle of it or of a rest Run ends with its context.
func TestTheClockRunsAndEnds(t *testing.T) {
	p, id := program(t)
	for _, in := range []string{"a window", "a rest"} {
		c, log := cost.New(cost.Options{}), "the clock to have measured"
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { c.Run(ctx); close(ended) }()
		if in == "a rest" {
			await.True(t, log, time.Minute, func() bool { _, has := c.Latest()[id]; return has })
		} else {
			await.True(t, "the kernel to count", time.Minute, func() bool { return counts(t, p) })
		}
		cancel()
		await.True(t, "the clock to end in "+in, cost.Length/2+time.Minute, func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
	}
}
