package controller

import (
	"errors"
	"net"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/mapreads"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/intent"
)

// MapReadsOptions says where kube-apiserver finds maps.skep.dev, with the webhook's certificate; the zero value serves nothing.
type MapReadsOptions struct {
	// Address is where to listen; Listener takes its place in tests.
	Address  string
	Listener net.Listener
	// Recheck is how often a user who watches is asked about again; zero means 5 seconds.
	Recheck time.Duration
}

// registerMapReads has the manager serve maps.skep.dev, where it is asked to, and returns what the mirror serves agents for it.
func registerMapReads(mgr ctrl.Manager, o Options, ring *sealing.Ring, store *intents.Store, certificates *admission.Certificates) (mirror.MapReads, error) {
	m := o.MapReads
	if m.Address == "" && m.Listener == nil {
		return nil, nil //nolint:nilnil // Nothing is served.
	}
	if !o.Mirror.served() || !o.Admission.Enabled() {
		return nil, errors.New("agents ask for reads at the mirror, and kube-apiserver is shown the webhook's certificate: serve both")
	}
	direct, err := newDirect(mgr)
	if err != nil {
		return nil, err
	}
	server := &mapreads.Server{
		Address: m.Address, Listener: m.Listener, Recheck: m.Recheck, Certificate: certificates.Get, Authorities: authorities(mgr, o),
		Live: mgr.GetAPIReader(), Writer: direct, Intents: store.Of, Sealer: func() *intent.Sealer { return ring.Keys().Sealer }, Hub: mapreads.NewHub(),
	}
	if peers := peers(mgr, o); peers != nil {
		server.Relay = peers.RelayMapRead
	}
	return server.Hub, mgr.Add(server)
}
