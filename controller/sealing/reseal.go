package sealing

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// Resealer seals every intent anew after a rotation, and then has the former
// keys trusted no more. It runs on the leader, which alone seals.
type Resealer struct {
	// Client writes intents; Live reads them past the cache. Needed.
	Client client.Client
	Live   client.Reader
	// Ring is needed.
	Ring *Ring
	// Every is how often it looks; zero means 15 seconds. Batch is how many
	// intents it seals at most each time; zero means 100.
	Every time.Duration
	Batch int
}

// Start seals anew until ctx ends.
func (r *Resealer) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := r.Step(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "seal intents with the current key")
		}
	}, cmp.Or(r.Every, 15*time.Second))
	return nil
}

// Step seals one batch anew, and drops the former keys where all is sealed with
// the current one for long enough. It does nothing where there are none.
func (r *Resealer) Step(ctx context.Context) error {
	keys := r.Ring.Keys()
	if r.Ring.store == nil || !keys.Former {
		return nil
	}
	current, err := intent.NewTrust(keys.Sealer.Public())
	if err != nil {
		return err
	}
	var all v1alpha1.BpfIntentList
	if err := r.Live.List(ctx, &all); err != nil {
		return fmt.Errorf("list intents: %w", err)
	}
	left, room := false, cmp.Or(r.Batch, 100)
	for i := range all.Items {
		o := &all.Items[i]
		if _, err := current.Open(o.Spec.Envelope); err == nil {
			continue
		}
		opened, err := keys.Trust.Open(o.Spec.Envelope)
		if err != nil {
			// No key opens it, neither a former one: it is nobody's.
			continue
		}
		left = true
		if room--; room < 0 {
			break
		}
		if err := r.reseal(ctx, o, opened, keys.Sealer); err != nil {
			return err
		}
	}
	dropped, err := r.Ring.store.retire(ctx, keys.Sealer.Public(), !left)
	if dropped {
		ctrl.LoggerFrom(ctx).Info("every intent is sealed with the current key; those before it are trusted no more")
		return r.Ring.load(ctx)
	}
	return err
}

// reseal writes one intent as it is under the current seal. Somebody else's
// write in between is looked at the next time.
func (r *Resealer) reseal(ctx context.Context, o *v1alpha1.BpfIntent, opened intent.Opened, s *intent.Sealer) error {
	envelope, err := gate.Reseal(s, opened)
	if err != nil {
		return err
	}
	o.Spec.Envelope = envelope
	err = r.Client.Update(ctx, o)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return wrap("seal anew", o, err)
}
