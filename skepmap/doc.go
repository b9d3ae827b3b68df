// Package skepmap reads the maps of eBPF programs that Skep grants to readers outside of
// programs: by their pins, or by the socket beside them where the kernel lets a reader call no
// bpf(2). It owns the format of a readers' folder, which the agent writes, and must not import
// anything but cilium/ebpf and golang.org/x/sys, since every reader links it.
package skepmap
