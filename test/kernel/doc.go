// Package kernel runs the project's compiled test binaries on other kernels
// than the machine's own, in virtual machines.
//
// It owns how a kernel is fetched from the Debian archive, how the initial file
// system is made and how the machine is run. The tests themselves are those of
// the packages; nothing here knows what they test. It is run by
//
//	SKEP_VM_KERNELS=6.1,6.12 go test -v ./test/kernel
//
// on Debian with qemu-system-x86 and xz-utils, and skipped otherwise.
// SKEP_VM_PACKAGES names other packages than the chain and the inventory.
//
// Seen to pass on 6.1.0-56 and 6.12.117 of Debian 12, in about a minute each
// on two busy processors, as do agent/attach, agent/kernel and agent. 6.1
// skips kfuncs on packets (6.4), TCX (6.6), cgroup/*_unix (6.7), the targets of
// perf_event links (6.6) and what needs stack frames rounded to 16 bytes.
package kernel
