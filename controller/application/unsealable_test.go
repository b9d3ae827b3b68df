package application

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// probes are as many attachments as a program may have, their text filled with a
// character.
func probes(with rune) []v1alpha1.Program {
	p := v1alpha1.Program{Name: "uprobe_count"}
	for range v1alpha1.MaxProgramAttachments {
		p.Attach = append(p.Attach, v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{
			Path: "/" + strings.Repeat(string(with), 4095), Symbol: strings.Repeat(string(with), 4096),
		}})
	}
	return []v1alpha1.Program{p}
}

// TestWhatCannotBeSealedKeepsNothing has a version take the place of what runs that
// cannot be sealed, whoever denies it.
func TestWhatCannotBeSealedKeepsNothing(t *testing.T) {
	for sentence, act := range map[string]func(*fleet){
		"of a revoked signer": func(f *fleet) { f.revoke("team-a") },
		"that a policy wants unloaded": func(f *fleet) {
			f.create(denies(v1alpha1.RunningUnload, "team-a"))
			f.refresh()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.Intents.Client = interceptor.NewClient(f.Intents.Client.(client.WithWatch), interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					if i, ok := o.(*v1alpha1.BpfIntent); ok && !i.Spec.Tombstone {
						return apierrors.NewRequestEntityTooLargeError("an intent")
					}
					return c.Update(ctx, o, opts...)
				},
			})
			if p := f.version(1); f.say(p) != "v1 on 5" {
				t.Fatalf("before: %s", f.say(p))
			}
			act(f)
			if p := f.settles(); !p.Tombstone {
				t.Errorf("it runs on: %s by %v", f.say(p), p.Signers)
			}
		})
	}
}

// TestADefinitionGrowsByNoEscape has a definition sealed whose text JSON may escape to
// six times as much.
func TestADefinitionGrowsByNoEscape(t *testing.T) {
	f := newFleet(t)
	ref, _ := f.Push("app:big", programs.Object("uprobe_count"), "team-b")
	p := f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image, s.Programs = ref, probes('<') })
	if p.Image != ref {
		t.Fatalf("it is not sealed: %s; %+v", f.say(p), f.app.Status.Conditions)
	}
}

// TestADefinitionThatNoIntentHoldsIsDenied has the text of a definition grow, as far as
// JSON has it, beyond what is sealed.
func TestADefinitionThatNoIntentHoldsIsDenied(t *testing.T) {
	f := newFleet(t)
	ref, _ := f.Push("app:big", programs.Object("uprobe_count"), "team-b")
	p := f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image, s.Programs = ref, probes('\u2028') })
	allowed := condition(f.app, v1alpha1.ConditionAllowed)
	if f.say(p) != "v1 on 5" || allowed.Reason != lifecycle.ReasonDenied || !strings.Contains(allowed.Message, "shape/size") {
		t.Fatalf("%s; %+v", f.say(p), allowed)
	}
	if p := f.revoke("team-a"); !p.Tombstone {
		t.Errorf("it runs on: %s by %v", f.say(p), p.Signers)
	}
}
