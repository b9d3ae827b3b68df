package controller

import (
	"context"
	"net"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/pull"
	"github.com/skep-dev/skep/image/access"
)

// CueOptions says how CueArtifacts are rendered, and where their archives are served.
type CueOptions struct {
	// Store says where archives are kept, and where they are served; without an Address
	// CueArtifacts are left alone.
	Store cueartifact.StoreOptions
	// Listen takes the place of Store.Address in tests. It is called once a term as the
	// leader.
	Listen func() (net.Listener, error)
	// Concurrent is how many are rendered at once; zero means 2.
	Concurrent int
	// NoCrossNamespaceRefs denies sources of other namespaces than the CueArtifact's.
	NoCrossNamespaceRefs bool
}

// served reports whether CueArtifacts are rendered.
func (o CueOptions) served() bool { return o.Store.Address != "" }

// registerCue has the manager render CueArtifacts, where it is asked to. again has applications
// evaluated anew, and both what is returned.
func registerCue(ctx context.Context, mgr ctrl.Manager, o Options, secrets *pull.Secrets, again func(policy.Where), r *cueartifact.Reconciler) (both func(policy.Where), err error) {
	if !o.Cue.served() {
		return again, nil
	}
	if r.Store, err = cueartifact.NewStore(o.Cue.Store); err != nil {
		return nil, err
	}
	r.Concurrent, r.NoCrossNamespaceRefs = o.Cue.Concurrent, o.Cue.NoCrossNamespaceRefs
	r.Images = imagesFor(secrets)
	rendered, err := r.Register(ctx, mgr)
	if err != nil {
		return nil, err
	}
	r.Leader.Add(&cueartifact.Server{Store: r.Store, Address: o.Cue.Store.Address, Listen: o.Cue.Listen})
	return func(where policy.Where) {
		again(where)
		rendered()
	}, nil
}

// imagesFor reads an application's image for a CueArtifact of a namespace: with the pull Secrets
// that the application names only where it is of that namespace, so that nobody learns by a
// CueArtifact of what another namespace's Secret opens.
func imagesFor(secrets *pull.Secrets) func(context.Context, string, v1alpha1.Application) *access.Reader {
	return func(ctx context.Context, namespace string, app v1alpha1.Application) *access.Reader {
		if app.Identity().Namespace == namespace {
			return secrets.Reader(ctx, app)
		}
		return secrets.Shared.Reader(namespace, nil)
	}
}
