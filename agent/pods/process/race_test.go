package process

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

const goarch = runtime.GOARCH

// TestNoRaceLeadsOutOfTheRoot resolves paths while links are exchanged, folders are moved out
// of the root and back, and mounts come and go.
func TestNoRaceLeadsOutOfTheRoot(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	root := rootOf(t, dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"r/a/b", "r/m", "other", "moved"} {
		must(t, os.MkdirAll(at(name), 0o755))
	}
	inside := map[uint64]string{}
	for name, in := range map[string]bool{"r/file": true, "r/m/file": true, "other/file": true, "file": false, "moved/file": false} {
		must(t, os.WriteFile(at(name), nil, 0o600))
		var stat unix.Stat_t
		must(t, unix.Stat(at(name), &stat))
		if in {
			inside[stat.Ino] = name
		}
	}
	must(t, os.Symlink("file", at("r/link")))
	swaps := []func(i int) error{
		func(i int) error {
			to := []string{"file", "../file", dir + "/file", "m/../../file", "/proc/self/cwd/file"}[i%5]
			return errors.Join(os.Symlink(to, at("r/next")), os.Rename(at("r/next"), at("r/link")))
		},
		func(i int) error {
			if i%2 == 0 {
				return os.Rename(at("r/a/b"), at("moved/b"))
			}
			return os.Rename(at("moved/b"), at("r/a/b"))
		},
		func(i int) error {
			if i%2 == 0 {
				return unix.Mount(at("other"), at("r/m"), "", unix.MS_BIND, "")
			}
			return unix.Unmount(at("r/m"), unix.MNT_DETACH)
		},
	}
	stop, ended := make(chan struct{}), make(chan error)
	for _, swap := range swaps {
		go func() {
			var failed error
			// An even number of them, so that all is where it was.
			for i := 0; ; i++ {
				failed = errors.Join(failed, swap(i))
				select {
				case <-stop:
					if i%2 == 1 {
						ended <- failed
						return
					}
				default:
				}
			}
		}()
	}
	found, end := map[string]int{}, time.Now().Add(2*time.Second)
	for time.Now().Before(end) {
		for _, name := range []string{"/link", "/a/b/../../file", "/m/file", "/a/b/../../../file"} {
			f, err := OpenIn(root, name)
			if err != nil {
				continue
			}
			var stat unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &stat))
			_ = f.Close()
			if inside[stat.Ino] == "" {
				t.Fatalf("%s leads to the inode %d, which is outside of the root", name, stat.Ino)
			}
			found[name+" is "+inside[stat.Ino]]++
		}
	}
	close(stop)
	for range swaps {
		must(t, <-ended)
	}
	for _, want := range []string{"/link is r/file", "/a/b/../../file is r/file", "/m/file is r/m/file", "/m/file is other/file"} {
		if found[want] == 0 {
			t.Errorf("%q was never so: %v", want, found)
		}
	}
}

// multiarch is the name of Debian's folder of libraries on this machine.
func multiarch() string {
	folders := libraryFolders(goarch)
	return filepath.Base(folders[len(folders)-1])
}
