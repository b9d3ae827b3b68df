package nodemode

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
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
	// paths are what is watched: files, folders with those in them, and where their links lead.
	paths []string
	// folders are those of which every entry counts, names the other entries that do.
	folders, names map[string]bool
	// longest is how long a burst of changes is gathered at most.
	longest time.Duration
	changed chan struct{}
}

// watchSettings watches policies and signers.
func (o Options) watchSettings() *watcher {
	return newWatcher(o.Log, longestBurst, append(append([]string{}, o.Policies...), o.Signers...))
}

// watchSource watches a source of this machine.
func (o Options) watchSource(from source.Source) *watcher {
	if f, ok := from.(source.Folder); ok {
		return newWatcher(o.Log, o.Interval, []string{string(f)})
	}
	if local, ok := strings.CutPrefix(o.Source, "file://"); ok {
		return newWatcher(o.Log, o.Interval, refsOf(local))
	}
	return newWatcher(o.Log, o.Interval, nil)
}

func newWatcher(log *slog.Logger, longest time.Duration, paths []string) *watcher {
	w := &watcher{paths: paths, longest: longest, folders: map[string]bool{}, names: map[string]bool{}, changed: make(chan struct{}, 1)}
	if len(paths) == 0 {
		return w
	}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		log.Warn("watch files; changes are seen at every interval", "error", err)
		return w
	}
	w.add()
	return w
}

// run turns bursts of events into one signal each, until ctx ends.
func (w *watcher) run(ctx context.Context) {
	if w.notify == nil {
		return
	}
	defer func() { _ = w.notify.Close() }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.notify.Events:
			if !ok {
				return
			}
			if !w.names[e.Name] && !w.folders[e.Name] && !w.folders[filepath.Dir(e.Name)] {
				continue
			}
		case _, ok := <-w.notify.Errors:
			if !ok {
				return
			}
			// Events were lost: anything may have changed.
		case <-timer.C:
			began = time.Time{}
			// What is new is watched before it is read.
			w.add()
			select {
			case w.changed <- struct{}{}:
			default:
			}
			continue
		}
		if began.IsZero() {
			began = time.Now()
		}
		timer.Reset(min(source.Quiet, w.longest-time.Since(began)))
	}
}

// add watches all that is there of the paths.
func (w *watcher) add() {
	for _, p := range w.paths {
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

// follow watches each link on the way to a path, and the path itself in the folder it is in. It returns where the path leads.
func (w *watcher) follow(path string) string {
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	at, rest := "/", strings.Split(full, "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		if isLink := err == nil; isLink || len(rest) == 0 || os.IsNotExist(err) {
			w.names[next] = true
			_ = w.notify.Add(at)
		}
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
