package loader

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestASocketFilterDecidesNothing runs socket filters as programs of a device: whatever they return,
// and however they end, the next program decides.
func TestASocketFilterDecidesNothing(t *testing.T) {
	object, err := corpus.Objects.ReadFile("testdata/socket_filter.o")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"keeps_all", "reads_too_far", "tail_calls"}
	for _, kind := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
		t.Run(kind, func(t *testing.T) {
			p := intent.Payload{Application: v1alpha1.Identity{Kind: kind, Name: "app"}}
			for _, name := range names {
				p.Programs = append(p.Programs, program(name, "tcx/ingress", "")...)
			}
			prepared, err := Prepare(opened(t, p), object)
			if err != nil {
				t.Fatal(err)
			}
			need.Kernel(t)
			loaded := load(t, prepared, nil)
			for _, name := range names {
				instance := plan.InstanceOf(p.Application, name, v1alpha1.Attachment{Hook: "tcx/ingress"}, "")
				got, err := loaded.Programs[instance].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
				if err != nil {
					t.Fatal(err)
				}
				if tcxNext := int32(-1); int32(got) != tcxNext {
					t.Errorf("%s returns %d, want %d", name, int32(got), tcxNext)
				}
			}
		})
	}
}
