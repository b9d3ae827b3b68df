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

// most is how many series a source may have: half of what its owner has is divided evenly among the maps of the owner, and of the
// other half each takes what others leave. The same holds for the application.
func (c *Collector) most(s *source) int {
	owners := map[string]bool{}
	for _, other := range c.sources {
		owners[other.Owner] = true
	}
	ofOwner := c.room(s, NodeSeries/max(1, len(owners)), func(o *source) bool { return o.Owner == s.Owner })
	ofApplication := c.room(s, ApplicationSeries, func(o *source) bool { return o.Application == s.Application })
	return min(MapSeries, ofOwner, ofApplication, s.full())
}

// full is how many series a source has when its map is full.
func (s *source) full() int {
	n := uint64(s.own.MaxEntries()) * uint64(s.width())
	if slices.ContainsFunc(s.Metrics.Labels, func(l v1alpha1.MapLabel) bool { return l.Decoder == v1alpha1.DecodeCPU }) {
		n *= MapSeries
	}
	return int(min(n, MapSeries))
}

// room is what a source may have of a total that it shares with others.
func (c *Collector) room(s *source, total int, shares func(*source) bool) int {
	count := 0
	for _, o := range c.sources {
		if shares(o) {
			count++
		}
	}
	own := total / 2 / max(1, count)
	left := total / 2
	for _, o := range c.sources {
		if o != s && shares(o) {
			left -= max(0, o.series()-own)
		}
	}
	return own + max(0, left)
}
