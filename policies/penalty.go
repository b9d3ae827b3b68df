package policies

import (
	"sync"
	"time"
)

const (
	// memoryPenalty and timePenalty are how long what exceeded a limit once is not
	// tried again; each further time in a row doubles it, up to maxPenalty.
	memoryPenalty = 10 * time.Second
	timePenalty   = time.Second
	maxPenalty    = 10 * time.Minute
	// maxPenalties bounds how many are remembered.
	maxPenalties = 4096
)

// penalties remember what exceeded a limit, so that it is not tried in a loop.
type penalties struct {
	now func() time.Time

	mu sync.Mutex
	of map[string]penalty
}

// penalty is how often in a row something exceeded a limit, until when it is not
// tried again, and the answer meanwhile.
type penalty struct {
	times   int
	until   time.Time
	verdict verdict
}

// add notes that something exceeded a limit once more.
func (p *penalties) add(key string, v verdict, first time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.of == nil {
		p.of = map[string]penalty{}
	}
	if len(p.of) >= maxPenalties {
		p.forget(now)
	}
	one := p.of[key]
	wait := min(first<<min(one.times, 10), maxPenalty)
	p.of[key] = penalty{times: one.times + 1, until: now.Add(wait), verdict: v}
}

// forget makes room: what is over goes first, and anything where nothing is.
func (p *penalties) forget(now time.Time) {
	for key, one := range p.of {
		if now.After(one.until) {
			delete(p.of, key)
		}
	}
	for key := range p.of {
		if len(p.of) < maxPenalties {
			return
		}
		delete(p.of, key)
	}
}

// holds reports whether something is not to be tried yet, and the answer
// instead.
func (p *penalties) holds(key string) (instead verdict, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, known := p.of[key]
	return one.verdict, known && p.now().Before(one.until)
}

// lift forgets what stayed within its limits.
func (p *penalties) lift(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, key)
}
