package views

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/text"
)

// The bounds of a description: how many attachments it has, and of one node where there are many nodes, and of each attachment how many characters
// of a text, how many notes and how many verdicts.
const (
	maxShown       = 100
	maxShownOfNode = 10
	maxText        = 1000
	maxNotes       = 10
	maxVerdicts    = 20
)

// maxApplications is how many applications a page has, at most. It also ends after maxPageBytes.
const maxApplications = 500

// application is an application of either kind.
type application interface {
	client.Object
	v1alpha1.Application
}

// withoutAttachments is an application as it is listed. Spec and annotations stay out: values of variables are there.
func withoutAttachments(a v1alpha1.Application) view.BpfApplication {
	return view.BpfApplication{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: a.Identity().Kind}, Status: *a.Report(),
		ObjectMeta: metav1.ObjectMeta{Namespace: a.GetNamespace(), Name: a.GetName(), UID: a.GetUID(), Generation: a.GetGeneration(),
			CreationTimestamp: a.GetCreationTimestamp(), DeletionTimestamp: a.GetDeletionTimestamp(), Labels: a.GetLabels()}}
}

// listApplications answers a page of applications, without asking a node.
func (v *views) listApplications(ctx context.Context, r request) (any, warnings, error) {
	found, err := v.find(ctx, r)
	if err != nil {
		ctrl.Log.WithName("views").Error(err, "list applications", "resource", r.resource)
		return nil, warnings{}, noderequest.Fail(http.StatusServiceUnavailable, "the applications cannot be listed; try again")
	}
	var about warnings
	list := rawList{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: r.kind() + "List"}, Items: []json.RawMessage{}}
	size, most := 0, r.query.page(maxApplications)
	if r.query.limit == 0 {
		// kubectl get --sort-by sorts one page alone.
		most = len(found)
	}
	var rows []view.BpfApplication
	for _, a := range found {
		if len(list.Items) == most || size > maxPageBytes {
			list.Continue = position{At: a.Identity().String()}.token()
			break
		}
		one := withoutAttachments(a)
		part := any(one)
		if r.asTable && r.query.include != metav1.IncludeObject {
			part = one.ObjectMeta
		}
		written, err := json.Marshal(part)
		if err != nil {
			return nil, about, err
		}
		rows, list.Items, size = append(rows, one), append(list.Items, written), size+len(written)
	}
	if list.Continue != "" && r.query.limit == 0 {
		about.cut = cutAfter(len(list.Items))
	}
	if r.asTable {
		return applicationTable(list.ListMeta, r.query.include, rows), about, nil
	}
	return list, about, nil
}

// find returns the applications that a request chooses, from where its page begins, by namespace and name. They are shared with the cache: read only.
func (v *views) find(ctx context.Context, r request) (found []v1alpha1.Application, err error) {
	in := []client.ListOption{client.InNamespace(r.namespace), client.UnsafeDisableDeepCopy}
	from := v1alpha1.Identity{Name: r.query.from.At}
	if r.resource == applications {
		var list v1alpha1.BpfApplicationList
		err = v.Cache.List(ctx, &list, in...)
		found = pointers[v1alpha1.BpfApplication](list.Items)
		from.Namespace, from.Name, _ = strings.Cut(r.query.from.At, "/")
	} else {
		var list v1alpha1.ClusterBpfApplicationList
		err = v.Cache.List(ctx, &list, in...)
		found = pointers[v1alpha1.ClusterBpfApplication](list.Items)
	}
	found = slices.DeleteFunc(found, func(a v1alpha1.Application) bool {
		return a.Identity().Compare(from) < 0 || !r.query.choosesObject(a)
	})
	slices.SortFunc(found, func(a, b v1alpha1.Application) int { return a.Identity().Compare(b.Identity()) })
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

// getApplication answers an application with its attachments.
func (v *views) getApplication(ctx context.Context, r request) (any, warnings, error) {
	var of application = &v1alpha1.BpfApplication{}
	if r.resource == clusterApps {
		of = &v1alpha1.ClusterBpfApplication{}
	}
	name := types.NamespacedName{Namespace: r.namespace, Name: r.name}
	switch err := v.Cache.Get(ctx, name, of); {
	case apierrors.IsNotFound(err):
		return nil, warnings{}, noderequest.Fail(http.StatusNotFound, "%s.%s %q not found", r.resource, view.Group, r.name)
	case err != nil:
		ctrl.Log.WithName("views").Error(err, "read an application", "resource", r.resource, "application", name)
		return nil, warnings{}, noderequest.Fail(http.StatusServiceUnavailable, "%s %q cannot be read; try again", r.resource, r.name)
	}
	one := withoutAttachments(of)
	if r.asTable {
		return applicationTable(metav1.ListMeta{}, r.query.include, []view.BpfApplication{one}), warnings{}, nil
	}
	one.Attachments, one.LeftOut = v.attached(ctx, of, r)
	return one, warnings{}, nil
}

// attached asks the nodes that report an application for its attachments, and returns what is left out.
func (v *views) attached(ctx context.Context, of v1alpha1.Application, r request) (all []view.NodeAttachment, leftOut []string) {
	id, uid := of.Identity(), string(of.GetUID())
	scope := view.Scope{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}
	nodes, err := v.nodes(ctx, scope, everything())
	if err != nil {
		return nil, []string{err.Error()}
	}
	nodes, deleted := byState(nodes, id, uid)
	p, share := page{most: maxShown}, max(maxShownOfNode, maxShown/max(1, len(nodes)))
	err = v.gather(ctx, &p, nodes, func(node string, _ int) answered { return v.shown(ctx, node, scope, uid, r.user, share) })
	for _, a := range p.items {
		all = append(all, view.NodeAttachment{Node: a.Node, Attachment: a.Attachment})
	}
	leftOut = p.about.sentences()
	if err != nil {
		leftOut = append(leftOut, "not all nodes answered in time: "+err.Error())
	}
	if p.late > 0 {
		leftOut = append(leftOut, fmt.Sprintf("time ended after %s; not asked: %s", pageTime, count(p.late, "node")))
	}
	if deleted > 0 {
		leftOut = append(leftOut, "an application of this name that was deleted is still being unloaded on "+count(deleted, "node"))
	}
	if p.short {
		leftOut = append(leftOut, fmt.Sprintf("of an attachment, %d characters of a text, %d notes and %d verdicts are shown", maxText, maxNotes, maxVerdicts))
	}
	if p.left || p.next != (position{}) && p.late == 0 {
		leftOut = append(leftOut, fmt.Sprintf("at most %d attachments are shown, and of one node %d: "+
			"`kubectl get %s --field-selector application=%s` lists all", maxShown, share, attachmentsOf(id), id.Name))
	}
	return all, leftOut
}

// count is a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// attachmentsOf are the attachments of an application's kind, as arguments of kubectl get.
func attachmentsOf(id v1alpha1.Identity) string {
	if !id.IsNamespaced() {
		return clusterAttachments
	}
	return "-n " + id.Namespace + " " + attachments
}

// byState returns the nodes that report an application: first those where it failed, then those where it waits, last those that it has not come
// to. It counts those that report a deleted one of its name.
func byState(nodes []*v1alpha1.BpfNode, id v1alpha1.Identity, uid string) (order []*v1alpha1.BpfNode, deleted int) {
	var failed, waiting, loaded, others []*v1alpha1.BpfNode
	for _, n := range nodes {
		if slices.ContainsFunc(n.Status.Applications, func(a v1alpha1.NodeApplication) bool {
			return a.UID != uid && (v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}) == id && !isGone(a.State)
		}) {
			deleted++
		}
		report := n.Status.Of(uid)
		if report == nil {
			if n.Status.Counts.NotReported > 0 {
				loaded = append(loaded, n)
			}
			continue
		}
		switch report.State {
		case v1alpha1.NodeFailed, v1alpha1.NodeUnsupported:
			failed = append(failed, n)
		case v1alpha1.NodeWaiting:
			waiting = append(waiting, n)
		case v1alpha1.NodeLoaded:
			loaded = append(loaded, n)
		case v1alpha1.NodePending, v1alpha1.NodeRetained, v1alpha1.NodeNotSelected, v1alpha1.NodeRemoved:
			others = append(others, n)
		}
	}
	return slices.Concat(failed, waiting, loaded, others), deleted
}

// shown are the attachments of a node that a description has: at most so many, first what is not attached.
func (v *views) shown(ctx context.Context, node string, scope view.Scope, uid, user string, most int) (a answered) {
	var attached answered
	read := 0
	a.err = v.each(ctx, node, scope, user, func(one view.BpfAttachment) error {
		to := &a
		if one.State == view.StateAttached {
			to = &attached
		}
		if read++; read > maxOfNode {
			a.left = true
			return errEnough
		}
		switch {
		case one.ApplicationUID != "" && one.ApplicationUID != uid:
		case len(to.items) == most:
			a.left = true
		default:
			to.short = brief(&one.Attachment) || to.short
			to.items = append(to.items, one)
		}
		return nil
	})
	if room := most - len(a.items); len(attached.items) > room {
		a.left, attached.items = true, attached.items[:room]
	}
	a.short = a.short || attached.short && len(attached.items) > 0
	a.items = append(a.items, attached.items...)
	return a
}

// brief shortens an attachment for people, and reports whether it did.
func brief(a *view.Attachment) (isShort bool) {
	if len(a.Notes) > maxNotes {
		a.Notes, isShort = a.Notes[:maxNotes], true
	}
	for i, name := range slices.Sorted(maps.Keys(a.Verdicts)) {
		if i >= maxVerdicts || utf8.RuneCountInString(name) > maxText {
			delete(a.Verdicts, name)
			isShort = true
		}
	}
	for _, s := range texts(a) {
		if short := text.CutRunes(*s, maxText); short != *s {
			*s, isShort = short, true
		}
	}
	return isShort
}
