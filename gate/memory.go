package gate

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Memory keeps bytes by name over restarts. What comes out of it is believed
// no more than what a registry says: signatures are verified again, and
// evidence, facts and verdicts are never stored. A nil Memory keeps nothing.
type Memory interface {
	// Load returns what was stored under the name, and false where nothing was.
	Load(name string) ([]byte, bool)
	// Store replaces it whole or not at all.
	Store(name string, data []byte) error
}

// collectedAt is what a registry offered as signatures, and when.
type collectedAt struct {
	Collected signing.Collected `json:"collected"`
	At        time.Time         `json:"at"`
}

// key is that of the evidence made from c under a trust revision: it hashes
// what was collected, so that a signature pushed later makes new evidence.
func (c collectedAt) key(trust string) (string, error) {
	hash, err := c.Collected.Hash()
	return trust + "/" + hash, err
}

// remembered is what a Judge learned in this process.
type remembered struct {
	signatures *recent[collectedAt]
	evidence   *recent[signing.Evidence]
	facts      *recent[bytecode.Facts]
	decisions  *recent[policies.Decision]
}

func newRemembered() remembered {
	return remembered{
		signatures: newRecent[collectedAt](),
		evidence:   newRecent[signing.Evidence](),
		facts:      newRecent[bytecode.Facts](),
		decisions:  newRecent[policies.Decision](),
	}
}

// memoryName is where the signatures of a digest are stored.
func memoryName(digest string) string { return "signatures-" + digest }

// collected finds what was last collected for a digest.
func (k remembered) collected(m Memory, digest string) (collectedAt, bool) {
	if c, ok := k.signatures.get(digest); ok {
		return c, true
	}
	if m == nil {
		return collectedAt{}, false
	}
	raw, ok := m.Load(memoryName(digest))
	if !ok {
		return collectedAt{}, false
	}
	var c collectedAt
	// What was stored of one image is not believed of another: signatures are
	// tried against the digest that stands among them.
	if json.Unmarshal(raw, &c) != nil || c.Collected.Digest != digest {
		return collectedAt{}, false
	}
	k.signatures.put(digest, c)
	return c, true
}

// keep remembers what was collected for a digest.
func (k remembered) keep(m Memory, digest string, c collectedAt) error {
	k.signatures.put(digest, c)
	if m == nil {
		return nil
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("remember signatures of %s: %w", digest, err)
	}
	if err := m.Store(memoryName(digest), raw); err != nil {
		return fmt.Errorf("remember signatures of %s: %w", digest, err)
	}
	return nil
}

// recentSize bounds each memory of a Judge, in entries. A thousand
// applications with their updates fit.
const recentSize = 4096

// recent is a bounded map that forgets the older half of its entries when it
// is full.
type recent[V any] struct {
	mu       sync.Mutex
	new, old map[string]V
}

func newRecent[V any]() *recent[V] { return &recent[V]{new: map[string]V{}} }

// get finds a value and keeps it from being forgotten soon.
func (r *recent[V]) get(key string) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.new[key]
	if !ok {
		if v, ok = r.old[key]; ok {
			r.insert(key, v)
		}
	}
	return v, ok
}

func (r *recent[V]) put(key string, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.insert(key, v)
}

func (r *recent[V]) insert(key string, v V) {
	if len(r.new) >= recentSize/2 {
		r.old, r.new = r.new, map[string]V{}
	}
	r.new[key] = v
}
