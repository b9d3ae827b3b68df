// Package mapmetrics exports entries of maps as series for Prometheus: it reads the maps next to the agent's loop, and owns how
// much of a processor that takes and how many series there are. It must not decide which maps are read, nor write any.
//
// A scrape begins scans of the maps whose last one is a second ago or more, waits for them no longer than patience, and gets
// what the last finished scan of each map found. Scrapes at once share scans. Owners take turns after each slice of a scan, so
// that no large map delays the series of another owner; all scans together take a tenth of a processor, after a first burst.
package mapmetrics

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// The bounds of series.
const (
	// MapSeries is how many one map has at most.
	MapSeries = 10_000
	// ApplicationSeries is how many one application has at most.
	ApplicationSeries = 20_000
	// NodeSeries is how many there are on a node. Each owner has the same part of them for itself.
	NodeSeries = 50_000
)

// The bounds of time.
const (
	// fresh is how old a finished scan is before a scrape begins another one.
	fresh = time.Second
	// patience is how long a scrape waits for scans, and for each scan from its beginning.
	patience = 500 * time.Millisecond
	// slice is how long a map is read before the next owner's turn.
	slice = 2 * time.Millisecond
	// share is the part of a processor that scans take, as one of so many; burst is what they may take at once after a rest.
	share, burst = 10, 200 * time.Millisecond
)

// Source is a map whose entries are series.
type Source struct {
	// Owner shares turns and bounds; see queue.OwnerOf.
	Owner       string
	Application v1alpha1.Identity
	// Map is the name of the map, and Metrics what its definition asks for.
	Map     string
	Metrics *v1alpha1.MapMetrics
	// Held is the map that runs. Publish makes a descriptor of its own of it.
	Held *ebpf.Map
}

// key is one source.
type key struct {
	application v1alpha1.Identity
	name        string
}

// Collector is a prometheus.Collector of the maps that were published last.
type Collector struct {
	log   *slog.Logger
	queue *queue.Queue
	node  node

	mu      sync.Mutex
	pace    pace
	sources map[key]*source
}

var _ prometheus.Collector = (*Collector)(nil)

// source is a map that is published. Collector.mu guards it, but for what its scan alone uses.
type source struct {
	Source
	// own is read by scans, and closed at the end of the last one.
	own *ebpf.Map
	// scan is the one under way, which ended is closed for; nil where none is. begun is when it began.
	scan  *scan
	ended chan struct{}
	begun time.Time
	gone  bool
	// reader is set by the first scan, and err is what kept the last one from its end.
	reader *series.Reader
	err    error
	// found is what the last finished scan found, and at when that was.
	found []sample
	at    time.Time
	// leftOut is how many entries have no series, and logged is what of this source was logged last.
	leftOut int
	logged  string
}

// width is how many series each set of labels has.
func (s *source) width() int { return series.Count(s.Metrics) }

// series is how many series a source has, or may have by the scan under way.
func (s *source) series() int {
	n := len(s.found)
	if s.scan != nil {
		n = max(n, s.scan.most)
	}
	return n * s.width()
}

// warn logs what is not as the definition asks for, once.
func (c *Collector) warn(s *source, message string, args ...any) {
	if what := fmt.Sprint(message, args); s.logged != what {
		s.logged = what
		c.log.Warn(message, append([]any{"application", s.Application.String(), "map", s.Map}, args...)...)
	}
}

// New returns a Collector of no map.
func New(log *slog.Logger) *Collector {
	return &Collector{log: log, queue: queue.New(queue.Options{Concurrent: 1, Log: log, Wake: func() {}}), sources: map[key]*source{}}
}

// Publish has the sources read from now on, and no other. It waits for no scan. A nil Collector publishes nothing.
func (c *Collector) Publish(all []Source) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[key]*source{}
	for _, s := range all {
		k := key{s.Application, s.Map}
		if old := c.sources[k]; old != nil && old.Held == s.Held && old.Owner == s.Owner && reflect.DeepEqual(old.Metrics, s.Metrics) {
			next[k] = old
			continue
		}
		own, err := plain.Of(s.Held.Clone())
		if err != nil {
			c.log.Error("open a map for its metrics", "application", s.Application.String(), "map", s.Map, "error", err)
			continue
		}
		next[k] = &source{Source: s, own: own}
	}
	for k, old := range c.sources {
		if next[k] != old {
			old.gone = true
			c.free(old)
		}
	}
	c.sources = next
}

// free closes the map of a source that is gone and has no scan.
func (c *Collector) free(s *source) {
	if !s.gone || s.scan != nil {
		return
	}
	if err := s.own.Close(); err != nil {
		c.log.Error("close a map", "map", s.Map, "error", err)
	}
}

// Close withdraws all sources, and waits for the slice that is being read.
func (c *Collector) Close() {
	if c == nil {
		return
	}
	c.Publish(nil)
	c.queue.Close()
	c.queue.Wait()
}

// Describe implements prometheus.Collector. The series are those of definitions, which no collector says beforehand.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// ordered are the sources in the order in which they are exported.
func (c *Collector) ordered() []*source {
	return slices.SortedFunc(maps.Values(c.sources), func(a, b *source) int {
		return cmp.Or(cmp.Compare(a.Application.Namespace, b.Application.Namespace), cmp.Compare(a.Application.Kind, b.Application.Kind),
			cmp.Compare(a.Application.Name, b.Application.Name), cmp.Compare(a.Map, b.Map))
	})
}

// refresh begins the scans that are due, and waits for those that are not late.
func (c *Collector) refresh() {
	now := time.Now()
	var waits []chan struct{}
	until := now
	c.mu.Lock()
	shared := c.parts()
	for _, s := range c.ordered() {
		if s.scan == nil && now.Sub(later(s.at, s.begun)) >= fresh {
			shared.begin(s, &c.node)
			s.ended, s.begun = make(chan struct{}), now
			c.enqueue(s)
		}
		if end := s.begun.Add(patience); s.scan != nil && end.After(now) {
			waits, until = append(waits, s.ended), later(until, end)
		}
	}
	c.mu.Unlock()
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	for _, ended := range waits {
		select {
		case <-ended:
		case <-late.C:
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// enqueue has the next slice of a scan read when it is the turn of its owner.
func (c *Collector) enqueue(s *source) {
	job := queue.Job{What: "metrics of map " + s.Map + " of " + s.Application.String(), Owners: []string{s.Owner}, Part: s.Application.Name,
		Run: func(ctx context.Context) bool { c.step(ctx, s); return false }}
	if c.queue.Add(job) == nil {
		c.end(s)
	}
}

// step reads one slice, and pauses as long as that asks for.
func (c *Collector) step(ctx context.Context, s *source) {
	began := time.Now()
	c.mu.Lock()
	reader, gone := s.reader, s.gone
	c.mu.Unlock()
	var more bool
	var err error
	if !gone && reader == nil {
		reader, err = newReader(s.own, s.Metrics)
	}
	if !gone && err == nil {
		more, err = s.scan.advance(s.own, reader, began.Add(slice))
	}
	c.mu.Lock()
	s.reader = reader
	switch {
	case err != nil:
		s.err, s.found = err, nil
		c.warn(s, "metrics of a map cannot be read", "error", err)
		c.end(s)
	case more && !s.gone:
		c.enqueue(s)
	default:
		c.finished(s)
		c.end(s)
	}
	pause := c.pace.spend(began, time.Now())
	c.mu.Unlock()
	if pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// finished keeps what a whole scan found.
func (c *Collector) finished(s *source) {
	if s.gone {
		return
	}
	s.err, s.found, s.at, s.leftOut = nil, s.scan.samples(), time.Now(), s.scan.leftOut
	if s.leftOut == 0 {
		s.logged = ""
		return
	}
	c.warn(s, "a map has more entries than its metrics may have series; the rest is left out, see skep_agent_map_entries_left_out", "most", s.scan.most)
}

// end ends the scan of a source.
func (c *Collector) end(s *source) {
	s.scan = nil
	close(s.ended)
	c.free(s)
}
