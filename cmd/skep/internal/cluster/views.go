package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
)

// Node has a node describe itself.
func (c *Client) Node(ctx context.Context, name string) (n view.NodeView, err error) {
	o := object{group: view.GroupVersion, resource: "nodeviews", name: name}
	if err = c.get(ctx, o, "", &n); err != nil {
		return n, c.explainView(ctx, o, err)
	}
	return n, nil
}

// Nodes has each node that runs an application describe what it has of it, for the caller.
func (c *Client) Nodes(ctx context.Context, of v1alpha1.Identity) ([]view.NodeView, error) {
	o := object{group: view.GroupVersion, resource: clusterWide, name: of.Name, subresource: "view"}
	if of.Kind == v1alpha1.KindBpfApplication {
		o.resource, o.namespace = namespaced, of.Namespace
	}
	all, err := list[view.NodeView](ctx, c, o)
	if err != nil {
		return nil, c.explainView(ctx, o, err)
	}
	return all, nil
}

// explainView says why a node, or an application on nodes, is not described, and what to do.
func (c *Client) explainView(ctx context.Context, o object, err error) error {
	switch {
	case errors.Is(err, errForbidden):
		return fmt.Errorf("%s: you may not: it needs the right to %s", c.Place, o.right())
	case isAbsent(err) && !c.hasViews(ctx):
		return errNoViews
	case isAbsent(err):
		return exit.Absent("%w", err)
	case apierrors.IsServiceUnavailable(err) && apierrors.IsUnexpectedServerError(err):
		// It is kube-apiserver that answers: what the API itself says has the cause.
		return fmt.Errorf("the API %s is not available: kubectl get apiservice %s.%s says why (%w)", view.Group, view.Version, view.Group, err)
	}
	return err
}

// errNoViews says how a cluster without the API gets it.
var errNoViews = fmt.Errorf("the cluster has no API %s, by which nodes are asked: an admin installs the chart with view.enabled=true", view.Group)

// hasViews reports whether the cluster has the API, as far as that is known.
func (c *Client) hasViews(ctx context.Context) bool {
	var found any
	return !isAbsent(c.get(ctx, object{group: view.GroupVersion}, "", &found))
}

// Report is what a node last wrote to the API server.
func (c *Client) Report(ctx context.Context, name string) (n v1alpha1.BpfNode, err error) {
	err = c.get(ctx, ours("", "bpfnodes", name), "", &n)
	return n, err
}

// viewPage is how many nodes are asked about one application at once.
const viewPage = "50"

// View has the first nodes of an application describe it; the list's Continue is not empty if there are more.
func (c *Client) View(ctx context.Context, id v1alpha1.Identity) (all view.NodeViewList, err error) {
	o := object{group: view.GroupVersion, namespace: id.Namespace, resource: clusterWide, name: id.Name, subresource: "view",
		query: url.Values{"limit": {viewPage}}}
	if id.IsNamespaced() {
		o.resource = namespaced
	}
	if err = c.get(ctx, o, "", &all); err != nil {
		return all, c.explainView(ctx, o, err)
	}
	return all, nil
}
