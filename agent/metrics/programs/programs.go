// Package programs exports for Prometheus how each program of an application is attached, what it costs, and what memory it takes. It must
// not export a series for each program of others, nor have a scrape wait for the agent's loop.
package programs

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/cost"
)

// The bounds of one node: how many programs have series, and how many series there are of attachments.
const (
	MaxPrograms    = 500
	MaxAttachments = 2000
)

// fresh is how long what was read of the kernel is exported again.
const fresh = cost.Interval

// Options are what a Collector is made of.
type Options struct {
	// Status are the applications, as agent.Agent's method returns them.
	Status func() []agent.ApplicationStatus
	// Clock measures what programs cost; nil has no such series.
	Clock *cost.Clock
}

// Collector is a prometheus.Collector.
type Collector struct {
	o Options

	mu sync.Mutex
	// last are the totals that known and unmanaged have.
	last      map[uint32]cost.Total
	known     map[program]cost.Total
	unmanaged cost.Total
	// memory is of each program that has series, as of memoryAt, and jit is the kernel's.
	memory   map[program]uint64
	jit      jit
	memoryAt time.Time
}

// New returns a Collector.
func New(o Options) *Collector { return &Collector{o: o, known: map[program]cost.Total{}} }

// The series. What comes of windows is estimated: see docs/adr/0117.
var (
	attachments = prometheus.NewDesc("skep_program_attachments",
		"Attachments of a program by hook and by state; the reason is the application's, and empty where it is Deployed. "+
			"An application without a program has its own state, and no program.",
		[]string{"kind", "namespace", "application", "program", "hook", "state", "reason"}, nil)
	runs = prometheus.NewDesc("skep_program_runs_total",
		"Runs of a program, estimated: they are counted for up to 1 second of every 15, and each window stands for its 15.",
		[]string{"kind", "namespace", "application", "program"}, nil)
	seconds = prometheus.NewDesc("skep_program_run_seconds_total",
		"Time that a program ran, on all CPUs together, estimated as its runs are: the rate is the share of one CPU.",
		[]string{"kind", "namespace", "application", "program"}, nil)
	misses = prometheus.NewDesc("skep_program_missed_runs_total",
		"Runs of a program that the kernel left out, since the CPU was in a program already. The kernel counts each.",
		[]string{"kind", "namespace", "application", "program"}, nil)
	memory = prometheus.NewDesc("skep_program_memory_bytes",
		"Memory of a program: its instructions, its machine code and its maps. A map of several programs counts once, for the first of them.",
		[]string{"kind", "namespace", "application", "program"}, nil)
	unmanaged = prometheus.NewDesc("skep_unmanaged_programs",
		"Programs in the kernel that are not of Skep's applications.", nil, nil)
	unmanagedRuns = prometheus.NewDesc("skep_unmanaged_program_runs_total",
		"Runs of all programs that are not of Skep's applications, estimated as those of applications are.", nil, nil)
	unmanagedSeconds = prometheus.NewDesc("skep_unmanaged_program_run_seconds_total",
		"Time that all programs ran that are not of Skep's applications, on all CPUs together, estimated as their runs are.", nil, nil)
	windows = prometheus.NewDesc("skep_program_windows_total",
		"Windows in which the cost of programs was measured; none is added where that is switched off or not allowed.", nil, nil)
	leftOut = prometheus.NewDesc("skep_program_series_left_out",
		"Programs, and attachments of one kind, that have no series, since the node has as many as it may.", nil, nil)
	jitBytes = prometheus.NewDesc("skep_bpf_jit_bytes",
		"Memory that the kernel has taken for the machine code of BPF: of all programs, and of filters such as seccomp's.", nil, nil)
	jitLimit = prometheus.NewDesc("skep_bpf_jit_limit_bytes",
		"What that memory may be (net.core.bpf_jit_limit). At the limit no program loads, and no container with a seccomp profile starts.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{attachments, runs, seconds, misses, memory, unmanaged, unmanagedRuns, unmanagedSeconds, windows, leftOut,
		jitBytes, jitLimit} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := nodeOf(c.o.Status())
	gauge := func(d *prometheus.Desc, v float64, values ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
	}
	for a, n := range now.attachments {
		gauge(attachments, float64(n), append(a.program.labels(), a.hook, a.state, a.reason)...)
	}
	gauge(leftOut, float64(now.leftOut))
	if c.o.Clock != nil {
		c.collectCost(to, now)
	}
	if time.Since(c.memoryAt) > fresh {
		c.memory, c.jit, c.memoryAt = memoryOf(now.ids), readJIT(), time.Now()
	}
	for p, bytes := range c.memory {
		gauge(memory, float64(bytes), p.labels()...)
	}
	for d, bytes := range map[*prometheus.Desc]uint64{jitBytes: c.jit.bytes, jitLimit: c.jit.limit} {
		if bytes > 0 {
			gauge(d, float64(bytes))
		}
	}
}

// collectCost exports what windows counted.
func (c *Collector) collectCost(to chan<- prometheus.Metric, now node) {
	totals := c.o.Clock.Totals()
	others := c.add(totals, now)
	counter := func(d *prometheus.Desc, v float64, values ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, values...)
	}
	counter(windows, float64(c.o.Clock.Measured()))
	if totals == nil {
		return
	}
	for p, t := range c.known {
		counter(runs, t.Runs, p.labels()...)
		counter(seconds, t.Seconds, p.labels()...)
		counter(misses, float64(t.Misses), p.labels()...)
	}
	to <- prometheus.MustNewConstMetric(unmanaged, prometheus.GaugeValue, float64(others))
	counter(unmanagedRuns, c.unmanaged.Runs)
	counter(unmanagedSeconds, c.unmanaged.Seconds)
}

// add adds what programs did since the last scrape to what they did before, so that a new version of a program continues the series of the
// former one. It returns how many programs are not of applications. Those of applications that are gone are forgotten.
func (c *Collector) add(totals map[uint32]cost.Total, now node) (others int) {
	listed := map[program]bool{}
	for _, p := range now.ids {
		listed[p] = true
		if _, has := c.known[p]; !has {
			c.known[p] = cost.Total{}
		}
	}
	maps.DeleteFunc(c.known, func(p program, _ cost.Total) bool { return !listed[p] })
	for id, t := range totals {
		was := c.last[id]
		more := cost.Total{Runs: t.Runs - was.Runs, Seconds: t.Seconds - was.Seconds, Misses: t.Misses - was.Misses}
		p, has := now.ids[id]
		switch {
		case has:
			c.known[p] = plus(c.known[p], more)
		case !now.unlisted[id]:
			others++
			c.unmanaged = plus(c.unmanaged, more)
		}
	}
	c.last = totals
	return others
}

func plus(a, b cost.Total) cost.Total {
	return cost.Total{Runs: a.Runs + b.Runs, Seconds: a.Seconds + b.Seconds, Misses: a.Misses + b.Misses}
}
