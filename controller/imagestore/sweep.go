package imagestore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
)

// Sweeper deletes the BpfImages that nothing has used for long. It runs on the
// leader.
type Sweeper struct {
	// Client is needed.
	Client client.Client
	// Every is how often it looks; zero means an hour. KeepFor is how old an
	// unused BpfImage gets; zero means a day.
	Every, KeepFor time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	return again(ctx, cmp.Or(s.Every, time.Hour), "sweep images", s.Sweep)
}

// Sweep deletes once what is neither evaluated nor running and old enough.
func (s *Sweeper) Sweep(ctx context.Context) error {
	used, err := used(ctx, s.Client)
	if err != nil {
		return err
	}
	var all v1alpha1.BpfImageList
	if err := s.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	keepFor, now := cmp.Or(s.KeepFor, 24*time.Hour), clock.OrSystem(s.Now)
	for i := range all.Items {
		o := &all.Items[i]
		if used[digestOf(o.Name)] != nil || now().Sub(o.CreationTimestamp.Time) < keepFor {
			continue
		}
		if err := client.IgnoreNotFound(s.Client.Delete(ctx, o)); err != nil {
			return wrap("delete", o.Name, err)
		}
	}
	return nil
}

// used are the digests of the images that are evaluated or run, with who uses them.
func used(ctx context.Context, reader client.Reader) (users, error) {
	digests := users{}
	var intents v1alpha1.BpfIntentList
	if err := reader.List(ctx, &intents, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list what uses images: %w", err)
	}
	for i := range intents.Items {
		digests.add(intents.Items[i].Spec.Digest, tenantOf(intents.Items[i].Spec.Application))
	}
	return digests, eachApplication(ctx, reader, func(app v1alpha1.Application) {
		digests.add(app.Report().Digest, tenantOf(app.Identity()))
		digests.add(app.Report().PreviousDigest, tenantOf(app.Identity()))
	})
}

// eachApplication visits the applications of both scopes, which it must not change.
func eachApplication(ctx context.Context, reader client.Reader, visit func(v1alpha1.Application)) error {
	var (
		namespaced v1alpha1.BpfApplicationList
		cluster    v1alpha1.ClusterBpfApplicationList
	)
	for _, list := range []client.ObjectList{&namespaced, &cluster} {
		if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list what uses images: %w", err)
		}
	}
	for i := range namespaced.Items {
		visit(&namespaced.Items[i])
	}
	for i := range cluster.Items {
		visit(&cluster.Items[i])
	}
	return nil
}
