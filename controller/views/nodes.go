package views

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// The bounds of a page of descriptions: of how many, and of how many bytes as JSON, after which it ends.
const (
	maxNodes      = 1000
	maxViews      = 100
	maxViewsBytes = 8 << 20
)

// listNodes answers what nodes reported, by their BpfNodes: no node is asked.
func (v *views) listNodes(ctx context.Context, r request) (any, warnings, error) {
	nodes, err := v.nodes(ctx, view.Scope{}, r.query)
	if err != nil {
		return nil, warnings{}, err
	}
	nodes = slices.DeleteFunc(nodes, func(n *v1alpha1.BpfNode) bool { return !r.query.choosesNode(n) })
	list := newNodeViewList()
	if most := r.query.page(maxNodes); len(nodes) > most {
		list.Continue, nodes = position{Node: nodes[most].Name}.token(), nodes[:most]
	}
	for _, n := range nodes {
		list.Items = append(list.Items, reported(n))
	}
	if r.asTable {
		return nodeTable(list.ListMeta, list.Items), warnings{}, nil
	}
	return list, warnings{}, nil
}

func newNodeViewList() view.NodeViewList {
	return view.NodeViewList{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView + "List"}, Items: []view.NodeView{}}
}

// reported is a node without what runs there.
func reported(n *v1alpha1.BpfNode) view.NodeView {
	counts := n.Status.Counts
	return view.NodeView{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Agent: n.Status.Agent, Kernel: n.Status.Kernel,
		Applications: []view.Application{},
		Others:       &view.Others{Applications: len(n.Status.Applications) + len(n.Status.Loaded) + int(counts.NotReported), Programs: int(counts.Programs)},
		LeftOut:      []string{"A list has counts: get the node to see what runs there."}}
}

// getNode answers what a node says of itself.
func (v *views) getNode(ctx context.Context, r request) (any, warnings, error) {
	if err := v.Cache.Get(ctx, types.NamespacedName{Name: r.name}, &v1alpha1.BpfNode{}); err != nil {
		if !apierrors.IsNotFound(err) {
			return nil, warnings{}, noderequest.Fail(http.StatusServiceUnavailable, "BpfNode %s cannot be read; try again", r.name)
		}
		return nil, warnings{}, noderequest.Fail(http.StatusNotFound, "nodeviews.%s %q not found: kubectl get bpfnodes lists those with an agent", view.Group, r.name)
	}
	n, _, err := v.describe(ctx, r.name, r.user, view.Scope{})
	switch {
	case err != nil:
		var known noderequest.Failure
		if !errors.As(err, &known) {
			known.Code = http.StatusGatewayTimeout
		}
		return nil, warnings{}, noderequest.Fail(known.Code, "node %s: %v", r.name, err)
	case r.asTable:
		return nodeTable(metav1.ListMeta{}, []view.NodeView{n}), warnings{}, nil
	}
	return n, warnings{}, nil
}

// getApplication answers an application on the nodes that report it, one after the other: each answer may be large.
func (v *views) getApplication(ctx context.Context, r request) (any, warnings, error) {
	scope := view.Scope{Kind: r.kind(), Namespace: r.namespace, Name: r.name}
	nodes, err := v.nodes(ctx, scope, r.query)
	if err != nil {
		return nil, warnings{}, err
	}
	var about warnings
	list, bytes, end := newNodeViewList(), 0, time.Now().Add(pageTime)
	for i, node := range nodes {
		if i > 0 && (len(list.Items) >= r.query.page(maxViews) || bytes >= maxViewsBytes || time.Now().After(end)) {
			list.Continue = position{Node: node.Name}.token()
			break
		}
		n, size, err := v.describe(ctx, node.Name, r.user, scope)
		switch {
		case ctx.Err() != nil:
			return nil, about, ctx.Err()
		case err != nil:
			about.add(node.Name, err)
		case len(n.Applications) > 0:
			list.Items, bytes = append(list.Items, n), bytes+size
		}
	}
	return list, about, nil
}

// describe has a node describe itself, and leaves the scope of it. Its size is in bytes as JSON.
func (v *views) describe(ctx context.Context, node, user string, scope view.Scope) (n view.NodeView, size int, err error) {
	// A line is the description and what an Answer has around it.
	err = v.ask(ctx, viewread.Request{Header: noderequest.NewHeader(node, user, time.Now()), Scope: scope}, v.whole, viewread.MaxView+1<<10,
		func(value json.RawMessage) error {
			if err := json.Unmarshal(value, &n); err != nil {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends what is no description")
			}
			size = len(value)
			return nil
		})
	if err == nil && size == 0 {
		err = noderequest.Fail(http.StatusBadGateway, "its agent sends no description")
	}
	restrict(&n, node, scope)
	return n, size, err
}

// restrict leaves of a description what is in the scope: an agent is trusted less than the API server, which knows what a user may
// see.
func restrict(n *view.NodeView, node string, scope view.Scope) {
	n.TypeMeta = metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView}
	n.ObjectMeta, n.Scope = metav1.ObjectMeta{Name: node}, scope
	if n.Applications == nil {
		n.Applications = []view.Application{}
	}
	if scope.IsWhole() {
		return
	}
	n.Interfaces = nil
	n.Applications = slices.DeleteFunc(n.Applications, func(a view.Application) bool { return !scope.Has(a.Identity) })
	n.Programs = slices.DeleteFunc(n.Programs, func(p view.Program) bool { return p.Application == nil || !scope.Has(*p.Application) })
	n.Loads = slices.DeleteFunc(n.Loads, func(l view.Load) bool { return !scope.Has(l.Application) })
}
