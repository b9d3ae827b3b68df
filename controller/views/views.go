// Package views serves view.skep.dev, by which people with the right see what runs on nodes. It owns the pages of lists, and shows no
// user more than the scope of a request; it keeps nothing of what agents answer.
package views

import (
	"context"
	_ "embed" // for openapi.json
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/limit"
)

// openAPI is what kubectl explain shows: the comments of the types.
//
//go:embed openapi.json
var openAPI []byte

// The resources.
const (
	attachments        = "bpfattachments"
	clusterAttachments = "clusterbpfattachments"
	nodeViews          = "nodeviews"
	applications       = "bpfapplications"
	clusterApps        = "clusterbpfapplications"
)

// The bounds of what is asked of nodes: by one request at once, by all, and whole descriptions by all, which are large. One node answers
// ofNode requests at once, of which one is for the whole: a slow one takes no places from others. One user has ofUser of the places, and
// ofWhole/2 of those for the whole. A node has nodeTime to answer, and a page ends after pageTime: what is left is on the next one.
const (
	ofRequest = 16
	ofAll     = 64
	ofWhole   = 4
	ofNode    = 2
	ofUser    = 24
	nodeTime  = 5 * time.Second
	pageTime  = 25 * time.Second
)

// reviewed is for how long the API server's answer that a user may is believed.
const reviewed = 5 * time.Second

// Options are what the API is made of. All but NodeTime are needed.
type Options struct {
	// Writer asks whether users may, and Cache has BpfNodes and applications.
	Writer client.Client
	Cache  client.Reader
	// Asker asks agents.
	Asker *noderequests.Asker
	// NodeTime bounds the wait for a node; zero means 5 seconds.
	NodeTime time.Duration
}

// views answers requests.
type views struct {
	Options
	bounds  *aggregated.Bounds
	reviews *aggregated.Reviews
	// asks and whole are places.
	asks, whole places
}

// places bound what is asked at once: of one node, by one user, and by all.
type places struct {
	perNode, perUser limit.PerName
	ofNode, ofUser   int64
	ofAll            *semaphore.Weighted
}

// acquire waits for a place to ask a node, and no longer than within for the node. A request that waits for another of its user takes no
// place from others, and one that waits for the node takes none but its user's.
func (p *places) acquire(ctx context.Context, node, user string, within time.Duration) (release func(), err error) {
	leaveUser, err := p.perUser.Acquire(ctx, noderequest.ShareOf(user), 1, p.ofUser)
	if err != nil {
		return nil, err
	}
	patience, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	leave, err := p.perNode.Acquire(patience, node, 1, p.ofNode)
	if err != nil {
		leaveUser()
		return nil, noderequest.Fail(http.StatusGatewayTimeout, "its agent answered others for %s, and had no time for this request; try again", within)
	}
	if err := p.ofAll.Acquire(ctx, 1); err != nil {
		leave()
		leaveUser()
		return nil, err
	}
	return func() { p.ofAll.Release(1); leave(); leaveUser() }, nil
}

// API returns the API.
func API(o Options) aggregated.API {
	if o.NodeTime == 0 {
		o.NodeTime = nodeTime
	}
	v := &views{
		Options: o, asks: places{ofNode: ofNode, ofUser: ofUser, ofAll: semaphore.NewWeighted(ofAll)},
		whole:   places{ofNode: 1, ofUser: ofWhole / 2, ofAll: semaphore.NewWeighted(ofWhole)},
		bounds:  aggregated.NewBounds(aggregated.Limits{What: "requests to see nodes", Burst: 60, PerSecond: 10, OfUser: 6, OfAll: 24}),
		reviews: aggregated.NewReviews(o.Writer, reviewed),
	}
	read, get := metav1.Verbs{"get", "list"}, metav1.Verbs{"get"}
	api := aggregated.API{Group: view.Group, Version: view.Version, Value: "view.enabled", OpenAPI: openAPI, Resources: []metav1.APIResource{
		{Name: attachments, SingularName: "bpfattachment", Kind: view.KindBpfAttachment, Namespaced: true, Verbs: read, ShortNames: []string{"bpfat"}},
		{Name: clusterAttachments, SingularName: "clusterbpfattachment", Kind: view.KindClusterBpfAttachment, Verbs: read, ShortNames: []string{"cbpfat"}},
		{Name: nodeViews, SingularName: "nodeview", Kind: view.KindNodeView, Verbs: read},
		{Name: applications, SingularName: "bpfapplication", Kind: v1alpha1.KindBpfApplication, Namespaced: true, Verbs: read, ShortNames: []string{"bpfview"}},
		{Name: clusterApps, SingularName: "clusterbpfapplication", Kind: v1alpha1.KindClusterBpfApplication, Verbs: read, ShortNames: []string{"cbpfview"}},
		{Name: applications + "/view", Kind: view.KindNodeView + "List", Namespaced: true, Verbs: get},
		{Name: clusterApps + "/view", Kind: view.KindNodeView + "List", Verbs: get},
	}}
	api.Register = func(mux *http.ServeMux) {
		for path, answer := range map[string]handler{
			"/" + attachments:                                          v.listAttachments,
			"/namespaces/{namespace}/" + attachments:                   v.listAttachments,
			"/namespaces/{namespace}/" + attachments + "/{name}":       v.getAttachment,
			"/" + clusterAttachments:                                   v.listAttachments,
			"/" + clusterAttachments + "/{name}":                       v.getAttachment,
			"/" + nodeViews:                                            v.listNodes,
			"/" + nodeViews + "/{name}":                                v.getNode,
			"/" + applications:                                         v.listApplications,
			"/namespaces/{namespace}/" + applications:                  v.listApplications,
			"/namespaces/{namespace}/" + applications + "/{name}":      v.getApplication,
			"/namespaces/{namespace}/" + applications + "/{name}/view": v.getViews,
			"/" + clusterApps:                                          v.listApplications,
			"/" + clusterApps + "/{name}":                              v.getApplication,
			"/" + clusterApps + "/{name}/view":                         v.getViews,
		} {
			mux.HandleFunc("GET "+api.Base()+path, v.answer(strings.TrimPrefix(strings.TrimPrefix(path, "/namespaces/{namespace}"), "/"), answer))
		}
	}
	return api
}

// request is what a user asks for.
type request struct {
	user string
	// resource and subresource are those of the path, and namespace and name what it names; they may be empty.
	resource, subresource, namespace, name string
	query                                  query
	// asTable says that the answer is one for people.
	asTable bool
}

// kind is of the applications that the resource is about; empty for nodes.
func (r request) kind() string {
	switch r.resource {
	case attachments, applications:
		return v1alpha1.KindBpfApplication
	case clusterAttachments, clusterApps:
		return v1alpha1.KindClusterBpfApplication
	}
	return ""
}

// handler answers a request: by an object, and by warnings about nodes that did not answer.
type handler func(ctx context.Context, r request) (object any, about warnings, err error)

// answer is a handler of HTTP for a resource of the path.
func (v *views) answer(path string, answer handler) http.HandlerFunc {
	parts := strings.Split(path, "/")
	return func(w http.ResponseWriter, hr *http.Request) {
		ctx, cancel := context.WithTimeout(hr.Context(), 2*pageTime)
		defer cancel()
		r := request{user: aggregated.UserOf(ctx).GetName(), resource: parts[0], namespace: hr.PathValue("namespace"), name: hr.PathValue("name")}
		if len(parts) > 2 {
			r.subresource = parts[2]
		}
		leave, err := v.bounds.Enter(r.user, false)
		if err != nil {
			aggregated.Reject(w, err)
			return
		}
		// An answer counts until its reader has it.
		defer leave()
		object, about, err := v.serve(ctx, hr, r, answer)
		if err != nil {
			ctrl.Log.WithName("views").Info("a request to see nodes is not answered", "user", r.user, "path", hr.URL.Path, "error", err.Error())
			aggregated.Reject(w, err)
			return
		}
		for _, text := range about.headers() {
			w.Header().Add("Warning", text)
		}
		aggregated.WriteJSON(w, http.StatusOK, object)
	}
}

// serve answers a request that the user may make.
func (v *views) serve(ctx context.Context, hr *http.Request, r request, answer handler) (object any, about warnings, err error) {
	for what, name := range map[string]string{"namespace": r.namespace, "name": r.name} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 && name != "" {
			return nil, about, noderequest.Fail(http.StatusBadRequest, "%s %.64q is no name: %s", what, name, strings.Join(problems, "; "))
		}
	}
	if r.query, err = parseQuery(hr.URL.Query(), r.selectable()); err != nil {
		return nil, about, err
	}
	if r.asTable, err = wantsTable(hr.Header.Get("Accept")); err != nil {
		return nil, about, err
	}
	attributes := authorizationv1.ResourceAttributes{Group: view.Group, Version: view.Version, Verb: "get", Resource: r.resource,
		Subresource: r.subresource, Namespace: r.namespace, Name: r.name}
	if r.name == "" {
		attributes.Verb = "list"
	}
	if err := v.reviews.Check(ctx, aggregated.UserOf(ctx), attributes, "such as ClusterRole skep-cluster-viewer"); err != nil {
		return nil, about, err
	}
	return answer(ctx, r)
}

// nodes are the BpfNodes that a request is about, in the order of their names.
func (v *views) nodes(ctx context.Context, scope view.Scope, q query) ([]*v1alpha1.BpfNode, error) {
	var reports v1alpha1.BpfNodeList
	if err := v.Cache.List(ctx, &reports, client.UnsafeDisableDeepCopy); err != nil {
		return nil, noderequest.Fail(http.StatusServiceUnavailable, "the BpfNodes cannot be listed; try again")
	}
	only, hasOnly := q.exact("node")
	name, hasName := q.exact("metadata.name")
	var found []*v1alpha1.BpfNode
	for i := range reports.Items {
		n := &reports.Items[i]
		isNamed := !hasName || name == n.Name || view.IsOn(name, n.Name)
		if isNamed && (!hasOnly || only == n.Name) && n.Name >= q.from.At && mayHave(&n.Status, scope) {
			found = append(found, n)
		}
	}
	sortNodes(found)
	return found, nil
}

// mayHave reports whether a node may run an application of the scope: it reports one, or its report has no room for all names.
func mayHave(n *v1alpha1.BpfNodeStatus, scope view.Scope) bool {
	if scope.IsWhole() || len(n.Loaded) > 0 || n.Counts.NotReported > 0 {
		return true
	}
	for i := range n.Applications {
		a := &n.Applications[i]
		if !isGone(a.State) && scope.Has(v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}) {
			return true
		}
	}
	return false
}

// isGone reports whether an application of the state has nothing on its node.
func isGone(s v1alpha1.NodeState) bool {
	return s == v1alpha1.NodeRemoved || s == v1alpha1.NodeNotSelected
}

// positive reads a number of a query.
func positive(name, text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, noderequest.Fail(http.StatusBadRequest, "%s=%.32q is no number of objects", name, text)
	}
	return n, nil
}
