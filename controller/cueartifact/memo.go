package cueartifact

import (
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/recent"
)

// The bounds of renderings that are kept in memory: entries, and bytes of all.
const (
	maxKept      = 1000
	maxKeptBytes = 64 << 20
)

// maxOfNamespace is how many applications the CueArtifacts of one namespace have at most: what is
// answered about each is in memory.
const maxOfNamespace = 4 * maxRendered

// askAgain is how long after a failed answer a registry is asked again.
const askAgain = time.Minute

// memo is what is remembered of one CueArtifact while this process runs. One reconcile at a
// time has it; applications of one reconcile share what mu guards.
type memo struct {
	// key is a hash of what was rendered last, digest that of the content it gave, in
	// hexadecimal digits; answers are what the policies answer about it.
	key, digest string
	answers     *answers
	// artifact is what is published; nil where that is not known.
	artifact *meta.Artifact
	// shown says that what the status says is published was rendered without a Secret, so
	// that events may name its definitions.
	shown bool

	mu sync.Mutex
	// digests are what tags stood for when they were asked, by the question; empty where that
	// is not known. asked is when a registry that had no answer was asked again.
	digests map[string]string
	asked   map[string]time.Time
}

// begin forgets what is of another rendering.
func (m *memo) begin(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key, m.digest, m.answers = key, "", nil
	m.digests, m.asked = map[string]string{}, map[string]time.Time{}
}

// imageDigest is what the tag that a question is about stood for; empty where that is not
// known.
func (m *memo) imageDigest(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	digest := m.digests[name]
	m.digests[name] = digest
	return digest
}

// remember notes what the tag that a question is about stands for.
func (m *memo) remember(name, digest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.digests[name] = digest
}

// mayAskAgain reports whether a registry that had no answer is to be asked again now.
func (m *memo) mayAskAgain(name string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, ok := m.asked[name]; ok && now.Sub(before) < askAgain {
		return false
	}
	m.asked[name] = now
	return true
}

// waits reports whether an application is not evaluated.
func (m *memo) waits() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answers != nil && m.answers.unknown > 0
}

// applications is how many there is an answer about in memory.
func (m *memo) applications() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		return 0
	}
	return len(m.answers.all)
}

// answered keeps what the policies answer.
func (m *memo) answered(a *answers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = a
}

// memory is what is remembered of all CueArtifacts in a term as the leader.
type memory struct {
	// renderings are those used last, by the key of their memo.
	renderings *recent.Cache[*rendering]

	// mu guards what follows.
	mu    sync.Mutex
	memos map[types.NamespacedName]*memo
	// busy counts by namespace what is being rendered and evaluated.
	busy map[string]int
}

// newMemory remembers nothing.
func newMemory() *memory {
	return &memory{
		renderings: recent.New(recent.Options[*rendering]{Entries: maxKept, Bytes: maxKeptBytes, Size: (*rendering).size}),
		memos:      map[types.NamespacedName]*memo{}, busy: map[string]int{},
	}
}

// of is the memo of a CueArtifact.
func (m *memory) of(name types.NamespacedName) *memo {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.memos[name] == nil {
		m.memos[name] = &memo{digests: map[string]string{}, asked: map[string]time.Time{}}
	}
	return m.memos[name]
}

// forget forgets a CueArtifact.
func (m *memory) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.memos, name)
}

// reset forgets what was published: another replica may have published since.
func (m *memory) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.memos)
}

// enter takes one of the places for rendering and evaluating, of which a namespace may have all but one;
// false where it has them. leave gives it back.
func (m *memory) enter(namespace string, places int) (leave func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[namespace] >= max(1, places-1) {
		return nil, false
	}
	m.busy[namespace]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.busy[namespace]--; m.busy[namespace] == 0 {
			delete(m.busy, namespace)
		}
	}, true
}

// hasRoom says why a CueArtifact cannot have so many applications beside the others of its
// namespace.
func (m *memory) hasRoom(name types.NamespacedName, applications int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	others := 0
	for other, memo := range m.memos {
		if other.Namespace == name.Namespace && other != name {
			others += memo.applications()
		}
	}
	if others+applications > maxOfNamespace {
		return retry(ReasonRenderFailed, "it defines %d applications, other CueArtifacts of namespace %s have %d, and %d are the share of one namespace: "+
			"delete some, or use another namespace",
			applications, name.Namespace, others, maxOfNamespace)
	}
	return nil
}

// waiting lists the CueArtifacts that have applications which are not evaluated.
func (m *memory) waiting() (names []types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, memo := range m.memos {
		if memo.waits() {
			names = append(names, name)
		}
	}
	return names
}

// questions are those of all CueArtifacts, by name.
func (m *memory) questions() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]bool{}
	for _, memo := range m.memos {
		memo.mu.Lock()
		for name := range memo.digests {
			all[name] = true
		}
		memo.mu.Unlock()
	}
	return all
}
