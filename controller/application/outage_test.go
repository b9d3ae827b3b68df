package application

import (
	"errors"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// TestARegistryThatAnswersAgainEndsTheWait stops the registry and starts it again. An application that waited for it is
// sealed at its first look after that, and there is one within half a minute, however long the registry was away.
func TestARegistryThatAnswersAgainEndsTheWait(t *testing.T) {
	for sentence, signer := range map[string]string{"of an image that no replica has seen": "team-a", "of one whose signer was added meanwhile": "team-b"} {
		t.Run(sentence, func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			b.reconcile(app.Identity())
			before := b.intent(app)
			next, digest := b.Push("app:v2", append(programs.Object("tracepoint_count"), 0), signer)
			again, waits := b.Kill(), retries[v1alpha1.Identity]()
			b.change(app, func() { app.Spec.Bytecode.Image = next; app.Generation++ })
			for range 20 {
				if _, err := b.Reconcile(t.Context(), app.Identity()); !errors.Is(err, image.ErrUnavailable) {
					t.Fatalf("Reconcile = %v", err)
				}
				if after := waits.When(app.Identity()); after > soon {
					t.Fatalf("it is looked at again after %s", after)
				}
			}
			c, sealed := condition(b.status(app), v1alpha1.ConditionVerified), b.intent(app).ImageDigest
			if c.Reason != lifecycle.ReasonEvaluationFailed || sealed != before.ImageDigest {
				t.Errorf("while the registry is away: %+v, sealed %s", c, sealed)
			}
			if signer != "team-a" {
				b.create(b.Signer(signer))
				b.refresh()
			}
			again()
			b.reconcile(app.Identity())
			if p := b.intent(app); p.ImageDigest != digest {
				t.Errorf("sealed %s, want %s", p.ImageDigest, digest)
			}
		})
	}
}
