// Package cached has folders that take minutes to fill, outside of the clone and of Go's own caches.
// It owns where they are, and that one process fills each. It knows nothing of what is in them.
package cached

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Path is where the folder of a name is, or will be.
func Path(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache folder: %w", err)
	}
	return filepath.Join(cache, "skep-test", name), nil
}

// Once makes a folder where there is none: fill fills another one, which is renamed into place.
// Callers at the same time wait for the first.
func Once(dir string, fill func(aside string) error) error {
	return Alone(dir, func() error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		aside, err := os.MkdirTemp(filepath.Dir(dir), "build")
		if err != nil {
			return err
		}
		defer os.RemoveAll(aside)
		if err := fill(aside); err != nil {
			return err
		}
		return os.Rename(aside, dir)
	})
}

// Alone calls do while no other process does for the same path, at which there need be nothing.
func Alone(path string, do func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return do()
}
