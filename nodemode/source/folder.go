package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Quiet is how long a folder must have been left alone before it is read: an
// editor writes a file in several steps.
const Quiet = 200 * time.Millisecond

// maxWaits bounds, in times of quiet, how long a folder that is written to all
// the time is waited for.
const maxWaits = 25

// Folder is a source that is read where it lies.
type Folder string

// Fetch waits until nobody has written for a while, or has a definition open for writing: a file
// that an editor has just emptied must not be taken for one that was taken out.
func (f Folder) Fetch(ctx context.Context) (Tree, error) {
	if _, err := os.ReadDir(string(f)); err != nil {
		return Tree{}, fmt.Errorf("read source: %w", err)
	}
	for range maxWaits {
		wait := Quiet - time.Since(lastChange(string(f)))
		if wait > Quiet || wait <= 0 {
			if !isWritten(string(f)) {
				break
			}
			wait = Quiet
		}
		select {
		case <-ctx.Done():
			return Tree{}, ctx.Err()
		case <-time.After(wait):
		}
	}
	return Tree{Dir: string(f), State: Fingerprint(string(f))}, nil
}

// isWritten reports whether a process has a definition in a folder open for writing: the kernel then grants no lease to read it
// (fcntl(2), F_SETLEASE). Where a file system has no leases, or the file is another user's, that is not known.
func isWritten(dir string) (written bool) {
	eachFile(dir, func(name string, info fs.FileInfo) {
		if written || info == nil || !info.Mode().IsRegular() || !slices.Contains([]string{".cue", ".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return
		}
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		// Closing the file ends the lease.
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		written = errors.Is(err, unix.EAGAIN)
	})
	return written
}
