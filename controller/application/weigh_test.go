package application

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
)

var everywhere = policy.Where{Everywhere: true}

// TestWhatRunsIsWeighedWhateverItsDefinitionSays has a policy deny what runs of an
// application, whose definition is another version that it allows.
func TestWhatRunsIsWeighedWhateverItsDefinitionSays(t *testing.T) {
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		live string
	}{
		"it is what is defined": {func(*fleet) {}, "v1 on 5"},
		"the newest version was undone": {func(f *fleet) {
			f.version(1)
			f.undo()
		}, "v1 on 5, withdrawn v2"},
		"the newest version is suspended": {func(f *fleet) {
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
			f.version(1)
		}, "v1 on 5"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			if p := f.intent(f.app); f.say(p) != c.live {
				t.Fatalf("%s", f.say(p))
			}
			if effect, err := f.Weigh(t.Context(), everywhere); err != nil || len(effect.Unloads)+len(effect.Denies) != 0 {
				t.Fatalf("before: %+v; %v", effect, err)
			}
			f.create(denies(v1alpha1.RunningUnload, "team-a"))
			f.refresh()
			if effect, err := f.Weigh(t.Context(), everywhere); err != nil || len(effect.Unloads) != 1 || !effect.Unloads[f.app.Identity()] {
				t.Errorf("%+v; %v", effect, err)
			}
		})
	}
}

// TestWhomAChangeDeniesIsSaidOnce names what runs and was allowed before, and not what
// was denied already.
func TestWhomAChangeDeniesIsSaidOnce(t *testing.T) {
	f := newFleet(t)
	f.create(denies(v1alpha1.RunningKeep, "team-a"))
	f.refresh()
	if effect, err := f.Weigh(t.Context(), everywhere); err != nil || len(effect.Denies) != 1 || effect.Denies[0] != f.app.Identity() || len(effect.Unloads) != 0 {
		t.Errorf("%+v; %v", effect, err)
	}
	if effect, err := f.Weigh(t.Context(), policy.Where{Namespaces: map[string]bool{"another": true}}); err != nil || len(effect.Denies) != 0 {
		t.Errorf("another namespace's: %+v; %v", effect, err)
	}
	f.settles()
	if effect, err := f.Weigh(t.Context(), everywhere); err != nil || len(effect.Denies) != 0 {
		t.Errorf("said again: %+v; %v", effect, err)
	}
}

// TestAWeighingEndsWithItsTime looks at nothing once its time is over.
func TestAWeighingEndsWithItsTime(t *testing.T) {
	f := newFleet(t)
	looked := 0
	f.cached.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		looked++
		return c.Get(ctx, key, o, opts...)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if effect, err := f.Weigh(ctx, everywhere); err != nil || looked > 0 || len(effect.Unloads)+len(effect.Denies) != 0 {
		t.Errorf("%d were looked at: %+v; %v", looked, effect, err)
	}
}

// TestADenialThatEvidenceMayEndIsLookedAtAgainSoon has policies deny what one signer signed:
// another signature may come, and another name may not.
func TestADenialThatEvidenceMayEndIsLookedAtAgainSoon(t *testing.T) {
	for what, c := range map[string]struct {
		rego  string
		quiet string
		soon  bool
	}{
		"a second signature is missing": {rego: `deny contains "one signer" if count({s.signer | some s in input.signatures}) < 2`, soon: true},
		"the name is wrong":             {rego: `deny contains "the name" if input.application.metadata.name != "another"`},
		"the name is wrong, and another policy reads evidence": {
			rego:  `deny contains "the name" if input.application.metadata.name != "another"`,
			quiet: `deny contains "three signers" if count({s.signer | some s in input.signatures}) > 2`,
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFleet(t)
			p := denies(v1alpha1.RunningKeep)
			p.Spec.Rego += c.rego
			quiet := denies(v1alpha1.RunningKeep)
			quiet.Name, quiet.UID = "quiet", "quiet"
			quiet.Spec.Rego += c.quiet
			f.create(p)
			f.create(quiet)
			f.refresh()
			f.settles()
			if after := f.reconcile(f.app.Identity()).RequeueAfter; (after <= soon) != c.soon || after == 0 {
				t.Errorf("it is looked at again after %s", after)
			}
		})
	}
}
