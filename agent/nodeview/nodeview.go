// Package nodeview describes the node for readers without a right on it: it puts together what the agent, the kernel and the clock of
// cost say. It must not change anything, nor delay the agent's loop.
package nodeview

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// Options are what a Viewer is made of.
type Options struct {
	// Node is the name of the node, or of the host.
	Node string
	// Info and Kernel are as in the BpfNode.
	Info   v1alpha1.AgentInfo
	Kernel v1alpha1.KernelProfile
	// Status are the applications, as agent.Agent's methods Status and Report return them. Required.
	Status func() []agent.ApplicationStatus
	// Inventory lists what is in the kernel; nil lists nothing.
	Inventory func(ctx context.Context) (inventory.Inventory, error)
	// Cost is what programs cost in the last window that measured, by the kernel's ids; nil where nothing measures.
	Cost func() map[uint32]view.Cost
}

// Viewer describes the node. It is safe for concurrent use.
type Viewer struct{ o Options }

// New returns a Viewer.
func New(o Options) *Viewer { return &Viewer{o} }

// View describes the part of the node that is in the scope.
func (v *Viewer) View(_ context.Context, scope view.Scope) (view.NodeView, error) {
	n := view.NodeView{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView}, ObjectMeta: metav1.ObjectMeta{Name: v.o.Node},
		Observed: metav1.NewTime(time.Now()), Scope: scope, Agent: v.o.Info, Kernel: v.o.Kernel, Applications: []view.Application{}}
	for _, s := range v.o.Status() {
		if scope.Has(s.Application) {
			n.Applications = append(n.Applications, application(s))
		}
	}
	slices.SortFunc(n.Applications, func(a, b view.Application) int { return strings.Compare(a.Kind+"/"+a.String(), b.Kind+"/"+b.String()) })
	return n, nil
}

// application describes one.
func application(s agent.ApplicationStatus) view.Application {
	a := view.Application{Identity: s.Application, UID: s.UID, Serial: s.Serial, Version: s.Version, Image: s.Image, Digest: s.Digest, Signers: s.Signers,
		Retained: s.Held, Attachments: []view.Attachment{}, Conditions: s.Conditions, Error: s.Error, VerifierLog: s.VerifierLog}
	a.State, a.Message = s.NodeState()
	for _, p := range s.Programs {
		for _, l := range p.Links {
			a.Attachments = append(a.Attachments, view.Attachment{Program: p.Name, ProgramID: p.ID, LinkID: l.ID, Hook: l.Hook,
				Target: view.Target{Text: l.Target}, State: string(l.State), Message: l.Error, Mode: l.XDPMode, Notes: l.Notes()})
		}
	}
	return a
}
