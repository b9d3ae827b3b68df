package kube

import (
	"context"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Viewer describes the node for readers. It is one of all readers, who share what it reads.
func (a *Agent) Viewer() *nodeview.Viewer { return a.viewer }

// looker is a Holder that looks at what the kernel runs.
type looker interface {
	Look(ctx context.Context) (agent.Sight, error)
}

// newViewer makes the Viewer.
func (a *Agent) newViewer() *nodeview.Viewer {
	o := nodeview.Options{Node: a.opts.NodeName, Info: v1alpha1.AgentInfo{Version: a.opts.Version, IntentFormat: intent.FormatVersion},
		Kernel: *a.opts.Profile, Status: a.holder.Report, Inventory: a.opts.Inventory}
	if l, ok := a.holder.(looker); ok {
		o.Look = l.Look
	}
	if a.opts.Cost != nil {
		o.Cost = a.opts.Cost.Latest
	}
	return nodeview.New(o)
}
