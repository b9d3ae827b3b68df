// Package kernel runs the project's compiled test binaries on other kernels
// than the machine's own, in virtual machines.
//
// It owns how a kernel is fetched from the Debian archive, how the initial file
// system is made and how the machine is run. The tests themselves are those of
// the packages; nothing here knows what they test. It is run by
//
//	SKEP_VM_KERNELS=6.1,6.12 go test ./test/kernel
//
// on Debian with qemu-system-x86 and xz-utils, and skipped otherwise.
package kernel
