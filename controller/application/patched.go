package application

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// patched keeps each application as this controller patched it last, until the cache
// has it. The event of an intent often arrives before the status that was patched
// with it; a status computed from the older object would be refused with a conflict.
type patched struct {
	mu   sync.Mutex
	last map[v1alpha1.Identity]application
}

// keep remembers an application as the API server returned it.
func (p *patched) keep(app application) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[v1alpha1.Identity]application{}
	}
	own := app.DeepCopyObject().(application)
	// The cache does not keep them either.
	own.SetManagedFields(nil)
	p.last[app.Identity()] = own
}

// newest returns the newer of what the cache has and what was patched. It forgets
// the patched object once the cache has that or a newer one.
func (p *patched) newest(cached application) application {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.last[cached.Identity()]
	if own == nil {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), own.GetResourceVersion())
	if err != nil || order >= 0 || own.GetUID() != cached.GetUID() {
		delete(p.last, cached.Identity())
		return cached
	}
	return own.DeepCopyObject().(application)
}

func (p *patched) forget(id v1alpha1.Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, id)
}

func (p *patched) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = nil
}
