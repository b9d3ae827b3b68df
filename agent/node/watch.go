package node

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch wakes the agent when an interface or a default route changes, and when
// a pin is removed. It only makes repairs faster: what it misses the sweep
// finds.
type watch struct {
	agent *Agent
	pins  *fsnotify.Watcher
	done  chan struct{}
	wait  sync.WaitGroup
}

// startWatch begins to watch. What cannot be watched is logged, and left to the
// sweep.
func (a *Agent) startWatch() *watch {
	w := &watch{agent: a, done: make(chan struct{})}
	if err := errors.Join(w.interfaces(), w.startPins()); err != nil {
		a.opts.Log.Warn("watch for changes; the sweep finds them later", "error", err)
	}
	return w
}

// stop ends the watch and waits for it.
func (w *watch) stop() {
	close(w.done)
	if w.pins != nil {
		if err := w.pins.Close(); err != nil {
			w.agent.opts.Log.Error("stop watching pins", "error", err)
		}
	}
	w.wait.Wait()
}

func (w *watch) interfaces() error {
	links := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribe(links, w.done); err != nil {
		return fmt.Errorf("subscribe to interfaces: %w", err)
	}
	routes := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribe(routes, w.done); err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	forward(w, links)
	forward(w, routes)
	return nil
}

// forward wakes the agent for every event until the channel is closed.
func forward[T any](w *watch, events <-chan T) {
	w.wait.Go(func() {
		for {
			select {
			case <-w.done:
				return
			case _, open := <-events:
				if !open {
					return
				}
				w.agent.poke()
			}
		}
	})
}

func (w *watch) startPins() error {
	pins, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch pins: %w", err)
	}
	w.pins = pins
	w.wait.Go(func() {
		for {
			select {
			case e, open := <-pins.Events:
				if !open {
					return
				}
				if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
					w.agent.poke()
				}
			case err, open := <-pins.Errors:
				if !open {
					return
				}
				// The kernel ends the watch of a directory that goes, and the
				// library ends it once more: inotify_rm_watch(2) says EINVAL.
				if !errors.Is(err, unix.EINVAL) {
					w.agent.opts.Log.Debug("watch pins; the sweep finds what is missed", "error", err)
				}
			}
		}
	})
	return nil
}

// followPins watches the directories that there are now. Those that went are
// not watched any more by themselves.
func (w *watch) followPins() {
	if w.pins == nil {
		return
	}
	dirs, err := w.agent.store.Directories()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.agent.opts.Log.Warn("watch pins", "error", err)
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
			w.agent.opts.Log.Warn("watch pins", "directory", d, "error", err)
		}
	}
}
