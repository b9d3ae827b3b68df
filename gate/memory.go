package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/recent"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
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
	Collected collect.Collected `json:"collected"`
	At        time.Time         `json:"at"`
	// hash is Collected's; empty where it was not worked out yet.
	hash string
	// stored is the time that the Memory has of the same; zero where it has nothing.
	stored time.Time
	// since is when the registry first offered this, as far as this process knows.
	since time.Time
	// sought are the sealed artifacts that were looked for, as far as this process knows.
	sought map[intent.Artifact]lookedFor
}

// unchanged is how long the registry is known to have offered nothing else.
func (c collectedAt) unchanged() time.Duration { return c.At.Sub(c.since) }

// storeAgain is how old a time the Memory may have of what did not change. What
// reads it takes it for that much older than it is, and a Memory that is an
// object of an API server is written so much less.
const storeAgain = time.Hour

// storedLately reports whether the Memory has c, of a time that is near enough.
func (c collectedAt) storedLately() bool { return c.At.Sub(c.stored).Abs() < storeAgain }

// forSigners is c as far as it goes for signers: a part, where one of their
// repositories was not read.
func (c collectedAt) forSigners(trust *signing.Trust) collectedAt {
	was := c.Collected.Partial && c.Collected.Unread
	if c.Collected = c.Collected.For(trust.Repositories()); !was && c.Collected.Unread {
		c.hash = ""
	}
	return c
}

// hashed is c with its hash worked out, once for all evaluations.
func (c collectedAt) hashed() (collectedAt, error) {
	var err error
	if c.hash == "" {
		c.hash, err = c.Collected.Hash()
	}
	return c, err
}

// key is that of the evidence made from c under a trust revision: it hashes
// what was collected, so that a signature pushed later makes new evidence.
func (c collectedAt) key(trust string) (string, error) {
	c, err := c.hashed()
	return trust + "/" + c.hash, err
}

// bytes is how much of the memory c takes.
func (c collectedAt) bytes() int { return c.Collected.Bytes() + len(c.sought)*bytesSought }

// remembered is what an Evaluator learned in this process.
type remembered struct {
	signatures *counted[collectedAt]
	evidence   *counted[signing.Evidence]
	facts      *counted[reading]
	decisions  *counted[policies.Decision]
	// down is when a registry, or a repository, was last found out of reach, by its name.
	down *counted[time.Time]
	// settings is when signers and policies last changed, by namespace.
	settings *counted[settled]
}

func newRemembered(o Observer) remembered {
	k := remembered{
		signatures: newRecent(4*recentBytes, collectedAt.bytes),
		evidence:   newRecent(2*recentBytes, written[signing.Evidence]),
		facts:      newRecent(recentBytes, written[reading]),
		decisions:  newRecent(recentBytes, written[policies.Decision]),
		down:       newRecent(recentBytes, func(time.Time) int { return 0 }),
		settings:   newRecent(recentBytes, func(s settled) int { return len(s.revision) }),
	}
	k.evidence.looked = func(found bool) { o.Looked(RecallEvidence, found) }
	k.facts.looked = func(found bool) { o.Looked(RecallFacts, found) }
	k.decisions.looked = func(found bool) { o.Looked(RecallDecisions, found) }
	return k
}

// written is how many bytes a value takes as JSON, which is about what it takes
// of the memory: most of it are texts.
func written[V any](v V) int {
	text, err := json.Marshal(v)
	if err != nil {
		return math.MaxInt
	}
	return len(text)
}

// memoryName is where the signatures of an image are stored. They are those of
// its repository: a copy elsewhere, which its owner has not signed, takes none
// away from it.
func memoryName(r image.Resolved) string {
	repository := sha256.Sum256([]byte(r.Registry + "/" + r.Repository))
	return "signatures." + hex.EncodeToString(repository[:8]) + "-" + r.Digest
}

// collected finds what was last collected for an image, and where; the origin is
// empty where nothing was.
func (k remembered) collected(m Memory, r image.Resolved) (collectedAt, Origin) {
	name := memoryName(r)
	if c, ok := k.signatures.Get(name); ok {
		return c, FromMemory
	}
	if m == nil {
		return collectedAt{}, ""
	}
	raw, ok := m.Load(name)
	if !ok {
		return collectedAt{}, ""
	}
	var c collectedAt
	// What was stored of one image is not believed of another: signatures are
	// tried against the digest that stands among them.
	if json.Unmarshal(raw, &c) != nil || c.Collected.Digest != r.Digest {
		return collectedAt{}, ""
	}
	c, err := c.hashed()
	if err != nil {
		return collectedAt{}, ""
	}
	c.stored, c.since = c.At, c.At
	k.signatures.Put(name, c)
	return c, FromStore
}

// keep remembers what was collected for an image, and stores it where that says
// something new.
func (k remembered) keep(m Memory, r image.Resolved, c collectedAt) error {
	name := memoryName(r)
	before, known := k.signatures.Get(name)
	c.stored, c.since = time.Time{}, c.At
	if known && before.hash == c.hash {
		c.stored, c.since = before.stored, before.since
	}
	same := c.storedLately()
	if m != nil && !same {
		c.stored = c.At
	}
	k.signatures.Put(name, c)
	if m == nil || same {
		return nil
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("remember signatures of %s: %w", r.Digest, err)
	}
	if err := m.Store(name, raw); err != nil {
		return fmt.Errorf("remember signatures of %s: %w", r.Digest, err)
	}
	return nil
}

// recentEntries bounds each memory of an Evaluator, in entries: a thousand
// applications with their updates fit. Whoever may push to a registry can make
// one large, so multiples of recentBytes bound them too.
const (
	recentEntries = 4096
	recentBytes   = 16 << 20
)

// counted is a memory whose looks are counted.
type counted[V any] struct {
	*recent.Cache[V]
	// looked is called with the result of each look; nil counts nothing.
	looked func(found bool)
}

func newRecent[V any](bytes int, size func(V) int) *counted[V] {
	return &counted[V]{Cache: recent.New(recent.Options[V]{Entries: recentEntries, Bytes: bytes, Size: size})}
}

// Get finds a value, and counts the look.
func (c *counted[V]) Get(key string) (V, bool) {
	v, ok := c.Cache.Get(key)
	if c.looked != nil {
		c.looked(ok)
	}
	return v, ok
}
