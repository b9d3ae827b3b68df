package nodemode

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/skep-dev/skep/nodemode/source"
)

// watch tells when a policy, a signer or a file of a folder source changed. It
// only shortens the wait for the next interval, so that what it cannot see is
// late and not lost.
func (o Options) watch(ctx context.Context, from source.Source) <-chan struct{} {
	changed := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		o.Log.Warn("watch files; changes are seen at every interval", "error", err)
		return changed
	}
	for _, p := range append(append([]string{}, o.Policies...), o.Signers...) {
		watchTree(w, p)
	}
	if f, ok := from.(source.Folder); ok {
		watchTree(w, string(f))
	} else if local, ok := strings.CutPrefix(o.Source, "file://"); ok {
		watchRepository(w, local)
	}
	go relay(ctx, w, changed)
	return changed
}

// relay turns bursts of events into one signal each.
func relay(ctx context.Context, w *fsnotify.Watcher, changed chan<- struct{}) {
	defer func() { _ = w.Close() }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if info, err := os.Stat(e.Name); err == nil && info.IsDir() && e.Has(fsnotify.Create) {
				watchTree(w, e.Name)
			}
			timer.Reset(source.Quiet)
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			timer.Reset(source.Quiet) // Events were lost: anything may have changed.
		case <-timer.C:
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
}

// watchTree adds a folder and those in it, or the folder a file is in.
func watchTree(w *fsnotify.Watcher, path string) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	if !info.IsDir() {
		_ = w.Add(filepath.Dir(path))
		return
	}
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // What cannot be watched is read when the interval is over, and that tells.
		case !d.IsDir():
			return nil
		case d.Name() == ".git":
			return fs.SkipDir
		}
		_ = w.Add(p)
		return nil
	})
}

// watchRepository adds the places of a local repository that change with its
// refs.
func watchRepository(w *fsnotify.Watcher, dir string) {
	for _, git := range []string{dir, filepath.Join(dir, ".git")} {
		for _, sub := range []string{"", "refs", filepath.Join("refs", "heads"), filepath.Join("refs", "tags")} {
			if _, err := os.Stat(filepath.Join(git, "HEAD")); err == nil {
				_ = w.Add(filepath.Join(git, sub))
			}
		}
	}
}
