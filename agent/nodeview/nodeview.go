// Package nodeview describes the node for readers without a right on it: it puts together what the agent, the kernel and the clock of
// cost say. It must not change anything, nor delay the agent's loop.
package nodeview

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	// Profile finds Kernel out when the node is described for the first time, since that takes long; nil leaves it as it is.
	Profile func() v1alpha1.KernelProfile
	// Status are the applications, as agent.Agent's methods Status and Report return them. Required.
	Status func() []agent.ApplicationStatus
	// Look looks at what runs, as agent.Agent's method does; nil sees nothing.
	Look func(ctx context.Context) (agent.Sight, error)
	// Inventory lists what is in the kernel; nil lists nothing.
	Inventory func(ctx context.Context) (inventory.Inventory, error)
	// Cost is what programs cost in the last window that measured, by the kernel's ids; nil where nothing measures.
	Cost func() map[uint32]view.Cost
}

// How long what was read is answered again, and how long a read may take. Look waits for the agent's loop, Inventory for /proc.
const (
	lookFresh, inventoryFresh = time.Second, 2 * time.Second
	readWithin                = 10 * time.Second
	// busyFor is how long a description waits for the agent's loop. After that it has what was seen last.
	busyFor = 2 * time.Second
)

// Viewer describes the node. It is safe for concurrent use: all readers share what is read.
type Viewer struct {
	o         Options
	sight     *shared[agent.Sight]
	inventory *shared[inventory.Inventory]
	described *shared[*described]
}

// New returns a Viewer.
func New(o Options) *Viewer {
	if o.Look == nil {
		o.Look = func(context.Context) (agent.Sight, error) { return agent.Sight{At: time.Now()}, nil }
	}
	if o.Inventory == nil {
		o.Inventory = func(context.Context) (inventory.Inventory, error) { return inventory.Inventory{}, nil }
	}
	if o.Profile != nil {
		o.Profile = sync.OnceValue(o.Profile)
	}
	v := &Viewer{o: o, sight: share(lookFresh, o.Look), inventory: share(inventoryFresh, o.Inventory)}
	v.described = share(lookFresh, v.describe)
	return v
}

// ScopeError says that there is no such scope.
type ScopeError struct{ why string }

// Error implements error.
func (e *ScopeError) Error() string { return e.why }

// check fails with a *ScopeError where a scope chooses nothing that there is.
func check(s view.Scope) error {
	switch {
	case s.Kind != "" && s.Kind != v1alpha1.KindBpfApplication && s.Kind != v1alpha1.KindClusterBpfApplication:
		return &ScopeError{fmt.Sprintf("describe node: no application is a %s; ask for %s or %s", s.Kind, v1alpha1.KindBpfApplication,
			v1alpha1.KindClusterBpfApplication)}
	case s.Namespace != "" && s.Kind != v1alpha1.KindBpfApplication:
		return &ScopeError{"describe node: only applications of kind " + v1alpha1.KindBpfApplication + " are in a namespace; ask for that kind, too"}
	case s.Name != "" && s.Kind == "":
		return &ScopeError{"describe node: a name is of one kind; ask for the kind, too"}
	}
	return nil
}

// View describes the part of the node that is in the scope, in MaxBytes at most. It fails with a *ScopeError, or when ctx ends before
// the node was read. Readers share what a NodeView refers to, and change nothing of it.
func (v *Viewer) View(ctx context.Context, scope view.Scope) (view.NodeView, error) {
	if err := check(scope); err != nil {
		return view.NodeView{}, err
	}
	d, err := v.described.get(ctx)
	if err != nil {
		return view.NodeView{}, fmt.Errorf("describe node %s: %w", v.o.Node, err)
	}
	return d.part(scope), nil
}

// described is a node, and the parts of it that readers asked for: to fit a large one takes a second, and is done once for all.
type described struct {
	whole view.NodeView
	mu    sync.Mutex
	parts map[view.Scope]func() view.NodeView
}

// maxParts is how many parts are kept, of the scopes that are asked for first.
const maxParts = 16

// part is the part of the node that is in the scope.
func (d *described) part(scope view.Scope) view.NodeView {
	d.mu.Lock()
	one := d.parts[scope]
	if one == nil {
		one = sync.OnceValue(func() view.NodeView { return fit(Redact(d.whole, scope), MaxBytes) })
		if len(d.parts) < maxParts {
			d.parts[scope] = one
		}
	}
	d.mu.Unlock()
	return one()
}

// describe reads the whole node. What cannot be read is left out.
func (v *Viewer) describe(ctx context.Context) (*described, error) {
	f := facts{Options: v.o, status: v.o.Status()}
	if f.Profile != nil {
		f.Kernel = f.Profile()
	}
	var err error
	if f.inventory, err = v.inventory.get(ctx); err != nil {
		f.leftOut = append(f.leftOut, fmt.Sprintf("the programs of the kernel are not listed: %v", err))
	}
	patient, cancel := context.WithTimeout(ctx, busyFor)
	defer cancel()
	if f.sight, err = v.sight.get(patient); err != nil {
		why := err.Error()
		if errors.Is(err, context.DeadlineExceeded) {
			why = "the agent was busy"
		}
		if f.sight.At.IsZero() {
			f.leftOut = append(f.leftOut, "interfaces, loads, pods and the owners of programs are not known: "+why)
		} else {
			f.leftOut = append(f.leftOut, fmt.Sprintf("interfaces, loads and pods are as of %s: %s", f.sight.At.UTC().Format(time.RFC3339), why))
		}
	}
	if v.o.Cost != nil {
		f.cost = v.o.Cost()
	}
	f.now = time.Now()
	return &described{whole: f.describe(), parts: map[view.Scope]func() view.NodeView{}}, nil
}
