package imagestore

import (
	"maps"
	"sync"
)

// maxPending bounds the bytes that wait to be written, for all images together.
const maxPending = 16 << 20

// pending holds what is to be kept of images until it is written: what a registry
// said, and what the verdict on it rests on a moment later, are one write.
type pending struct {
	mu sync.Mutex
	// objects has what waits by the name of its BpfImage, and bytes is the size of
	// all of it.
	objects map[string]map[string][]byte
	bytes   int
}

// put has packed bytes wait. first reports whether nothing else waits of that
// object; ok is false where there is no room.
func (p *pending) put(object, kept string, packed []byte) (first, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := len(packed) - len(p.objects[object][kept])
	if p.bytes+more > maxPending {
		return false, false
	}
	if p.objects == nil {
		p.objects = map[string]map[string][]byte{}
	}
	if first = p.objects[object] == nil; first {
		p.objects[object] = map[string][]byte{}
	}
	p.objects[object][kept] = packed
	p.bytes += more
	return first, true
}

// get returns what waits under a name; nil where nothing does.
func (p *pending) get(object, kept string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.objects[object][kept]
}

// take returns all that waits of an object, which waits no longer.
func (p *pending) take(object string) map[string][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.objects[object]
	delete(p.objects, object)
	for packed := range maps.Values(taken) {
		p.bytes -= len(packed)
	}
	return taken
}
