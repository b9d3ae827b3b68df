package imagestore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/intent"
)

// Pruner drops bytecode from one replica's disk that nothing needs: no live
// intent, no application's status, and no evaluation for long.
type Pruner struct {
	// Reader is needed.
	Reader client.Reader
	// Open opens an intent's seal; false where it does not hold. Needed.
	Open func(*v1alpha1.BpfIntent) (intent.Payload, bool)
	// Cache is what to prune; *disk.Cache is one. Needed.
	Cache interface {
		Prune(context.Context, disk.PruneOptions) (disk.Pruned, error)
	}
	// MaxBytes is what the cache holds before anything goes before its time; what is
	// needed counts.
	MaxBytes int64
	// Every is how often it looks; zero means a minute.
	Every time.Duration
}

// What nothing needs now and may need again is kept for maxAge, and spared for
// minAge, as long as a pull takes.
const (
	maxAge = 24 * time.Hour
	minAge = 2 * time.Minute
)

// NeedLeaderElection tells a manager to run the Pruner on every replica.
func (p *Pruner) NeedLeaderElection() bool { return false }

// Start prunes until ctx ends.
func (p *Pruner) Start(ctx context.Context) error {
	return again(ctx, cmp.Or(p.Every, time.Minute), "prune bytecode cache", p.Prune)
}

// again does something every so often until ctx ends, and logs what goes wrong.
func again(ctx context.Context, every time.Duration, what string, do func(context.Context) error) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := do(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, what)
		}
	}, every)
	return nil
}

// Prune drops once what is due.
func (p *Pruner) Prune(ctx context.Context) error {
	needed, err := used(ctx, p.Reader)
	if err != nil {
		return err
	}
	var intents v1alpha1.BpfIntentList
	if err := p.Reader.List(ctx, &intents); err != nil {
		return fmt.Errorf("list intents: %w", err)
	}
	for i := range intents.Items {
		payload, ok := p.Open(&intents.Items[i])
		if !ok {
			continue
		}
		for _, version := range payload.Versions() {
			needed.add(version.ImageDigest, tenantOf(payload.Application))
			needed.add(version.ObjectDigest, tenantOf(payload.Application))
		}
	}
	dropped, err := p.Cache.Prune(ctx, disk.PruneOptions{
		MaxBytes: p.MaxBytes, MaxAge: maxAge, MinAge: minAge, Keep: func(digest string) bool { return needed[digest] != nil },
	})
	if dropped.Blobs > 0 {
		ctrl.LoggerFrom(ctx).Info("dropped bytecode that nothing needs", "blobs", dropped.Blobs, "bytes", dropped.Bytes)
	}
	return err
}
