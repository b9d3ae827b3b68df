package application

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
)

// What nodes say is believed this far, since one of them may have been taken
// over: serials of no more than an hour ahead of the clock, which therefore
// cannot be used up; one new seal in ten seconds; so many tombstones of one name.
const (
	maxAhead      = time.Hour
	minBetween    = 10 * time.Second
	maxTombstones = 8
)

// nodesAreAhead reports whether nodes have seen a newer intent than the one that is
// to be kept: they deny it, and run something else. It is sealed again then,
// unless it was a moment ago: wait is when to look again.
func nodesAreAhead(s intents.Intent, now time.Time) (yes bool, wait time.Duration) {
	if !s.IsBehindNodes() {
		return false, 0
	}
	wait = time.UnixMilli(s.Payload.Serial).Add(minBetween).Sub(now)
	return wait <= 0, max(wait, 0)
}

// replaceLostIntent has nodes unload what they run under an application's name by an
// intent that was lost: the application takes its place. What still is an
// application or has an intent, a node cannot have unloaded.
func (r *Reconciler) replaceLostIntent(ctx context.Context, st *state) error {
	app := st.app
	known := map[string]bool{string(app.GetUID()): true}
	for _, s := range st.former {
		known[s.Payload.UID] = true
	}
	defined := sync.OnceValues(func() (map[types.UID]bool, error) { return applicationUIDs(ctx, r.Client) })
	for _, uid := range slices.Sorted(maps.Keys(st.reports)) {
		if known[uid] || !st.reports[uid].Runs || len(known) > maxTombstones || len(validation.IsDNS1123Subdomain(uid)) > 0 {
			continue
		}
		lost, err := r.isAbandoned(ctx, uid, defined)
		if err != nil {
			return err
		}
		if !lost {
			continue
		}
		known[uid] = true
		crd, err := r.Intents.CRD(ctx, app.Identity().Kind)
		if err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).Info("unloading application whose intent was lost", "application", app.Identity().String(), "uid", uid)
		if err := r.Intents.UnloadLost(ctx, app.Identity(), uid, st.reports[uid], crd, tookItsPlace); err != nil {
			return err
		}
	}
	return nil
}

// isAbandoned reports whether neither an intent whose seal holds nor an application has a
// UID; defined are the UIDs of applications.
func (r *Reconciler) isAbandoned(ctx context.Context, uid string, defined func() (map[types.UID]bool, error)) (bool, error) {
	var o v1alpha1.BpfIntent
	err := r.Live.Get(ctx, client.ObjectKey{Name: uid}, &o)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get intent %s: %w", uid, err)
	}
	if _, holds := r.Intents.Open(&o); holds && err == nil {
		return false, nil
	}
	uids, err := defined()
	return err == nil && !uids[types.UID(uid)], err
}

// applicationUIDs are the UIDs of all applications.
func applicationUIDs(ctx context.Context, from client.Reader) (map[types.UID]bool, error) {
	uids := map[types.UID]bool{}
	for _, list := range []client.ObjectList{&v1alpha1.BpfApplicationList{}, &v1alpha1.ClusterBpfApplicationList{}} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list applications: %w", err)
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error {
			uids[o.(application).GetUID()] = true
			return nil
		})
	}
	return uids, nil
}
