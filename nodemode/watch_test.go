package nodemode

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestAFolderMayBeMovedAndRemovedWhileOthersAreWatched has fsnotify find that a folder it no longer watches is gone, while
// folders are added: it keeps its lock until that error is read.
func TestAFolderMayBeMovedAndRemovedWhileOthersAreWatched(t *testing.T) {
	dir := t.TempDir()
	watched, moved := filepath.Join(dir, "watched"), filepath.Join(dir, "moved")
	if err := os.Mkdir(watched, 0o755); err != nil {
		t.Fatal(err)
	}
	var moves atomic.Bool
	var w *watcher
	w = Options{Interval: 20 * time.Millisecond}.newWatcher(time.Second, func() []string {
		if moves.CompareAndSwap(true, false) {
			if err := os.Rename(watched, moved); err != nil {
				t.Error(err)
			}
			if err := os.Remove(moved); err != nil {
				t.Error(err)
			}
			// What other folders tell comes first, also of what others do in those on the way.
			for slices.Contains(w.notify.WatchList(), watched) {
				select {
				case <-w.notify.Events:
				default:
				}
			}
		}
		return []string{watched}
	})
	go w.run(t.Context())
	seen := func() bool {
		select {
		case <-w.changed:
			return true
		default:
			return false
		}
	}
	eventually(t, "it is watched", seen)
	moves.Store(true)
	eventually(t, "it is seen that something was missed", seen)
	if err := os.Mkdir(watched, 0o755); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is seen that it is there again", seen)
}
