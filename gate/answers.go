package gate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/answers"
	"github.com/skep-dev/skep/policies"
)

// answerWarnings say of a namespace's programs on traffic which of their answers the agent has the kernel take for another one
// (guard.BoundAnswers). A program that the definition does not name counts where it may be tail called.
func answerWarnings(i Inspected) []policies.Reason {
	id := i.req.Application.Identity()
	if id.Kind != v1alpha1.KindBpfApplication {
		return nil
	}
	var r denials
	n := scopeOf(i.programs, callsTails(i.facts))
	for _, p := range i.facts.Programs {
		at, isNamed := n.paths[p.Name]
		if !isNamed && !n.tails || !n.placeOf(p.Name).Traffic {
			continue
		}
		at = cmp.Or(at, "spec.bytecode.image")
		if slices.Contains(p.Answers, answers.Pass) {
			r.add("inspect/answer", at, "return TCX_NEXT (-1) if that is meant, or use a "+v1alpha1.KindClusterBpfApplication,
				"program %s can return 0 (TCX_PASS, TC_ACT_OK), which does not end the hook in a %s: the next program runs", p.Name, id.Kind)
		}
		if drops := dropped(p.Answers); len(drops) > 0 {
			r.add("inspect/answer", at, "return TCX_DROP (2) if that is meant, else TCX_NEXT (-1); to send packets elsewhere, use hook xdp or a "+
				v1alpha1.KindClusterBpfApplication, "program %s can return %s, by which a %s drops the packet", p.Name, strings.Join(drops, " or "), id.Kind)
		}
	}
	return r.reasons
}

// dropped names the answers by which a namespace's program drops the packet, and others do not.
func dropped(all []int64) (names []string) {
	for _, answer := range all {
		switch answer {
		case answers.Stolen:
			names = append(names, "4 (TC_ACT_STOLEN)")
		case answers.Redirect:
			names = append(names, "7 (TCX_REDIRECT, TC_ACT_REDIRECT)")
		case answers.Trap:
			names = append(names, "8 (TC_ACT_TRAP)")
		}
	}
	return names
}
