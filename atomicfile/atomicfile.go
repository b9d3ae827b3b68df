// Package atomicfile writes files whole or not at all: a reader of a path finds what was there
// before, or all of what was written.
//
// It owns the names of files that are being written. It removes none that another process
// left: only the owner of a folder knows when nobody writes there.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// prefix begins the names of files that are being written.
const prefix = ".new-"

// ownerOnly is the mode of a new temporary file.
const ownerOnly os.FileMode = 0o600

// IsTemporary reports whether a file of that name is one that is being written, or was when
// a process ended.
func IsTemporary(name string) bool { return strings.HasPrefix(name, prefix) }

// Write replaces the file at path by one with that content, which its owner alone may
// read. It survives a power failure: file and folder are synced.
func Write(path string, content []byte) error {
	if err := write(path, content, ownerOnly, true); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// WriteUnsynced is Write of what may be lost by a power failure. The caller may Sync the
// folder, and the file's content, later.
func WriteUnsynced(path string, content []byte) error { return write(path, content, ownerOnly, false) }

// WriteShared is WriteUnsynced of a file with that mode, for others to read.
func WriteShared(path string, content []byte, mode os.FileMode) error {
	return write(path, content, mode, false)
}

func write(path string, content []byte, mode os.FileMode, sync bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), prefix+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if mode != ownerOnly && err == nil {
		err = f.Chmod(mode)
	}
	if sync && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Sync has the names in a folder survive a power failure.
func Sync(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Temporary returns the paths in a folder of files that are being written, or were when a
// process ended.
func Temporary(folder string) ([]string, error) {
	return filepath.Glob(filepath.Join(folder, prefix+"*"))
}
