package nodemode

import (
	"maps"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
)

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
