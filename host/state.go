package host

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
)

// diskMemory keeps what the gate collected, one file each. It implements
// gate.Memory.
type diskMemory string

// Load implements gate.Memory.
func (d diskMemory) Load(name string) ([]byte, bool) {
	data, err := os.ReadFile(d.path(name))
	return data, err == nil
}

// Store implements gate.Memory.
func (d diskMemory) Store(name string, data []byte) error {
	return writeAtomic(d.path(name), data)
}

func (d diskMemory) path(name string) string {
	return filepath.Join(string(d), strings.ReplaceAll(name, string(filepath.Separator), "_"))
}

// writeAtomic replaces a file whole or not at all.
func writeAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	// So that the rename survives a crash of the machine.
	folder, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

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
