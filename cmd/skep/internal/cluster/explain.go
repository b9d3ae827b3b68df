package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
)

// Explanation is all that the caller may read of one application, as skep explain -o json prints it.
type Explanation struct {
	Application `json:",inline"`

	// Nodes are its reports by node, as the BpfNodes have them.
	Nodes []NodeReport `json:"nodes"`
	// Views describe it on each node that answered: its attachments and the verifier's log.
	Views []view.NodeView `json:"views"`
	// Events are the newest ones, the oldest first.
	Events []Event `json:"events"`
	// Missing says what could not be read, and why.
	Missing []string `json:"missing,omitempty"`
}

// NodeReport is what a node reports of an application.
type NodeReport struct {
	Node    string             `json:"node"`
	State   v1alpha1.NodeState `json:"state"`
	Message string             `json:"message,omitempty"`
	Skipped string             `json:"skipped,omitempty"`
}

// Event is an event of an application.
type Event struct {
	// Time is when it happened last, and Count how often.
	Time    metav1.Time `json:"time"`
	Count   int32       `json:"count"`
	Type    string      `json:"type"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
}

// maxEvents is how many events are shown.
const maxEvents = 10

// Explain reads all about one application: NAME, NAMESPACE/NAME, cbpfapp/NAME or bpfapp/NAME.
func (c *Client) Explain(ctx context.Context, arg, node string) (e Explanation, err error) {
	if e.Application, err = c.Find(ctx, "explain", arg); err != nil {
		return e, err
	}
	e.Nodes, e.Views, e.Events = []NodeReport{}, []view.NodeView{}, []Event{}
	// Reports are large: of each page, only what is about the application is kept.
	err = pages(ctx, c, ours("", "bpfnodes", ""), func(reports []v1alpha1.BpfNode) (more bool) {
		for _, n := range reports {
			if r := n.Status.Of(e.uid); r != nil && (node == "" || n.Name == node) {
				e.Nodes = append(e.Nodes, NodeReport{Node: n.Name, State: r.State, Message: r.Message, Skipped: r.Skipped})
			}
		}
		return true
	})
	e.missing("the states on nodes", ours("", "bpfnodes", ""), err)
	o := e.object()
	o.group, o.subresource = view.GroupVersion, "view"
	if node != "" {
		o.query = url.Values{"fieldSelector": {"node=" + node}}
	}
	views, err := list[view.NodeView](ctx, c, o)
	if err != nil && !IsForbidden(err) {
		err = c.explainView(ctx, o, err)
	}
	e.missing("attachments and the verifier's log", o, err)
	e.Views = append(e.Views, views...)
	return e, c.events(ctx, &e)
}

// object is where the application is.
func (a Application) object() object {
	resource := clusterWide
	if a.Kind == v1alpha1.KindBpfApplication {
		resource = namespaced
	}
	return ours(a.Namespace, resource, a.Name)
}

// missing notes what could not be read.
func (e *Explanation) missing(what string, o object, err error) {
	switch {
	case errors.Is(err, errForbidden):
		e.Missing = append(e.Missing, fmt.Sprintf("%s: unknown, it needs the right to %s", what, o.right()))
	case err != nil:
		e.Missing = append(e.Missing, fmt.Sprintf("%s: unknown: %v", what, err))
	}
}

// events adds the newest events.
func (c *Client) events(ctx context.Context, e *Explanation) error {
	// Events of objects without a namespace are in this one.
	o := object{namespace: cmp.Or(e.Namespace, metav1.NamespaceDefault), resource: "events", query: url.Values{"fieldSelector": {"involvedObject.uid=" + e.uid}}}
	all, err := list[event](ctx, c, o)
	e.missing("events", o, err)
	for _, one := range all {
		e.Events = append(e.Events, one.seen())
	}
	slices.SortFunc(e.Events, func(x, y Event) int { return x.Time.Compare(y.Time.Time) })
	e.Events = e.Events[max(0, len(e.Events)-maxEvents):]
	return ctx.Err()
}

// Find reads one application: NAME, NAMESPACE/NAME, cbpfapp/NAME, or bpfapp/NAME in the caller's namespace. NAME is an
// application of the cluster, or of the only namespace that has one of that name. verb begins errors.
func (c *Client) Find(ctx context.Context, verb, arg string) (Application, error) {
	first, name, isPair := strings.Cut(arg, "/")
	kind, o := v1alpha1.KindBpfApplication, ours(first, namespaced, name)
	switch prefix := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(first), "."+v1alpha1.Group), "s"); {
	case isPair && (prefix == "cbpfapp" || prefix == "clusterbpfapplication"):
		kind, o = v1alpha1.KindClusterBpfApplication, ours("", clusterWide, name)
	case isPair && (prefix == "bpfapp" || prefix == "bpfapplication"):
		o.namespace = c.Namespace
	case isPair:
	case c.Chosen:
		o = ours(c.Namespace, namespaced, arg)
	default:
		kind, o = v1alpha1.KindClusterBpfApplication, ours("", clusterWide, arg)
	}
	if o.name == "" {
		return Application{}, c.noApplication(verb, arg)
	}
	var s stored
	err := c.get(ctx, o, "", &s)
	switch {
	case err == nil:
		return s.application(kind), nil
	case !isAbsent(err) && !IsForbidden(err):
		return Application{}, err
	case !isPair && !c.Chosen:
		return c.findAnywhere(ctx, verb, arg)
	case isAbsent(err):
		return Application{}, c.noApplication(verb, arg)
	}
	return Application{}, fmt.Errorf("%s %s: it needs the right to %s", verb, arg, o.right())
}

// findAnywhere finds an application by its name in the only namespace that has one, of those that the caller may read.
func (c *Client) findAnywhere(ctx context.Context, verb, name string) (Application, error) {
	o := ours("", namespaced, "")
	o.query = url.Values{"fieldSelector": {"metadata.name=" + name}}
	all, err := list[stored](ctx, c, o)
	if errors.Is(err, errForbidden) {
		o.namespace = c.Namespace
		all, err = list[stored](ctx, c, o)
	}
	if errors.Is(err, errForbidden) {
		return Application{}, fmt.Errorf("%s %s: it needs the right to %s", verb, name, o.right())
	}
	switch {
	case err != nil:
		return Application{}, c.explainAbsence(err)
	case len(all) == 0:
		return Application{}, c.noApplication(verb, name)
	case len(all) == 1:
		return all[0].application(v1alpha1.KindBpfApplication), nil
	}
	var names []string
	for _, one := range all {
		names = append(names, one.Namespace+"/"+one.Name)
	}
	return Application{}, exit.Absent("%s %s: several applications have this name; choose one as NAMESPACE/NAME: %s", verb, name, strings.Join(names, ", "))
}

// noApplication says that there is no application of a name.
func (c *Client) noApplication(verb, name string) error {
	return exit.Absent("%s %s: there is no such application; skep status lists all, those of namespaces as NAMESPACE/NAME", verb, name)
}
