// Package chain joins the XDP programs of one network interface into a single
// program that runs them in order, so that several applications share a hook
// the kernel gives to one program only.
//
// Each member becomes a function that a small generated dispatcher calls; the
// dispatcher reads each verdict against the member's proceedOn and counts runs.
// Link is pure: it turns members into a program specification and rejects what
// the kernel's limits cannot hold. Load is the only part that talks to the
// kernel. The package attaches nothing, pins nothing and decides no order: the
// caller hands the members over sorted.
package chain

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// programName is the name of every linked program, in the kernel and in its BTF.
const programName = "skep_xdp_chain"

// CountersName is the name of the map in which the dispatcher counts runs.
const CountersName = "skep_chain_runs"

// ownerName is what the dispatcher calls the map that says whose the chain is.
const ownerName = "skep_chain_owner"

// The kernel's limits on one program, and so on all members of a chain
// together.
const (
	// MaxMaps is MAX_USED_MAPS of include/linux/bpf_verifier.h. Data sections
	// are maps, and the chain's own counters are one.
	MaxMaps = 64
	// MaxSubprograms is BPF_MAX_SUBPROGS; the dispatcher is one of them.
	MaxSubprograms = 256
	// MaxFrames is MAX_CALL_FRAMES; the dispatcher is the first frame.
	MaxFrames = 8
	// MaxInstructions is BPF_COMPLEXITY_LIMIT_INSNS: of the program's length and
	// of the instructions the verifier walks, each.
	MaxInstructions = 1_000_000
	// MaxStack is MAX_BPF_STACK: bytes of stack along the deepest call path.
	MaxStack = 512
)

// frags is BPF_F_XDP_HAS_FRAGS of include/uapi/linux/bpf.h.
const frags = 1 << 5

// Member is one place in a chain.
type Member struct {
	// Key names the place in counters and rejections, such as
	// "default/xdp-counter count_packets". It is unique in a chain.
	Key string
	// Application tells whose symbols and maps are shared: members of one
	// application and revision have equal values and the same Object, and use
	// the same maps; others share nothing. The UID and the revision hash do.
	Application string
	// Object is the application's object, with its variables set. It is not
	// modified.
	Object *ebpf.CollectionSpec
	// Program is the function in Object. The same one may stand in a chain
	// twice, under two keys.
	Program string
	// Facts are what package bytecode read about Program. The chain believes
	// their licence, since the kernel no longer sees it.
	Facts bytecode.Program
	// ProceedOn has bit v set when the next member runs after verdict v of enum
	// xdp_action. It has no meaning for the last member.
	ProceedOn uint32
	// Final members, which are none of tenants and stand behind theirs, see each packet that those let through.
	Final bool
	// Tenant is whose member it is: a rejection names no member of another tenant.
	// Empty is the cluster's own, whose rejections may name any.
	Tenant string
	// New marks the member to reject where members do not fit together: one that the running chain does
	// not have.
	New bool
	// Joins marks every member that the running chain does not have, whether or not it is blamed.
	Joins bool
}

// ProceedOn turns the names of verdicts in a definition into a mask. No names
// mean Pass, the default of the API.
func ProceedOn(names []string) (uint32, error) {
	if len(names) == 0 {
		names = []string{"Pass"}
	}
	var mask uint32
	for _, name := range names {
		v, ok := verdict(name)
		if !ok {
			return 0, fmt.Errorf("read proceedOn: %q is no XDP verdict; write one of %s", name, strings.Join(Verdicts(^uint32(0)), ", "))
		}
		mask |= 1 << v.Code
	}
	return mask, nil
}

// Verdicts turns a mask back into names, in the order of enum xdp_action. Bits
// of verdicts that do not exist are left out.
func Verdicts(mask uint32) []string {
	names := []string{}
	for _, v := range hook.XDPVerdicts() {
		if mask&(1<<v.Code) != 0 {
			names = append(names, v.Name)
		}
	}
	return names
}

func verdict(name string) (hook.Verdict, bool) {
	for _, v := range hook.XDPVerdicts() {
		if v.Name == name {
			return v, true
		}
	}
	return hook.Verdict{}, false
}
