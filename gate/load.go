package gate

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitLoad denies a namespace what takes the kernel long to load: an application is one load of the
// node, and those of others wait for it.
func fitLoad(r *denials, id v1alpha1.Identity, programs []v1alpha1.Program, facts bytecode.Facts) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	loads, tails := map[string]int{}, callsTails(facts)
	for _, p := range programs {
		loads[p.Name] = loadsOf(p)
	}
	var all uint64
	var most bytecode.Program
	for _, p := range facts.Programs {
		times, isNamed := loads[p.Name]
		if !isNamed && tails {
			times = 1
		}
		all = addCost(all, p.LoadCost, times)
		if times > 0 && addCost(0, p.LoadCost, times) > addCost(0, most.LoadCost, max(loads[most.Name], 1)) {
			most = p
		}
	}
	if all <= bytecode.MaxLoadCost {
		return
	}
	r.add("inspect/load", "spec.programs", "split the object into several applications, divide by constants, call helpers in a function that is not inlined, "+
		"list fewer attachments, or use a "+v1alpha1.KindClusterBpfApplication,
		"its programs may take the kernel up to %s to load, at most %s are allowed a %s: most takes program %s of %d instructions, %d of which the kernel replaces "+
			"by several, %d in all, and that is loaded %s", bytecode.LoadTime(all), bytecode.LoadTime(bytecode.MaxLoadCost), id.Kind, most.Name,
		most.Instructions, most.Rewrites, most.Translated, times(max(loads[most.Name], 1)))
}

// fitMaking denies a namespace maps that take the kernel of any node long to make: nothing ends that.
func fitMaking(r *denials, id v1alpha1.Identity, overrides map[string]v1alpha1.Map, loaded []bytecode.Map) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	var all, greatest uint64
	var most bytecode.Map
	for _, m := range loaded {
		override := overrides[m.Name]
		if override.From != nil {
			continue
		}
		if override.MaxEntries != nil {
			m.MaxEntries = *override.MaxEntries
		}
		// A node has one CPU at least.
		var cost uint64
		for _, made := range m.Made() {
			cost = addCost(cost, made.MakingCost(1), 1)
		}
		if all = addCost(all, cost, 1); cost > greatest {
			most, greatest = m, cost
		}
	}
	if all <= bytecode.MaxMapCost {
		return
	}
	r.add("inspect/load", "spec.maps."+most.Name, "give it fewer entries or, if it is a Hash or PerCPUHash, the flag BPF_F_NO_PREALLOC, or use a "+
		v1alpha1.KindClusterBpfApplication,
		"its maps may take the kernel %s or more to make, at most %s are allowed a %s: most takes map %s of type %s with %d entries",
		bytecode.LoadTime(all), bytecode.LoadTime(bytecode.MaxMapCost), id.Kind, most.Name, most.Type, most.MaxEntries)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprint(n, " times")
}

// addCost adds a cost a number of times, and stays at the greatest number.
func addCost(all, cost uint64, times int) uint64 {
	high, low := bits.Mul64(cost, uint64(max(times, 0)))
	sum, carry := bits.Add64(all, low, 0)
	if high+carry != 0 {
		return math.MaxUint64
	}
	return sum
}

// loadsOf is how often a program is loaded at most: once for each target that the kernel is told, and
// for each choice of pods that a guard lets in.
func loadsOf(p v1alpha1.Program) int {
	distinct := map[string]bool{}
	for _, a := range p.Attach {
		h, _ := hook.Lookup(a.Hook)
		name := fmt.Sprint(h.ProgramType, h.AttachType)
		if h.IsGuarded(true) {
			pods, err := json.Marshal([]any{a.Pods})
			if err != nil {
				pods = fmt.Append(nil, len(distinct))
			}
			name += string(pods)
		}
		targets := []string{""}
		if h.LoadsForTarget() {
			targets = targetsOf(a)
		}
		for _, target := range targets {
			distinct[name+target] = true
			if at, ok := h.AtOnce(); ok {
				distinct[at.Name+name] = true
			}
		}
	}
	return max(len(distinct), 1)
}
