package nodemode

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Reconcile has an application, named as the status names it, or each one if name is empty,
// looked at again at once: the source is fetched, and registries are asked about what is
// denied or was out of reach. It returns their names.
func (h *Host) Reconcile(name string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := map[string]bool{}
	note := func(id v1alpha1.Identity) {
		if name == "" || id.String() == name {
			h.requested[uidOf(id)] = h.opts.Now()
			names[id.String()] = true
		}
	}
	for _, a := range h.status.Applications {
		note(a.Identity())
	}
	for _, p := range h.status.Problems {
		if p.Definition != nil {
			note(*p.Definition)
		}
	}
	if name != "" && len(names) == 0 {
		return nil, fmt.Errorf("reconcile %s: there is no such application; skep status lists all, those of namespaces as NAMESPACE/NAME", name)
	}
	h.poke()
	return slices.Sorted(maps.Keys(names)), nil
}

// requestedAt is when another look at an application was asked for; the zero time if it was
// not.
func (h *Host) requestedAt(uid string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requested[uid]
}

// forgetRequests drops what was asked for of applications that are gone.
func (h *Host) forgetRequests(there map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.requested, func(uid string, _ time.Time) bool { return !there[uid] })
}
