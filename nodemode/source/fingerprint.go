package source

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// eachFile visits what lies in a folder, git's own files apart. The info of what
// cannot be looked at is nil.
func eachFile(dir string, visit func(name string, info fs.FileInfo)) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d == nil {
			visit(name, nil)
			return nil //nolint:nilerr // What cannot be read is visited as such.
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			info = nil
		}
		visit(name, info)
		return nil
	})
}

// changeTime is when a file's inode last changed, which nobody can set; zero
// where the file system does not tell.
func changeTime(info fs.FileInfo) (time.Time, uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}, 0
	}
	return time.Unix(st.Ctim.Unix()), st.Ino
}

// lastChange is the newest change time of a folder's files; zero where there is
// none.
func lastChange(dir string) time.Time {
	var newest time.Time
	eachFile(dir, func(_ string, info fs.FileInfo) {
		if info == nil {
			return
		}
		if changed, _ := changeTime(info); changed.After(newest) {
			newest = changed
		}
	})
	return newest
}

// Fingerprint reports whether files may have changed since it was last taken: it
// hashes names, sizes, inodes and change times. Paths that are not there count
// as such.
func Fingerprint(paths ...string) string {
	sum := sha256.New()
	for _, p := range paths {
		if target, err := filepath.EvalSymlinks(p); err == nil {
			p = target
		}
		eachFile(p, func(name string, info fs.FileInfo) {
			if info == nil {
				fmt.Fprintf(sum, "%q unreadable\n", name)
				return
			}
			changed, inode := changeTime(info)
			fmt.Fprintf(sum, "%q %d %s %d %d\n", name, info.Size(), info.Mode(), inode, changed.UnixNano())
		})
	}
	return hex.EncodeToString(sum.Sum(nil))
}
