package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// lastChange is the newest change time of a folder's files, by their inodes;
// zero where there is none.
func lastChange(dir string) time.Time {
	var newest time.Time
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if changed := time.Unix(st.Ctim.Unix()); changed.After(newest) {
				newest = changed
			}
		}
		return nil
	})
	return newest
}

// fingerprint tells whether files may have changed since it was last taken: it
// hashes names, sizes, inodes and change times, which nobody can set. Paths
// that are not there count as such.
func fingerprint(paths ...string) string {
	sum := sha256.New()
	for _, p := range paths {
		if target, err := filepath.EvalSymlinks(p); err == nil {
			p = target
		}
		_ = filepath.WalkDir(p, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				fmt.Fprintf(sum, "%q unreadable\n", name)
				return nil
			}
			if d.IsDir() && d.Name() == ".git" {
				return fs.SkipDir
			}
			info, err := d.Info()
			if err != nil {
				fmt.Fprintf(sum, "%q gone\n", name)
				return nil
			}
			fmt.Fprintf(sum, "%q %d %s", name, info.Size(), info.Mode())
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				fmt.Fprintf(sum, " %d %d.%d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
			}
			fmt.Fprintln(sum)
			return nil
		})
	}
	return hex.EncodeToString(sum.Sum(nil))
}
