package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
)

// BenchmarkLoadAndAttach takes one program from its bytes to its hook, by a reconcile
// of the agent's loop (look, load, pin, attach, tell) and with the library alone,
// one after the other, and reports how many times longer the agent takes. What
// Accept does before, a synced write, is reported apart.
func BenchmarkLoadAndAttach(b *testing.B) {
	if testing.Short() {
		b.Skip()
	}
	for _, hook := range []string{"xdp", "tracepoint"} {
		b.Run(hook, func(b *testing.B) {
			w := world.New(b)
			world.Veth(b, "bn0", "bn1")
			o := w.Options()
			o.Log, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), time.Hour
			a, err := agent.New(o)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = a.Close() })
			var agent, bare, accept time.Duration
			byAgent := func() {
				x, y := loadByAgent(w, b, a, hook)
				accept, agent = accept+x, agent+y
			}
			// In turns of both orders: what was detached last slows the next.
			for odd := false; b.Loop(); odd = !odd {
				if odd {
					byAgent()
				}
				bare += loadBare(b, hook)
				if !odd {
					byAgent()
				}
			}
			b.ReportMetric(float64(accept.Microseconds())/float64(b.N), "accept-µs/op")
			b.ReportMetric(float64(agent.Microseconds())/float64(b.N), "agent-µs/op")
			b.ReportMetric(float64(bare.Microseconds())/float64(b.N), "bare-µs/op")
			b.ReportMetric(float64(agent)/float64(bare), "ratio")
		})
	}
}

func objectFor(hook string) (object, program string) {
	if hook == "xdp" {
		return "xdp_count", "count_packets"
	}
	return "tracepoint_count", "tracepoint_count"
}

func loadBare(b *testing.B, hook string) time.Duration {
	object, program := objectFor(hook)
	began := time.Now()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(world.ProgramsObject(object)))
	if err != nil {
		b.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		b.Fatal(err)
	}
	var l link.Link
	if hook == "xdp" {
		l, err = link.AttachXDP(link.XDPOptions{Interface: world.Index(b, "bn0"), Program: coll.Programs[program]})
	} else {
		l, err = link.Tracepoint("syscalls", "sys_enter_getpgid", coll.Programs[program], nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	coll.Close()
	return took
}

func loadByAgent(w *world.World, b *testing.B, a *agent.Agent, hook string) (accept, load time.Duration) {
	object, program := objectFor(hook)
	at := world.On("xdp", "bn0")
	if hook != "xdp" {
		at = []v1alpha1.Attachment{{Hook: hook, Tracepoint: "syscalls/sys_enter_getpgid"}}
	}
	p := w.Intent("bench", object, v1alpha1.Program{Name: program, Attach: at})
	began := time.Now()
	if err := a.Accept(w.Seal(p)); err != nil {
		b.Fatal(err)
	}
	accepted := time.Now()
	reconcileUntilSettled(b, a)
	took := time.Since(accepted)
	w.Serial++
	if err := a.Accept(w.Seal(intent.Payload{Application: p.Application, UID: p.UID, Serial: w.Serial, Tombstone: true})); err != nil {
		b.Fatal(err)
	}
	a.Reconcile(b.Context())
	return accepted.Sub(began), took
}

// reconcileUntilSettled reconciles again where a link is made beside the loop, which nobody else
// does here.
func reconcileUntilSettled(b *testing.B, a *agent.Agent) {
	b.Helper()
	for {
		a.Reconcile(b.Context())
		ctx, cancel := context.WithTimeout(b.Context(), time.Millisecond)
		err := a.Settled(ctx)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			b.Fatal(err)
		}
	}
}

// BenchmarkManyLinks attaches two programs to 250 tracepoints of system calls each, by reconciles
// of the agent and with the library alone, from their bytes.
func BenchmarkManyLinks(b *testing.B) {
	const objects, each = 2, 250
	calls, err := filepath.Glob("/sys/kernel/tracing/events/syscalls/sys_enter_*")
	if err != nil || len(calls) < each {
		b.Skipf("SKIPPED: there are %d tracepoints of system calls: %v", len(calls), err)
	}
	var at []v1alpha1.Attachment
	for _, call := range calls[:each] {
		at = append(at, v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/" + filepath.Base(call)})
	}
	var byAgent, bare time.Duration
	for b.Loop() {
		w := world.New(b)
		o := w.Options()
		o.Log, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), time.Hour
		a, err := agent.New(o)
		if err != nil {
			b.Fatal(err)
		}
		var all []intent.Payload
		for i := range objects {
			all = append(all, w.Intent(fmt.Sprint("bench-", i), "tracepoint_count", v1alpha1.Program{Name: "tracepoint_count", Attach: at}))
		}
		w.Give(a, all...)
		began := time.Now()
		for world.LinkPins(w, all[0].UID)+world.LinkPins(w, all[1].UID) < objects*each {
			a.Reconcile(b.Context())
		}
		byAgent += time.Since(began)
		if err := a.Close(); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		closes := attachBare(b, objects, at)
		bare += time.Since(began)
		closes()
	}
	b.ReportMetric(float64(byAgent.Milliseconds())/float64(b.N), "agent-ms")
	b.ReportMetric(float64(bare.Milliseconds())/float64(b.N), "bare-ms")
	b.ReportMetric(float64(byAgent)/float64(bare), "ratio")
}

// attachBare loads an object many times, attaches each to all tracepoints, and returns what ends
// that.
func attachBare(b *testing.B, objects int, at []v1alpha1.Attachment) (closes func()) {
	b.Helper()
	var all []io.Closer
	for range objects {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(world.ProgramsObject("tracepoint_count")))
		if err != nil {
			b.Fatal(err)
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			b.Fatal(err)
		}
		for _, one := range at {
			group, name, _ := strings.Cut(one.Tracepoint, "/")
			l, err := link.Tracepoint(group, name, coll.Programs["tracepoint_count"], nil)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, l)
		}
		all = append(all, coll.Programs["tracepoint_count"], coll.Maps["counts"])
	}
	return func() {
		for _, one := range all {
			if err := one.Close(); err != nil {
				b.Error(err)
			}
		}
	}
}

// BenchmarkSweep looks at a node where nothing is to be done.
func BenchmarkSweep(b *testing.B) {
	for _, apps := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%d applications", apps), func(b *testing.B) {
			w := world.New(b)
			o := w.Options()
			o.Log, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), time.Hour
			a := w.StartWith(o)
			for i := range apps {
				p := w.Intent(fmt.Sprint("app", i), "raw_tp_count", v1alpha1.Program{Name: "raw_tp_count",
					Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "xdp_exception"}}})
				if err := a.Accept(w.Seal(p)); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Accept(a); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				a.Reconcile(b.Context())
			}
		})
	}
}
