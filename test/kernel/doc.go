// Package kernel runs the project's compiled test binaries on other kernels
// than the machine's own, in virtual machines.
//
// It owns how a kernel is fetched from the Debian archive, how the initial file
// system is made and how the machine is run. The tests themselves are those of
// the packages; nothing here knows what they test. It is run by make test-kernels,
// which is
//
//	SKEP_VM_KERNELS=own,6.1,6.12 go test -v ./test/kernel
//
// on Debian with qemu-system-x86 and xz-utils, and skipped otherwise. "own" is the
// machine's own kernel. SKEP_VM_PACKAGES=agent=TestX,agent/program/chain chooses packages and
// tests, SKEP_VM_RUN the tests of all of them, and SKEP_VM_BENCH benchmarks. Test binaries are compiled once, into
// bin/kernels, where the consoles are as well; kernels are kept in the user's cache.
//
// SKEP_VM_SYSTEMD=6.12 has this machine's systemd run the units of docs in such a machine.
//
// What the conformance test sees of each hook on each kernel is in hook/conformance;
// SKEP_UPDATE=1 writes it.
package kernel
