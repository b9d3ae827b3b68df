package nodemode

import (
	"context"
	"errors"
	"net/http"
	"os"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach/profile"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// newViewer makes the Viewer, which describes a host without an agent on a dry run, too.
func newViewer(h *Host) *nodeview.Viewer {
	name, _ := os.Hostname()
	of := inventory.Of(h.opts.BPFFS)
	of.Cgroups = h.opts.CgroupRoot
	o := nodeview.Options{Node: name, Info: v1alpha1.AgentInfo{Version: h.opts.Version, IntentFormat: intent.FormatVersion},
		Profile:   func() v1alpha1.KernelProfile { return profile.Of(h.opts.Log) },
		Status:    func() []agent.ApplicationStatus { return nil },
		Inventory: func(ctx context.Context) (inventory.Inventory, error) { return inventory.List(ctx, of) }}
	if h.agent != nil {
		// One person at a time asks a host: what is left in chains is worked out, too.
		o.Status, o.Look = h.agent.Status, func(ctx context.Context) (agent.Sight, error) {
			s, err := h.agent.Look(ctx)
			s.Chains = s.Measured()
			return s, err
		}
	}
	if h.opts.Cost != nil {
		o.Cost = h.opts.Cost.Latest
	}
	return nodeview.New(o)
}

// serveNode answers the description of a host, or of what the query chooses of it.
func serveNode(v *nodeview.Viewer, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	node, err := v.View(r.Context(), view.Scope{Kind: q.Get("kind"), Namespace: q.Get("namespace"), Name: q.Get("name")})
	if wrong := new(nodeview.ScopeError); errors.As(err, &wrong) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answer(w, node)
}
