package mapmetrics

import (
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// pace is how fast maps are read.
type pace struct {
	// spent is what was taken and not yet rested for, as of at.
	spent time.Duration
	at    time.Time
}

// spend notes that a processor was used from began to now, and returns how long to rest.
func (p *pace) spend(began, now time.Time) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.at)/share) + now.Sub(began)
	p.at = now
	return max(0, p.spent-burst) * share
}

// part is what several sources share: those of an owner, or of an application. Half of it is divided evenly among them, and of the other half
// each takes what others leave.
type part struct {
	half, sources int
	// beyond is what all sources have beyond their own.
	beyond int
}

func (p *part) own() int { return p.half / p.sources }

func (p *part) beyondOf(s *source) int { return max(0, s.series()-p.own()) }

// room is how many series a source may have.
func (p *part) room(s *source) int { return p.own() + max(0, p.half-p.beyond+p.beyondOf(s)) }

// parts are those of all sources.
type parts struct {
	owners       map[string]*part
	applications map[v1alpha1.Identity]*part
}

// parts counts once for all scans that begin at a time: there may be thousands of sources, and the agent's loop waits for Collector.mu.
func (c *Collector) parts() parts {
	all := parts{map[string]*part{}, map[v1alpha1.Identity]*part{}}
	for _, s := range c.sources {
		if all.owners[s.Owner] == nil {
			all.owners[s.Owner] = &part{}
		}
		if all.applications[s.Application] == nil {
			all.applications[s.Application] = &part{half: ApplicationSeries / 2}
		}
		for _, p := range all.of(s) {
			p.sources++
		}
	}
	for _, p := range all.owners {
		p.half = NodeSeries / len(all.owners) / 2
	}
	for _, s := range c.sources {
		for _, p := range all.of(s) {
			p.beyond += p.beyondOf(s)
		}
	}
	return all
}

func (p parts) of(s *source) [2]*part {
	return [2]*part{p.owners[s.Owner], p.applications[s.Application]}
}

// begin has a scan of a source begin, which may have as many series as both of its parts leave.
func (p parts) begin(s *source, node *node) {
	most := min(MapSeries, s.full())
	for _, one := range p.of(s) {
		most = min(most, one.room(s))
		one.beyond -= one.beyondOf(s)
	}
	s.scan = &scan{most: most / s.width(), node: node}
	for _, one := range p.of(s) {
		one.beyond += one.beyondOf(s)
	}
}

// full is how many series a source has when its map is full.
func (s *source) full() int {
	n := uint64(s.own.MaxEntries()) * uint64(s.width())
	if slices.ContainsFunc(s.Metrics.Labels, func(l v1alpha1.MapLabel) bool { return l.Decoder == v1alpha1.DecodeCPU }) {
		n *= MapSeries
	}
	return int(min(n, MapSeries))
}
