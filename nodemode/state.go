package nodemode

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/atomicfile"
)

// diskMemory keeps what the gate collected, one file each. It implements
// gate.Memory.
type diskMemory struct {
	dir string
	// most is how many bytes are kept at most, held how many there are: counted when it
	// is pruned, and added to since.
	most int64
	held atomic.Int64
}

// Load implements gate.Memory.
func (d *diskMemory) Load(name string) ([]byte, bool) {
	data, err := os.ReadFile(d.path(name))
	return data, err == nil
}

// Store implements gate.Memory. Where there is no room, nothing is kept over a restart.
func (d *diskMemory) Store(name string, data []byte) error {
	if d.held.Add(int64(len(data))) > d.most {
		d.held.Add(-int64(len(data)))
		return nil
	}
	return atomicfile.Write(d.path(name), data)
}

func (d *diskMemory) path(name string) string {
	return filepath.Join(d.dir, strings.ReplaceAll(name, string(filepath.Separator), "_"))
}

// prune drops what was stored longer than staleFor ago, and the oldest beyond so many
// bytes. What keep reports true for, by the digest of its image, is not dropped.
func (d *diskMemory) prune(most int64, keep func(digest string) bool) error {
	entries, err := os.ReadDir(d.dir)
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
		if keep(digestOf(info.Name())) || held <= most && time.Since(info.ModTime()) < staleFor {
			continue
		}
		if err := os.Remove(filepath.Join(d.dir, info.Name())); err != nil {
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

// possibleCPUs is what per-CPU maps are multiplied by on this host; zero, which
// means the default, where the kernel does not tell.
func possibleCPUs() int {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return 0
	}
	return n
}

// hostLabels are what a node selector sees of this host: Kubernetes' well-known
// labels, then the operator's own.
func hostLabels(own map[string]string) map[string]string {
	labels := map[string]string{"kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH}
	if name, err := os.Hostname(); err == nil {
		labels["kubernetes.io/hostname"] = name
	}
	maps.Copy(labels, own)
	return labels
}
