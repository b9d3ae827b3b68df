// Package chart holds the chart to a real helm, to a real API server, and to
// the binaries that it runs: by the flags, the rights and the addresses that it
// gives them, an application goes from a manifest into the kernel. It has no
// kubelet: it does what one would.
package chart
