package bytecode

import "github.com/cilium/ebpf"

// Risk is the class of harm a helper or kfunc can do, for policies to weigh.
type Risk string

// The classes. A helper has the gravest that fits it.
const (
	// NoRisk helpers act on what the program's hook hands it anyway.
	NoRisk Risk = ""
	// WritesUserMemory helpers change the memory of the current process.
	WritesUserMemory Risk = "WritesUserMemory"
	// OverridesReturn helpers make a kernel function return without running.
	OverridesReturn Risk = "OverridesReturn"
	// SendsSignals helpers send signals to the current process.
	SendsSignals Risk = "SendsSignals"
	// MakesSystemCalls helpers run system calls from inside the program.
	MakesSystemCalls Risk = "MakesSystemCalls"
	// ReadsKernelMemory helpers read memory that the hook does not hand out, or
	// tell where the kernel's objects lie.
	ReadsKernelMemory Risk = "ReadsKernelMemory"
	// ReadsUserMemory helpers read the memory of a process.
	ReadsUserMemory Risk = "ReadsUserMemory"
	// WritesFiles functions change what a file system holds; only kfuncs do.
	WritesFiles Risk = "WritesFiles"
	// StopsKernel functions bring the machine down; only kfuncs do.
	StopsKernel Risk = "StopsKernel"
)

// Helper is one function that the kernel offers to programs by number.
type Helper struct {
	// ID is the number in the call instruction.
	ID uint32 `json:"id"`
	// Name is the kernel's, such as bpf_map_lookup_elem.
	Name string `json:"name"`
	// MinKernel is the first mainline kernel with the helper, as major.minor.
	MinKernel string `json:"minKernel"`
	// GPLOnly helpers are rejected to programs without a GPL-compatible licence,
	// in every program type but where Program.GPLOnly knows better.
	GPLOnly bool `json:"gplOnly"`
	// Risk is the class of harm; empty for most.
	Risk Risk `json:"risk"`
}

// Helpers returns every helper the kernel has, in the order of their ids.
// Policies read it as data.helpers.
func Helpers() []Helper { return append([]Helper(nil), helperTable[:]...) }

// LookupHelper finds a helper by the kernel's name.
func LookupHelper(name string) (Helper, bool) {
	for _, h := range helperTable {
		if h.Name == name {
			return h, true
		}
	}
	return Helper{}, false
}

// helperByID finds the helper of a call instruction's immediate.
func helperByID(id int64) (Helper, bool) {
	if id < 1 || id > int64(len(helperTable)) {
		return Helper{}, false
	}
	return helperTable[id-1], true
}

// gplOnlyIn reports whether the kernel rejects the helper to a program of that
// type under a licence it does not count as compatible. Perf event programs
// have a bpf_get_stackid of their own, which asks for none
// (bpf_get_stackid_proto_pe in kernel/bpf/stackmap.c).
func (h Helper) gplOnlyIn(t ebpf.ProgramType) bool {
	return h.GPLOnly && !(h.Name == "bpf_get_stackid" && t == ebpf.PerfEvent)
}

// GPLCompatible reports whether the kernel counts a licence as such
// (license_is_gpl_compatible in include/linux/license.h). It compares whole
// strings.
func GPLCompatible(license string) bool {
	switch license {
	case "GPL", "GPL v2", "GPL and additional rights",
		"Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL":
		return true
	}
	return false
}
