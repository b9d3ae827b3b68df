// Package mapreads serves maps.skep.dev, by which people with the right read the maps of applications on nodes. It owns what may be
// read, by whom, and for how long a watch lasts; it reads no map, and no other server's requests.
package mapreads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
)

// Group and Version are the API's.
const (
	Group   = "maps." + v1alpha1.Group
	Version = "v1alpha1"
)

// The bounds of watches, and of all.
const (
	ofAll     = 12
	ofWatches = 8
)

// limits are how much users may read.
func limits() aggregated.Limits {
	return aggregated.Limits{What: "reads of maps", Burst: 20, PerSecond: 1, OfUser: 4, OfAll: ofAll, OfLasting: ofWatches}
}

// Options are what the API is made of.
type Options struct {
	// Writer asks whether users may. Needed.
	Writer client.Client
	// Intents finds the sealed intents of an application, and Asker asks agents. Needed.
	Intents func(context.Context, v1alpha1.Identity) ([]intents.Intent, error)
	Asker   *noderequests.Asker
	// Recheck is how often a user who watches is asked about again; zero means 5 seconds.
	Recheck time.Duration
}

// reads answers requests for maps.
type reads struct {
	Options
	bounds  *aggregated.Bounds
	reviews *aggregated.Reviews
}

// The paths: kube-apiserver finds verb, resource, name and subresource in them, and decides by these alone. The verb watch is in
// the path, since a watch of one object by a parameter would be a get.
const (
	namespaced = "/namespaces/{namespace}/bpfapplications/{name}/maps"
	clustered  = "/clusterbpfapplications/{name}/maps"
)

// API returns the API.
func API(o Options) aggregated.API {
	if o.Recheck == 0 {
		o.Recheck = 5 * time.Second
	}
	s := &reads{Options: o, bounds: aggregated.NewBounds(limits()), reviews: aggregated.NewReviews(o.Writer, 0)}
	verbs := metav1.Verbs{"get", "watch"}
	api := aggregated.API{Group: Group, Version: Version, Value: "mapReads.enabled", Resources: []metav1.APIResource{
		{Name: "bpfapplications/maps", Kind: "Map", Namespaced: true, Verbs: verbs},
		{Name: "clusterbpfapplications/maps", Kind: "Map", Verbs: verbs},
	}}
	api.Register = func(mux *http.ServeMux) {
		for _, scope := range []string{namespaced, clustered} {
			mux.HandleFunc("GET "+api.Base()+scope, s.read(mapread.List))
			mux.HandleFunc("GET "+api.Base()+scope+"/{map}", s.read(mapread.Dump))
			mux.HandleFunc("GET "+api.Base()+"/watch"+scope+"/{map}", s.read(mapread.Watch))
		}
	}
	return api
}

// read answers one operation.
func (s *reads) read(operation mapread.Operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who := aggregated.UserOf(r.Context())
		request, err := requestOf(r, operation, who.GetName())
		if err == nil {
			err = s.serve(w, r, who, request)
		}
		if err != nil {
			aggregated.Reject(w, err)
		}
	}
}

// requestOf is what a request asks for.
func requestOf(r *http.Request, operation mapread.Operation, who string) (mapread.Request, error) {
	id := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if id.Namespace != "" {
		id.Kind = v1alpha1.KindBpfApplication
	}
	query := r.URL.Query()
	request := mapread.Request{Header: noderequest.NewHeader(query.Get("node"), who, time.Now()), Application: id, Operation: operation,
		Map: r.PathValue("map"), Type: query.Get("type")}
	if operation == mapread.Dump && query.Has("key") {
		request.Operation, request.Key = mapread.Get, query.Get("key")
	}
	if request.Node == "" {
		return request, noderequest.Fail(http.StatusBadRequest, "no node is named: add ?node=NAME, by kubectl skep map --node NAME; kubectl get bpfnodes lists them")
	}
	for what, name := range map[string]string{"node": request.Node, "namespace": id.Namespace, "application": id.Name} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 && name != "" {
			return request, noderequest.Fail(http.StatusBadRequest, "%s %.64q is no name: %s", what, name, strings.Join(problems, "; "))
		}
	}
	return request, nil
}

// serve answers a request. An error is one before anything of the answer was sent.
func (s *reads) serve(w http.ResponseWriter, r *http.Request, who user.Info, request mapread.Request) error {
	log := ctrl.Log.WithName("mapreads").WithValues("user", request.User, "application", request.Application.String(), "map", request.Map,
		"operation", request.Operation, "node", request.Node, "request", request.ID)
	leave, err := s.bounds.Enter(request.User, request.Operation == mapread.Watch)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.allowed(r.Context(), who, request); err != nil {
		log.Info("a read of a map is rejected", "error", err.Error())
		return err
	}
	if err := s.complete(r.Context(), &request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	answer, err := s.ask(ctx, request)
	if err != nil {
		log.Info("a read of a map is not answered", "error", err.Error())
		return err
	}
	defer answer.Close()
	log.Info("a map is read")
	if request.Operation == mapread.Watch {
		var checking sync.WaitGroup
		defer checking.Wait()
		defer cancel(nil)
		checking.Go(func() { s.recheck(ctx, cancel, who, request) })
	}
	// A read of the answer ends with the context.
	defer context.AfterFunc(ctx, func() { _ = answer.Close() })()
	return s.copy(ctx, w, answer, request)
}

// ask has the agent of a node answer.
func (s *reads) ask(ctx context.Context, request mapread.Request) (io.ReadCloser, error) {
	request.Until = time.Now().Add(noderequest.TTL).UnixMilli()
	if err := request.Check(); err != nil {
		return nil, noderequest.Fail(http.StatusBadRequest, "%v", err)
	}
	answer, err := s.Asker.Ask(ctx, request)
	switch {
	case errors.Is(err, noderequests.ErrNotHere):
		return nil, noderequest.Fail(http.StatusGatewayTimeout, "node %s: %v. Is there such a Node, and does skep-agent run there with --map-reads, "+
			"which the chart's mapReads.enabled sets? After a start it takes some seconds", request.Node, err)
	case err != nil:
		return nil, noderequest.Fail(http.StatusGatewayTimeout, "node %s: %v", request.Node, err)
	}
	return answer, nil
}

// errGone says that the user takes no more lines.
var errGone = errors.New("the user is gone")

// copy sends the values of an answer, one JSON object a line, and last a Status if it is not whole.
func (s *reads) copy(ctx context.Context, w http.ResponseWriter, answer io.Reader, request mapread.Request) error {
	out := &stream{w: w, control: http.NewResponseController(w), prompt: request.Operation == mapread.Watch}
	err := noderequests.Each(answer, noderequest.MaxAnswer, func(value json.RawMessage) error {
		if ctx.Err() != nil || out.line(value) != nil {
			return errGone
		}
		return nil
	})
	var known noderequest.Failure
	switch {
	case err == nil:
		return out.flush()
	case ctx.Err() != nil:
		if errors.As(context.Cause(ctx), &known) {
			return out.fail(known.Code, known.Text)
		}
	case errors.As(err, &known):
		return out.fail(known.Code, fmt.Sprintf("node %s: %s", request.Node, known.Text))
	}
	return nil
}
