package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Quiet is how long a folder must have been left alone before it is read: an
// editor writes a file in several steps.
const Quiet = 200 * time.Millisecond

// maxWaits bounds, in times of quiet, how long a folder that is written to all
// the time is waited for.
const maxWaits = 10

// Folder is a source that is read where it lies.
type Folder string

// Fetch waits until nobody has written for a while: a file that an editor has
// just emptied must not be taken for one that was taken out.
func (f Folder) Fetch(ctx context.Context) (Tree, error) {
	dir, err := filepath.EvalSymlinks(string(f))
	if err == nil {
		_, err = os.ReadDir(dir)
	}
	if err != nil {
		return Tree{}, fmt.Errorf("read source: %w", err)
	}
	t := Tree{Dir: dir}
	for range maxWaits {
		idle := time.Since(lastChange(dir))
		if t.quiet = idle >= Quiet || idle < 0; t.quiet {
			break
		}
		select {
		case <-ctx.Done():
			return Tree{}, ctx.Err()
		case <-time.After(Quiet - idle):
		}
	}
	t.State = Fingerprint(dir)
	return t, nil
}
