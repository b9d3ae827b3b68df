package changes

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
)

// Watched has the directories of pins.
type Watched interface {
	// Directories returns those that there are now.
	Directories() ([]string, error)
}

// Watch wakes the loop when an interface, a default route, a qdisc or a filter changes, and
// when a pin is removed. It only makes repairs faster: what it misses the sweep
// finds.
type Watch struct {
	changes *Changes
	log     *slog.Logger
	watched Watched
	pins    *fsnotify.Watcher
	// followed is when FollowPins was called last.
	followed time.Time
	// made are paths that were made in directories of pins, as many as fit: FollowPins finds the rest.
	made chan string

	done chan struct{}
	wait sync.WaitGroup
}

// Watch begins to watch. What cannot be watched is logged, and left to the
// sweep.
func (c *Changes) Watch(pins Watched, log *slog.Logger) *Watch {
	w := &Watch{changes: c, log: log, watched: pins, done: make(chan struct{})}
	if err := errors.Join(w.interfaces(), w.startPins()); err != nil {
		log.Warn("watch for changes; the sweep finds them later", "error", err)
	}
	return w
}

// Stop ends the watch and waits for it.
func (w *Watch) Stop() {
	close(w.done)
	if w.pins != nil {
		if err := w.pins.Close(); err != nil {
			w.log.Error("stop watching pins", "error", err)
		}
	}
	w.wait.Wait()
}

// renewAfter is how long a subscription that ended waits before it is made again.
const renewAfter = time.Second

func (w *Watch) interfaces() error {
	return errors.Join(
		follow(w, "interfaces", netlink.LinkSubscribe),
		follow(w, "routes", netlink.RouteSubscribe),
		follow(w, "filters", clsact.Subscribe))
}

// subscription is one that yields events until it ends.
type subscription[T any] struct {
	events chan T
	stop   chan struct{}
}

// follow wakes the loop for every event of a subscription, and makes the
// subscription again where it ends: the kernel ends one whose events are not read
// in time, as in a flood of them. It fails where the first one cannot be made.
func follow[T any](w *Watch, what string, subscribe func(chan<- T, <-chan struct{}) error) error {
	begin := func() (*subscription[T], error) {
		s := &subscription[T]{events: make(chan T, 64), stop: make(chan struct{})}
		if err := subscribe(s.events, s.stop); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", what, err)
		}
		return s, nil
	}
	s, err := begin()
	if err != nil {
		return err
	}
	w.wait.Go(func() {
		for s != nil {
			forward(w, s.events)
			close(s.stop)
			s = renew(w, what, begin)
		}
	})
	return nil
}

// forward wakes the loop for every event until there are no more.
func forward[T any](w *Watch, events <-chan T) {
	for {
		select {
		case <-w.done:
			return
		case _, open := <-events:
			if !open {
				return
			}
			w.changes.devices()
		}
	}
}

// renew makes a subscription again, or returns nil when the watch ends.
func renew[T any](w *Watch, what string, begin func() (*subscription[T], error)) *subscription[T] {
	for logged := false; ; {
		select {
		case <-w.done:
			return nil
		case <-time.After(renewAfter):
		}
		s, err := begin()
		if err == nil {
			w.log.Warn("a subscription ended and was made again; the sweep finds what was missed", "to", what)
			w.changes.Wake()
			return s
		}
		if !logged {
			logged = true
			w.log.Error("a subscription ended; it is tried again, and the sweep finds changes later", "error", err)
		}
	}
}

func (w *Watch) startPins() error {
	pins, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch pins: %w", err)
	}
	w.pins, w.made = pins, make(chan string, maxMade)
	w.wait.Go(func() { w.wakeOnRemoval(pins) })
	// The library holds its lock while it hands an error over: what takes errors must not wait for that lock, as Add does.
	w.wait.Go(w.watchMade)
	return nil
}

// wakeOnRemoval wakes the loop when a pin is removed, also in a directory that was just made, until the watcher is closed.
func (w *Watch) wakeOnRemoval(pins *fsnotify.Watcher) {
	for {
		select {
		case e, open := <-pins.Events:
			if !open {
				return
			}
			switch {
			case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
				w.changes.AskPins()
			case e.Has(fsnotify.Create):
				select {
				case w.made <- e.Name:
				default:
				}
			}
		case err, open := <-pins.Errors:
			if !open {
				return
			}
			// The kernel ends the watch of a directory that goes, and the
			// library ends it once more: inotify_rm_watch(2) says EINVAL.
			if !errors.Is(err, unix.EINVAL) {
				w.log.Debug("watch pins; the sweep finds what is missed", "error", err)
			}
		}
	}
}

// maxMade is how many paths wait to be looked at.
const maxMade = 1024

// watchMade watches the directories among what was made, until the watch ends.
func (w *Watch) watchMade() {
	for {
		select {
		case <-w.done:
			return
		case path := <-w.made:
			w.watchNew(path)
		}
	}
}

// watchNew watches a directory that was made, and those that were made in it before it was watched. A pin is none.
func (w *Watch) watchNew(path string) {
	if made, err := os.Lstat(path); err != nil || !made.IsDir() || w.pins.Add(path) != nil {
		return
	}
	within, _ := os.ReadDir(path)
	for _, one := range within {
		if one.IsDir() {
			w.watchNew(filepath.Join(path, one.Name()))
		}
	}
}

// followPause is how long after FollowPins it is called again: with hundreds of chains, it reads hundreds of directories.
const followPause = time.Second

// FollowsIn is when FollowPins is to be called after a reconcile, which may have made directories.
func (w *Watch) FollowsIn() time.Duration { return max(0, followPause-time.Since(w.followed)) }

// FollowPins watches the directories that there are now, of which events report most before. Those that went are
// not watched any more by themselves.
func (w *Watch) FollowPins() {
	w.followed = time.Now()
	if w.pins == nil {
		return
	}
	dirs, err := w.watched.Directories()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("watch pins", "error", err)
		}
		return
	}
	watched := map[string]bool{}
	for _, d := range w.pins.WatchList() {
		watched[d] = true
	}
	for _, d := range dirs {
		if watched[d] {
			continue
		}
		if err := w.pins.Add(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("watch pins", "directory", d, "error", err)
		}
	}
}
