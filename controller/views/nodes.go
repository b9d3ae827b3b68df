package views

import (
	"cmp"
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
	nodes = slices.DeleteFunc(nodes, func(n *v1alpha1.BpfNode) bool { return !r.query.choosesObject(n) })
	list := newNodeViewList()
	if most := r.query.page(maxNodes); len(nodes) > most {
		list.Continue, nodes = position{At: nodes[most].Name}.token(), nodes[:most]
	}
	for _, n := range nodes {
		list.Items = append(list.Items, reported(n))
	}
	if r.asTable {
		return nodeTable(list.ListMeta, r.query.include, list.Items), warnings{}, nil
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
	d, err := v.describe(ctx, r.name, r, view.Scope{})
	switch {
	case err != nil:
		return nil, warnings{}, onNode(r.name, err)
	case r.asTable:
		return d.table, warnings{}, nil
	}
	return d.json, warnings{}, nil
}

// onNode says of which node an error is, and keeps its status.
func onNode(node string, err error) error {
	var known noderequest.Failure
	if !errors.As(err, &known) {
		known.Code = http.StatusGatewayTimeout
	}
	return noderequest.Fail(known.Code, "node %s: %v", node, err)
}

// rawList is a list of objects that are JSON.
type rawList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

// getViews answers an application on the nodes that report it, one after the other: each answer may be large.
func (v *views) getViews(ctx context.Context, r request) (any, warnings, error) {
	scope := view.Scope{Kind: r.kind(), Namespace: r.namespace, Name: r.name}
	nodes, err := v.nodes(ctx, scope, r.query)
	if err != nil {
		return nil, warnings{}, err
	}
	var about warnings
	list, size, end := rawList{newNodeViewList().TypeMeta, metav1.ListMeta{}, []json.RawMessage{}}, 0, time.Now().Add(pageTime)
	for i, node := range nodes {
		if i > 0 && (len(list.Items) >= r.query.page(maxViews) || size >= maxViewsBytes || time.Now().After(end)) {
			list.Continue = position{At: node.Name}.token()
			break
		}
		d, err := v.describe(ctx, node.Name, r, scope)
		switch {
		case ctx.Err() != nil:
			return nil, about, ctx.Err()
		case err != nil:
			about.add(node.Name, err)
		case !d.empty:
			list.Items, size = append(list.Items, d.json), size+len(d.json)
		}
	}
	return list, about, nil
}

// maxParts bounds the parts of a description: each takes some hundred bytes of memory, though it may have two as JSON. Those that an
// agent sends have 48 bytes and more.
const maxParts = viewread.MaxView / 48

// parts counts the objects of a text of JSON, and the members of its lists.
func parts(value []byte) (n int) {
	var (
		lists  []bool // of what is open at a place, whether it is a list
		quoted bool
		before byte // before a place, without space
	)
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted, c == ' ', c == '\t', c == '\r', c == '\n':
			continue
		case c == '{', c == '[':
			if c == '[' || before == ':' {
				n++
			}
			lists = append(lists, c == '[')
		case c == '}', c == ']':
			lists = lists[:max(0, len(lists)-1)]
		case c == ',' && len(lists) > 0 && lists[len(lists)-1]:
			n++
		}
		before = c
	}
	return n
}

// described is what a node says of itself, in the scope, as this server writes it; empty counts no application of the scope.
type described struct {
	json  json.RawMessage
	empty bool
	// table is the node for people; nil if it was not asked for.
	table *metav1.Table
}

// describe has a node describe itself, and leaves the scope of it. It is kept as JSON, of which the size is bounded.
func (v *views) describe(ctx context.Context, node string, r request, scope view.Scope) (d described, err error) {
	// A line is the description and what an Answer has around it.
	const most = viewread.MaxView + 1<<10
	err = v.ask(ctx, viewread.Request{Header: noderequest.NewHeader(node, r.user, time.Now()), Scope: scope}, &v.whole, most,
		func(value json.RawMessage) error {
			var n view.NodeView
			if parts(value) > maxParts {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends a description of too many parts")
			}
			if err := json.Unmarshal(value, &n); err != nil {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends what is no description")
			}
			if slices.ContainsFunc(n.Applications, func(a view.Application) bool { return !canBe(a.Identity) }) {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends names that no application has")
			}
			restrict(&n, node, scope)
			if d.empty = len(n.Applications) == 0; r.asTable {
				d.table = nodeTable(metav1.ListMeta{}, r.query.include, []view.NodeView{n})
			}
			// What is written may be longer than what came.
			if d.json, err = json.Marshal(n); err == nil && len(d.json) > most {
				err = noderequest.Fail(http.StatusBadGateway, "its agent sends a description that is too long")
			}
			return cmp.Or(err, errEnough)
		})
	if err == nil && d.json == nil {
		err = noderequest.Fail(http.StatusBadGateway, "its agent sends no description")
	}
	return d, err
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
