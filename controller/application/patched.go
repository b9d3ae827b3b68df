package application

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// maxPatched bounds how many statuses are kept that the cache does not show yet. One
// that is let go costs a conflict, after which the application is looked at again.
const maxPatched = 1024

// patched keeps the status of each application as this controller patched it last, until
// the cache shows it. The event of an intent often arrives before the status that was
// patched with it; a status computed from the older object would be denied with a
// conflict.
type patched struct {
	mu   sync.Mutex
	last map[v1alpha1.Identity]patch
}

// patch is a status, and the object of which it is.
type patch struct {
	uid     types.UID
	version string
	status  *v1alpha1.BpfApplicationStatus
}

// keep remembers the status of an application as the API server returned it.
func (p *patched) keep(app application) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[v1alpha1.Identity]patch{}
	}
	for other := range p.last {
		if len(p.last) < maxPatched {
			break
		}
		delete(p.last, other)
	}
	p.last[app.Identity()] = patch{app.GetUID(), app.GetResourceVersion(), app.Report().DeepCopy()}
}

// newest returns what the cache has, with the status that was patched where that is
// newer. A patch changes nothing else, and is denied where anything else has changed.
func (p *patched) newest(cached application) application {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, kept := p.pending(cached)
	if !kept {
		return cached
	}
	newer := cached.DeepCopyObject().(application)
	newer.SetResourceVersion(own.version)
	*newer.Report() = *own.status.DeepCopy()
	return newer
}

// pending is the patch that the cache does not show yet. It forgets one that the cache
// shows.
func (p *patched) pending(cached application) (patch, bool) {
	own, kept := p.last[cached.Identity()]
	if !kept {
		return own, false
	}
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), own.version)
	if err != nil || order >= 0 || own.uid != cached.GetUID() {
		delete(p.last, cached.Identity())
		return patch{}, false
	}
	return own, true
}

// observed forgets what the cache shows, with each event of an application. It asks for
// nothing to be looked at.
func (p *patched) observed() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	return handler.TypedFuncs[client.Object, v1alpha1.Identity]{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.pending(e.ObjectNew.(application))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { p.forget(e.Object.(application).Identity()) },
	}
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
