package policies

import "sync"

const (
	// maxProofs bounds how many policies' proofs are remembered: of those that compile,
	// and of those that do not.
	maxProofs = 4096
	// maxErrorBytes bounds what is remembered of compile errors, all together.
	maxErrorBytes = 4 << 20
)

// proofs remembers what compiled programs showed, by their keys. Those that compile
// and those that do not are apart, so that no number of broken ones has a good one
// compiled again. The zero value is ready.
type proofs struct {
	mu           sync.Mutex
	good, broken map[string]proof
	// bytes is the size of the errors in broken.
	bytes int
}

// get is what a program showed before.
func (p *proofs) get(key string) (proof, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.good[key]; ok {
		return known, true
	}
	known, ok := p.broken[key]
	return known, ok
}

// put keeps a proof, and lets any other of its kind go where there are too many.
func (p *proofs) put(key string, shown proof) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.good == nil {
		p.good, p.broken = map[string]proof{}, map[string]proof{}
	}
	if len(shown.Errors) == 0 {
		for other := range p.good {
			if len(p.good) < maxProofs {
				break
			}
			delete(p.good, other)
		}
		p.good[key] = shown
		return
	}
	p.drop(key)
	size := shown.bytes()
	if size > maxErrorBytes {
		return
	}
	for other := range p.broken {
		if len(p.broken) < maxProofs && p.bytes+size <= maxErrorBytes {
			break
		}
		p.drop(other)
	}
	p.broken[key] = shown
	p.bytes += size
}

// drop forgets a program that did not compile.
func (p *proofs) drop(key string) {
	p.bytes -= p.broken[key].bytes()
	delete(p.broken, key)
}

// bytes is how much the errors of a proof take.
func (p proof) bytes() int {
	n := 0
	for _, e := range p.Errors {
		n += len(e.Policy) + len(e.File) + len(e.Message)
	}
	return n
}
