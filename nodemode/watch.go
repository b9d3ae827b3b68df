package nodemode

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/skep-dev/skep/nodemode/source"
)

// longestBurst is how long changes of settings are gathered at most: a folder that is written to all the time
// holds up no revocation.
const longestBurst = 2 * source.Quiet

// watcher reports when files changed. It only shortens the wait for the next
// interval, so that what it cannot see is late and not lost.
type watcher struct {
	notify *fsnotify.Watcher
	// paths are what is watched: files, folders with those in them, where their links lead, and the way there.
	paths func() []string
	// folders are those of which every entry counts, names the other entries that do.
	folders, names map[string]bool
	// longest is how long a burst of changes is gathered at most.
	longest time.Duration
	// interval is how often all is watched again, for what was replaced unseen.
	interval time.Duration
	changed  chan struct{}
}

// watchSettings watches policies and signers.
func (o Options) watchSettings() *watcher {
	return o.newWatcher(longestBurst, func() []string { return slices.Concat(o.Policies, o.Signers) })
}

// watchSource watches a source of this machine. A remote one has nothing to watch.
func (o Options) watchSource(from source.Source) *watcher {
	if f, ok := from.(source.Folder); ok {
		return o.newWatcher(o.Interval, func() []string { return []string{string(f)} })
	}
	if local, ok := strings.CutPrefix(o.Source, "file://"); ok {
		return o.newWatcher(o.Interval, func() []string { return refsOf(local) })
	}
	return &watcher{}
}

// newWatcher makes a watcher that reads no disk before it runs.
func (o Options) newWatcher(longest time.Duration, paths func() []string) *watcher {
	w := &watcher{paths: paths, folders: map[string]bool{}, names: map[string]bool{}, longest: longest, interval: o.Interval,
		changed: make(chan struct{}, 1)}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		o.Log.Warn("watch files; changes are seen at every interval", "error", err)
	}
	return w
}

// run watches, and turns bursts of events into one signal each, until ctx ends. The first signal says that it watches: what
// changed before that is unseen. A disk that hangs keeps it beyond the end of ctx.
func (w *watcher) run(ctx context.Context) {
	if w.notify == nil {
		return
	}
	defer func() { _ = w.notify.Close() }()
	lost := make(chan struct{}, 1)
	go w.drainErrors(lost)
	w.add()
	signal(w.changed)
	timer, again := time.NewTimer(time.Hour), time.NewTicker(w.interval)
	defer timer.Stop()
	defer again.Stop()
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.notify.Events:
			if !ok {
				return
			}
			// fsnotify joins a folder and a name by a slash, also if the folder is one.
			if name := filepath.Clean(e.Name); !w.names[name] && !w.folders[name] && !w.folders[filepath.Dir(name)] {
				continue
			}
		case <-lost:
		case <-timer.C:
			began = time.Time{}
			// What is new is watched before it is read.
			w.add()
			signal(w.changed)
			continue
		case <-again.C:
			w.add()
			continue
		}
		if began.IsZero() {
			began = time.Now()
		}
		timer.Reset(min(source.Quiet, w.longest-time.Since(began)))
	}
}

// drainErrors signals that events were lost, so that anything may have changed, until notify is closed. It calls nothing of notify:
// fsnotify sends some errors while it holds the lock that Add and Close need.
func (w *watcher) drainErrors(lost chan<- struct{}) {
	for range w.notify.Errors {
		signal(lost)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add watches all that is there of the paths.
func (w *watcher) add() {
	for _, p := range w.paths() {
		_ = filepath.WalkDir(w.follow(p), func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // What cannot be watched is read when the interval is over, and that tells.
			case d.IsDir() && d.Name() == ".git":
				return fs.SkipDir
			case d.IsDir():
				w.folders[p] = true
				_ = w.notify.Add(p)
			}
			return nil
		})
	}
}

// maxLinks is how many links a path may have, as in the kernel.
const maxLinks = 40

// follow watches each folder and link on the way to a path, and the path itself, in the folder it is in: whichever is replaced, the
// path leads elsewhere. It returns where the path leads.
func (w *watcher) follow(path string) string {
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	at, rest := "/", strings.Split(full, "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if next == at {
			continue
		}
		w.names[next] = true
		_ = w.notify.Add(at)
		target, err := os.Readlink(next)
		if err != nil || links == maxLinks {
			at = next
			continue
		}
		links++
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at
}

// refsOf are the places of a local repository that change with its refs.
func refsOf(dir string) (paths []string) {
	for _, git := range []string{dir, filepath.Join(dir, ".git")} {
		if _, err := os.Stat(filepath.Join(git, "HEAD")); err == nil {
			paths = append(paths, filepath.Join(git, "HEAD"), filepath.Join(git, "packed-refs"), filepath.Join(git, "refs"))
		}
	}
	return paths
}
