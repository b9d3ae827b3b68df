// Package diskmemory keeps what the gate collected in a folder, for the next start.
//
// It bounds the folder by bytes. The gate verifies what it reads from it.
package diskmemory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/atomicfile"
)

// Memory keeps what the gate collected, one file each. It implements
// gate.Memory.
type Memory struct {
	// Dir is an existing folder of its own.
	Dir string
	// MaxBytes is the most that is kept: what comes beyond is not stored.
	MaxBytes int64
	// held is how many bytes there are: counted when it is pruned, and added to since.
	held atomic.Int64
}

// Load implements gate.Memory.
func (d *Memory) Load(name string) ([]byte, bool) {
	data, err := os.ReadFile(d.path(name))
	return data, err == nil
}

// Store implements gate.Memory. Where there is no room, nothing is kept over a restart.
func (d *Memory) Store(name string, data []byte) error {
	if d.held.Add(int64(len(data))) > d.MaxBytes {
		d.held.Add(-int64(len(data)))
		return nil
	}
	return atomicfile.Write(d.path(name), data)
}

func (d *Memory) path(name string) string {
	return filepath.Join(d.Dir, strings.ReplaceAll(name, string(filepath.Separator), "_"))
}

// Prune drops what was stored longer than maxAge ago, and the oldest beyond so many
// bytes. What keep reports true for, by the digest of its image, is not dropped.
func (d *Memory) Prune(most int64, maxAge time.Duration, keep func(digest string) bool) error {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	all, held := make([]fs.FileInfo, 0, len(entries)), int64(0)
	for _, e := range entries {
		// One that was replaced meanwhile is counted the next time.
		if info, err := e.Info(); err == nil {
			all, held = append(all, info), held+info.Size()
		}
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, info := range all {
		if keep(digestOf(info.Name())) || held <= most && time.Since(info.ModTime()) < maxAge {
			continue
		}
		if err := os.Remove(filepath.Join(d.Dir, info.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		held -= info.Size()
	}
	d.held.Store(held)
	return errors.Join(errs...)
}

// digestOf is the digest that a name of the gate's ends with.
func digestOf(name string) string { return name[strings.LastIndex(name, "-")+1:] }

// Held is how many bytes there are.
func (d *Memory) Held() int64 { return d.held.Load() }
