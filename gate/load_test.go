package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// TestWhatTakesLongToLoadIsDeniedANamespace counts programs by what the kernel does for each, and how
// often each is loaded.
func TestWhatTakesLongToLoadIsDeniedANamespace(t *testing.T) {
	at := func(hook string, label string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{Containers: []string{label}}}
	}
	functions := func(n int) v1alpha1.Attachment {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("__x64_sys_%d", i)
		}
		return v1alpha1.Attachment{Hook: "fentry", Functions: &v1alpha1.Functions{Names: names}, Pods: &v1alpha1.Pods{}}
	}
	const half = bytecode.MaxLoadCost / 2
	for sentence, c := range map[string]struct {
		cost   uint64
		attach []v1alpha1.Attachment
		others int
		maps   string
		denied bool
	}{
		"as much as may be":                     {half * 2, []v1alpha1.Attachment{at("xdp", "")}, 0, "", false},
		"more than that":                        {half*2 + 1, []v1alpha1.Attachment{at("xdp", "")}, 0, "", true},
		"more than there are numbers for":       {1<<64 - 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "b")}, 0, "", true},
		"on two devices, which are one load":    {half + 1, []v1alpha1.Attachment{at("xdp", ""), at("xdp", "b")}, 0, "", false},
		"for two choices of pods":               {half + 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "b")}, 0, "", true},
		"for one choice of pods twice":          {half + 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "a")}, 0, "", false},
		"for three functions":                   {half, []v1alpha1.Attachment{functions(3)}, 0, "", true},
		"beside two others that are not loaded": {half, []v1alpha1.Attachment{at("xdp", "")}, 2, "Array", false},
		"beside two others that may be called":  {half, []v1alpha1.Attachment{at("xdp", "")}, 2, "ProgramArray", true},
		"a function and what may stand in for it": {half + 1,
			[]v1alpha1.Attachment{{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{"f"}}}}, 0, "", true},
	} {
		facts := bytecode.Facts{Maps: []bytecode.Map{{Name: "m", Type: c.maps}}, Programs: []bytecode.Program{{Name: "p", LoadCost: c.cost}}}
		for i := range c.others {
			facts.Programs = append(facts.Programs, bytecode.Program{Name: fmt.Sprint(i), LoadCost: c.cost})
		}
		defined := []v1alpha1.Program{{Name: "p", Attach: c.attach}}
		for kind, want := range map[string]bool{v1alpha1.KindBpfApplication: c.denied, v1alpha1.KindClusterBpfApplication: false} {
			r := &denials{}
			fitLoad(r, v1alpha1.Identity{Kind: kind}, defined, facts)
			if (len(r.reasons) > 0) != want {
				t.Errorf("%s, of a %s: %v, want it denied: %v", sentence, kind, r.reasons, want)
			}
			for _, why := range r.reasons {
				if why.Rule != "inspect/load" || !strings.Contains(why.Message, "program p") || why.Fix == "" {
					t.Errorf("%s: denied by %+v", sentence, why)
				}
			}
		}
	}
}
