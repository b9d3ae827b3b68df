package application

import (
	"context"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// changedShortReports lists the applications that a node tells of in short, or told before,
// and something else now. Which they are their intents say, whose names are
// their UIDs.
func (r *Reconciler) changedShortReports(ctx context.Context, before, now *v1alpha1.BpfNode) []v1alpha1.Identity {
	var ids []v1alpha1.Identity
	for _, uid := range onlyInOne(before.Status.Loaded, now.Status.Loaded) {
		var o v1alpha1.BpfIntent
		if err := r.Client.Get(ctx, client.ObjectKey{Name: uid}, &o); err == nil {
			ids = append(ids, o.Spec.Application)
		}
	}
	return ids
}

// onlyInOne lists the UIDs of what is in one list of uid:serial and not in the
// other, once each.
func onlyInOne(before, now []string) []string {
	was := map[string]bool{}
	for _, one := range before {
		was[one] = true
	}
	var uids []string
	add := func(one string) {
		uid, _, _ := strings.Cut(one, ":")
		uids = append(uids, uid)
	}
	for _, one := range now {
		if !was[one] {
			add(one)
		}
		delete(was, one)
	}
	for one := range was {
		add(one)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}
