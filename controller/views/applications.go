package views

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
)

// The bounds of applications: how many attachments one shows, and how many a page of a list has, which ends after maxPageBytes.
const (
	maxShown        = 100
	maxApplications = 500
)

// application is an application of either kind.
type application interface {
	client.Object
	v1alpha1.Application
}

// seen is an application without its attachments. Annotations stay out: kubectl apply keeps the values of variables there.
func seen(a v1alpha1.Application) view.BpfApplication {
	return view.BpfApplication{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: a.Identity().Kind}, Status: *a.Report(),
		ObjectMeta: metav1.ObjectMeta{Namespace: a.GetNamespace(), Name: a.GetName(), UID: a.GetUID(), Generation: a.GetGeneration(),
			CreationTimestamp: a.GetCreationTimestamp(), DeletionTimestamp: a.GetDeletionTimestamp(), Labels: a.GetLabels()}}
}

// listApplications answers a page of applications, without asking a node.
func (v *views) listApplications(ctx context.Context, r request) (any, warnings, error) {
	found, err := v.applications(ctx, r)
	if err != nil {
		return nil, warnings{}, noderequest.Fail(http.StatusServiceUnavailable, "the applications cannot be listed; try again")
	}
	list := describedList{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: r.kind() + "List"}, Items: []json.RawMessage{}}
	var rows []view.BpfApplication
	size := 0
	for _, a := range found {
		if len(rows) == r.query.page(maxApplications) || size > maxPageBytes {
			list.Continue = position{At: a.Identity().String()}.token()
			break
		}
		one := seen(a)
		written, err := json.Marshal(one)
		if err != nil {
			return nil, warnings{}, err
		}
		rows, list.Items, size = append(rows, one), append(list.Items, written), size+len(written)
	}
	if r.asTable {
		return applicationTable(list.ListMeta, r.query.include, rows), warnings{}, nil
	}
	return list, warnings{}, nil
}

// applications are those that a request chooses, by namespace and name. They are the cache's: to be read.
func (v *views) applications(ctx context.Context, r request) (found []v1alpha1.Application, err error) {
	in := []client.ListOption{client.InNamespace(r.namespace), client.UnsafeDisableDeepCopy}
	if r.resource == applications {
		var list v1alpha1.BpfApplicationList
		err = v.Cache.List(ctx, &list, in...)
		found = pointers[v1alpha1.BpfApplication](list.Items)
	} else {
		var list v1alpha1.ClusterBpfApplicationList
		err = v.Cache.List(ctx, &list, in...)
		found = pointers[v1alpha1.ClusterBpfApplication](list.Items)
	}
	found = slices.DeleteFunc(found, func(a v1alpha1.Application) bool {
		return a.Identity().String() < r.query.from.At || !r.query.choosesObject(a)
	})
	slices.SortFunc(found, func(a, b v1alpha1.Application) int { return cmp.Compare(a.Identity().String(), b.Identity().String()) })
	return found, err
}

// pointers are the applications of a list.
func pointers[T any, P interface {
	*T
	v1alpha1.Application
}](items []T) []v1alpha1.Application {
	all := make([]v1alpha1.Application, len(items))
	for i := range items {
		all[i] = P(&items[i])
	}
	return all
}

// getApplication answers an application with the first of its attachments.
func (v *views) getApplication(ctx context.Context, r request) (any, warnings, error) {
	var of application = &v1alpha1.BpfApplication{}
	if r.resource == clusterApps {
		of = &v1alpha1.ClusterBpfApplication{}
	}
	switch err := v.Cache.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: r.name}, of); {
	case apierrors.IsNotFound(err):
		return nil, warnings{}, noderequest.Fail(http.StatusNotFound, "%s.%s %q not found", r.resource, view.Group, r.name)
	case err != nil:
		return nil, warnings{}, noderequest.Fail(http.StatusServiceUnavailable, "%s %s cannot be read; try again", r.kind(), of.Identity())
	}
	one := seen(of)
	if r.asTable {
		return applicationTable(metav1.ListMeta{}, r.query.include, []view.BpfApplication{one}), warnings{}, nil
	}
	p, err := v.attached(ctx, of, r)
	if err != nil {
		return nil, warnings{}, err
	}
	for _, a := range p.items {
		one.Attachments = append(one.Attachments, view.NodeAttachment{Node: a.Node, Attachment: a.Attachment})
	}
	if p.next != (position{}) {
		p.about.cut = fmt.Sprintf("only %d attachments are shown: `kubectl get %s --field-selector application=%s` lists all", len(p.items),
			attachmentsOf(of.Identity()), r.name)
	}
	one.LeftOut = p.about.sentences()
	return one, warnings{}, nil
}

// attachmentsOf are the attachments of an application, as arguments of kubectl get.
func attachmentsOf(of v1alpha1.Identity) string {
	if !of.IsNamespaced() {
		return clusterAttachments
	}
	return "-n " + of.Namespace + " " + attachments
}

// attached asks the nodes that report an application, those with a problem first.
func (v *views) attached(ctx context.Context, of v1alpha1.Application, r request) (p page, err error) {
	id, everything := of.Identity(), query{labels: labels.Everything(), fields: fields.Everything()}
	scope := view.Scope{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}
	nodes, err := v.nodes(ctx, scope, everything)
	if err != nil {
		return p, err
	}
	var failing, others []*v1alpha1.BpfNode
	for _, n := range nodes {
		switch report := n.Status.Of(string(of.GetUID())); {
		case report != nil && report.State != v1alpha1.NodeLoaded:
			failing = append(failing, n)
		case report != nil || n.Status.Counts.NotReported > 0:
			others = append(others, n)
		}
	}
	p.most = maxShown
	err = v.gather(ctx, &p, append(failing, others...), scope, request{user: r.user, query: everything})
	return p, err
}
