package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// calling are programs with so many calls each, no two with the same ones, of 200 helpers with names of usual length.
func calling(programs, calls int) (facts bytecode.Facts, defined []v1alpha1.Program) {
	for i := range programs {
		p := bytecode.Program{Name: fmt.Sprintf("handle_message_%d", i)}
		for call := range calls {
			p.Helpers = append(p.Helpers, fmt.Sprintf("bpf_some_helper_%03d", (i+call*3)%200))
		}
		facts.Programs = append(facts.Programs, p)
		defined = append(defined, v1alpha1.Program{Name: p.Name})
	}
	return facts, defined
}

// TestTheFactsOfManyProgramsAreSealed has as many programs as an application may have, in as many versions as an intent may.
func TestTheFactsOfManyProgramsAreSealed(t *testing.T) {
	for _, c := range []struct {
		calls  int
		most   int
		denied bool
	}{{15, 25 << 10, false}, {50, 56 << 10, false}, {150, 144 << 10, true}} {
		facts, defined := calling(v1alpha1.MaxPrograms, c.calls)
		sealed := sealedFacts(defined, facts)
		n, err := intent.Payload{Facts: sealed}.Size()
		t.Logf("%d calls of each program: %d bytes", c.calls, n)
		if err != nil || n > c.most {
			t.Errorf("%d calls of each program take %d bytes, more than %d: %v", c.calls, n, c.most, err)
		}
		r := &denials{}
		fitSize(r, &v1alpha1.ClusterBpfApplication{}, defined, facts)
		if denied := r.err(); (denied != nil) != c.denied || c.denied && !strings.Contains(denied.Error(), "its programs do so much") {
			t.Errorf("%d calls of each program: %v", c.calls, denied)
		}
		p := intent.Payload{Facts: sealed, Previous: &intent.Payload{Facts: sealed}}
		for range 4 {
			p.Withdrawn = append(p.Withdrawn, *p.Previous)
		}
		if n, err := p.Size(); !c.denied && (err != nil || n > intent.MaxPayloadBytes/2) {
			t.Errorf("six versions of %d calls of each program take %d bytes: %v", c.calls, n, err)
		}
	}
}

// TestWhatSectionsSayIsSealed has a definition that fits, and does not with the targets that its object names.
func TestWhatSectionsSayIsSealed(t *testing.T) {
	app := &v1alpha1.ClusterBpfApplication{}
	app.Spec.Bytecode.Image = strings.Repeat("i", intent.MaxPayloadBytes-sealRest-1000)
	facts, defined := calling(1, 1)
	for target, denied := range map[string]bool{"tcp_connect": false, strings.Repeat("f", 1000): true} {
		defined[0].Attach = []v1alpha1.Attachment{{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{target}}}}
		r := &denials{}
		if fitSize(r, app, defined, facts); (len(r.reasons) > 0) != denied {
			t.Errorf("a target of %d bytes: %v", len(target), r.reasons)
		}
	}
}
