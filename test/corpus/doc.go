// Package corpus has objects as people write them, and a test that runs each of them as a
// new user would: with the shortest definition that the gate takes.
//
// The programs in testdata are one for each feature of libbpf that tools use. make corpus
// adds objects that nobody here wrote: the test data of cilium/ebpf and, on Debian, the
// programs of libbpf-tools, pcp, knot and xdp-tools. The test counts those that the library
// loads by itself, and of these the ones that load and fire in Skep.
//
// It owns the objects and the count. What fires is decided by the kernel, which counts how
// often each program ran.
package corpus

import "embed"

//go:generate go run ../fixture/programs/compile testdata testdata

// Objects are the compiled programs of testdata.
//
//go:embed testdata/*.o
var Objects embed.FS
