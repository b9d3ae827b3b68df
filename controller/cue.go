package controller

import (
	"context"
	"fmt"
	"net"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/controller/pull"
	"github.com/skep-dev/skep/image/access"
)

// CueOptions says how CueArtifacts are rendered, and where their archives are served.
type CueOptions struct {
	// Store says where archives are kept, and where they are served; without an Address
	// CueArtifacts are left alone. Its MaxBytes are for archives and what is unpacked.
	Store archives.Options
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

// MemoryBytes is how much memory rendering takes at most, beside this process.
func (o CueOptions) MemoryBytes() int64 {
	if !o.served() {
		return 0
	}
	return cueartifact.MemoryBytes(o.Concurrent)
}

// registerCue has the manager render CueArtifacts, where it is asked to. again has what they
// render to evaluated anew.
func registerCue(ctx context.Context, mgr ctrl.Manager, o CueOptions, secrets *pull.Secrets, r *cueartifact.Reconciler) (again func(), err error) {
	if !o.served() {
		return func() {}, nil
	}
	if o.Store.MaxBytes > 0 {
		scratch := cueartifact.ScratchBytes(o.Concurrent)
		if o.Store.MaxBytes -= scratch; o.Store.MaxBytes <= 0 {
			return nil, fmt.Errorf("the room for artifacts is too small: sources take up to %d MiB while they are unpacked, by the number that is rendered at once",
				scratch>>20)
		}
	}
	if r.Store, err = archives.New(o.Store); err != nil {
		return nil, err
	}
	r.Concurrent, r.NoCrossNamespaceRefs, r.Images = o.Concurrent, o.NoCrossNamespaceRefs, imagesFor(secrets)
	if again, err = r.Register(ctx, mgr); err != nil {
		return nil, err
	}
	r.Leader.Add(&archives.Server{Store: r.Store, Address: o.Store.Address, Listen: o.Listen})
	return again, nil
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
