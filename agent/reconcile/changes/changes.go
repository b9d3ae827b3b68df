// Package changes owns what wakes the loop: the changes of the node that matter to an application, and whether the next
// reconcile is a full one. It must not look at what changed, and decides nothing: what it misses, a sweep finds.
package changes

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
)

// Changes wake the loop. All methods may be called from any goroutine, and none waits.
//
// Two kinds of reconcile look at the node. A full one reads everything anew: when a link changed,
// and every 30 seconds. An incremental one follows intents, loads, and changes of
// containers and of network devices. It decides and acts as the full one does, and reads all links,
// but of pods that are as they were it takes what was found before in their files and network
// namespaces, unless an intent that names them is new, and it looks at pins only where some were removed.
type Changes struct {
	// Pause is how long after the begin of a reconcile the next one is for hints: a pod that ends and one that starts give half a dozen
	// within that, of its containers, its devices and the pins that Skep removes, and one look finds them all.
	Pause time.Duration
	// signals and hints hold a value where a reconcile is asked for.
	signals, hints chan struct{}
	// full reports that the next reconcile looks at everything anew, pins that it looks at pins, and
	// choices what matters to the applications of the last one; nil is everything.
	full, pins atomic.Bool
	choices    atomic.Pointer[targets.Choices]

	// mu guards began, when the last reconcile did, and hint, which asks for the next one; nil where none is put off.
	mu    sync.Mutex
	began time.Time
	hint  *time.Timer
}

// pause is Changes.Pause as New sets it.
const pause = 100 * time.Millisecond

// New returns Changes to which everything matters.
func New() *Changes {
	return &Changes{Pause: pause, signals: make(chan struct{}, 1), hints: make(chan struct{}, 1)}
}

// Signals yields when something waits for a reconcile; several signals since the last one count once. It is for one reader.
func (c *Changes) Signals() <-chan struct{} { return c.signals }

// Hints yields when a reconcile is due for hints. It is for one reader.
func (c *Changes) Hints() <-chan struct{} { return c.hints }

// Wake asks for a full reconcile at once.
func (c *Changes) Wake() {
	c.AskFull()
	c.Signal()
}

// Signal asks for a reconcile at once.
func (c *Changes) Signal() { ask(c.signals) }

func ask(in chan<- struct{}) {
	select {
	case in <- struct{}{}:
	default:
	}
}

// Hint asks for a reconcile like Signal, for what waits for none: at once, or Pause after the last one began.
func (c *Changes) Hint() {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := func() { ask(c.hints) }
	switch left := c.Pause - time.Since(c.began); {
	case left <= 0:
		due()
	case c.hint == nil:
		c.hint = time.AfterFunc(left, due)
	}
}

// Begin begins a reconcile, which finds what signals and hints were for. It reports whether it is to be a full one, and forgets that.
func (c *Changes) Begin() (full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hint != nil {
		c.hint.Stop()
	}
	// Before anything is read: what comes later may be for what is not seen any more.
	for _, asked := range []chan struct{}{c.signals, c.hints} {
		select {
		case <-asked:
		default:
		}
	}
	c.hint, c.began = nil, time.Now()
	return c.full.Swap(false)
}

// IsAsked reports whether a reconcile is asked for.
func (c *Changes) IsAsked() bool { return len(c.signals)+len(c.hints) > 0 }

// AskFull has the next reconcile be a full one, whenever that is.
func (c *Changes) AskFull() { c.full.Store(true) }

// AskPins hints at a reconcile, which looks at pins.
func (c *Changes) AskPins() {
	c.pins.Store(true)
	c.Hint()
}

// ArePinsAsked reports whether a reconcile that looks at pins is asked for.
func (c *Changes) ArePinsAsked() bool { return c.pins.Load() }

// TakePins reports whether the next reconcile is to look at pins, and forgets it.
func (c *Changes) TakePins() bool { return c.pins.Swap(false) }

// Choose says what matters from now on.
func (c *Changes) Choose(choices *targets.Choices) { c.choices.Store(choices) }

// Pods hints at a reconcile where an attachment chooses one of the pods, whose containers changed.
// Without any, all may have changed. It is called after the Snapshot of the containers has the change.
func (c *Changes) Pods(changed ...containers.Pod) {
	switch choices := c.choices.Load(); {
	case len(changed) == 0 || choices == nil:
		c.Wake()
	case slices.ContainsFunc(changed, choices.Match):
		c.Hint()
	}
}

// devices hints at a reconcile where an attachment or a link is on a device of the node.
func (c *Changes) devices() {
	if choices := c.choices.Load(); choices == nil || choices.Devices {
		c.Hint()
	}
}
