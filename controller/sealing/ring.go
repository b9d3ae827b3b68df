package sealing

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Ring holds the keys active, which change while the controller runs.
type Ring struct {
	// Every is how often the Secret is looked at; zero means a minute. It is set
	// before Start.
	Every time.Duration

	mu    sync.RWMutex
	keys  Keys
	store *Store
}

// NewRing holds keys that do not change.
func NewRing(k Keys) *Ring { return &Ring{keys: k} }

// Open loads the keys of a Store; Start keeps them up to date.
func Open(ctx context.Context, s *Store) (*Ring, error) {
	k, err := s.Load(ctx)
	return &Ring{keys: k, store: s}, err
}

// Keys are those active.
func (r *Ring) Keys() Keys {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys
}

// OpenIntent is what a BpfIntent says; false where its seal does not hold.
func (r *Ring) OpenIntent(o *v1alpha1.BpfIntent) (intent.Payload, bool) {
	opened, err := r.Keys().Trust.Open(o.Spec.Envelope)
	return opened.Payload(), err == nil
}

// every is how often the Secret is looked at where nothing else is asked for: often enough for all replicas to
// trust a new key long before one of them seals with it.
const every = time.Minute

// Start loads the keys again and again until ctx ends. Keys that cannot be
// loaded leave those active.
func (r *Ring) Start(ctx context.Context) error {
	if r.store == nil {
		return nil
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := r.load(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "load sealing keys")
		}
	}, cmp.Or(r.Every, every))
	return nil
}

// load activates what the Secret says.
func (r *Ring) load(ctx context.Context) error {
	k, err := r.store.Load(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = k
	return nil
}

// NeedLeaderElection tells a manager to run the Ring on every replica.
func (r *Ring) NeedLeaderElection() bool { return false }
