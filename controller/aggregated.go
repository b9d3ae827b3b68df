package controller

import (
	"errors"
	"net"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/mapreads"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/controller/views"
	"github.com/skep-dev/skep/intent"
)

// AggregatedOptions say which APIs kube-apiserver finds here, with the webhook's certificate; the zero value serves none.
type AggregatedOptions struct {
	// Address is where to listen; Listener takes its place in tests.
	Address  string
	Listener net.Listener
	// View serves view.skep.dev, and MapReads maps.skep.dev.
	View, MapReads bool
	// Recheck is how often a user who watches a map is asked about again; zero means 5 seconds.
	Recheck time.Duration
}

// Check rejects options that do not fit together.
func (a AggregatedOptions) Check() error {
	if (a.Address != "" || a.Listener != nil) != (a.View || a.MapReads) {
		return errors.New("aggregated APIs need an address and a choice: name --api-address, and one of --view and --map-reads or both")
	}
	return nil
}

// registerAggregated has the manager serve the APIs that are asked for, and returns what the mirror serves agents for them.
func registerAggregated(mgr ctrl.Manager, o Options, ring *sealing.Ring, store *intents.Store, certificates *admission.Certificates,
) (mirror.NodeRequests, error) {
	a := o.Aggregated
	if err := a.Check(); err != nil {
		return nil, err
	}
	if !a.View && !a.MapReads {
		return nil, nil //nolint:nilnil // Nothing is served.
	}
	if !o.Mirror.served() || !o.Admission.Enabled() {
		return nil, errors.New("agents ask for requests of users at the mirror, and kube-apiserver is shown the webhook's certificate: serve both")
	}
	direct, err := newDirect(mgr)
	if err != nil {
		return nil, err
	}
	asker := &noderequests.Asker{Hub: noderequests.NewHub(), Sealer: func() *intent.Sealer { return ring.Keys().Sealer }}
	if peers := peers(mgr, o); peers != nil {
		asker.Relay = peers.Relay
	}
	server := &aggregated.Server{Address: a.Address, Listener: a.Listener, Certificate: certificates.Get, Authorities: authorities(mgr, o),
		Live: mgr.GetAPIReader(), Writer: direct, Namespace: o.Namespace, Informers: mgr.GetCache()}
	if a.View {
		server.APIs = append(server.APIs, views.API(views.Options{Writer: direct, Cache: mgr.GetClient(), Asker: asker}))
	}
	if a.MapReads {
		server.APIs = append(server.APIs, mapreads.API(mapreads.Options{Writer: direct, Intents: store.Of, Asker: asker, Recheck: a.Recheck}))
	}
	return asker.Hub, mgr.Add(server)
}
