package application

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// What nodes say is believed this far, since one of them may have been taken
// over: serials of no more than an hour ahead of the clock, which therefore
// cannot be used up; one new seal in ten seconds; so many tombstones of one name.
const (
	maxAhead      = time.Hour
	minBetween    = 10 * time.Second
	maxTombstones = 8
)

// nodeReport is what nodes say of one application.
type nodeReport struct {
	// serial is that of the newest version that one of them has seen; runs tells
	// that it runs on one, or may: untold, that a report had no room for it.
	serial            int64
	runs, notReported bool
	// part tells that one of them could not have all of a version: it names that one,
	// and may run parts of others for the rest.
	part bool
	// revisions are those that run, serials the versions' that were told in short.
	revisions []string
	serials   []int64
}

// version is what nodes call one, in full or in short.
type version struct {
	revision string
	serial   int64
}

func versionOf(v *intent.Payload) version { return version{v.Revision(), v.VersionSerial()} }

// of reports whether a node runs a version, or may.
func (w nodeReport) of(v version) bool {
	return w.notReported || slices.Contains(w.revisions, v.revision) || slices.Contains(w.serials, v.serial)
}

// and takes what one node says more.
func (w nodeReport) and(a v1alpha1.NodeApplication) nodeReport {
	w.serial = max(w.serial, a.Serial)
	w.part = w.part || a.Revision != "" && (a.State == v1alpha1.NodeFailed || a.State == v1alpha1.NodeUnsupported)
	switch {
	case a.Revision != "":
		w.runs = true
		if !slices.Contains(w.revisions, a.Revision) {
			w.revisions = append(w.revisions, a.Revision)
		}
	case isShort(a):
		w.runs = true
		if !slices.Contains(w.serials, a.Serial) {
			w.serials = append(w.serials, a.Serial)
		}
	}
	return w
}

// isShort tells that a node told of an application without its name.
func isShort(a v1alpha1.NodeApplication) bool { return a.Kind == "" }

// nodeReports is what nodes say of the applications of one name, by UID, those that are
// known by uids in short as well: true where it is known that an intent was sealed.
// It is the memory of an API server that lost its own: after a restore from a backup,
// nodes have seen newer intents than there are.
func (r *Reconciler) nodeReports(ctx context.Context, id v1alpha1.Identity, uids map[string]bool) (map[string]nodeReport, error) {
	var nodes v1alpha1.BpfNodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list what nodes report: %w", err)
	}
	latest := r.now().Add(maxAhead).UnixMilli()
	said := map[string]nodeReport{}
	for i := range nodes.Items {
		n := &nodes.Items[i].Status
		for _, a := range n.Applications {
			if (v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}) == id && a.Serial <= latest {
				said[a.UID] = said[a.UID].and(a)
			}
		}
		for uid := range uids {
			if a := n.Of(uid); a != nil && isShort(*a) && a.Serial <= latest {
				said[uid] = said[uid].and(*a)
			}
		}
	}
	for uid, sealed := range uids {
		// No node runs what was never sealed, whatever its report has no room for.
		if w, heard := said[uid]; (sealed || heard) && mayRunUnreported(nodes.Items, uid) {
			w.runs, w.notReported = true, true
			said[uid] = w
		}
	}
	return said, nil
}

// notReported reports whether a node says nothing of an application, and may run it: its
// report has no room for all.
func mayRunUnreported(nodes []v1alpha1.BpfNode, uid string) bool {
	return slices.ContainsFunc(nodes, func(n v1alpha1.BpfNode) bool {
		return n.Status.Counts.NotReported > 0 && n.Status.Of(uid) == nil
	})
}

// nodesWouldLose reports whether nodes would lose something with what is sealed, or may: they
// say that they run something, or are to and have yet to say how that went.
func (r *Reconciler) nodesWouldLose(ctx context.Context, s sealed) (bool, error) {
	if s.report.runs || s.lost || s.payload == nil || s.payload.Tombstone {
		return s.report.runs || s.lost, nil
	}
	nodes, err := r.nodes(ctx)
	for _, n := range nodes {
		if silent, err := hasSilentNode(s.payload, n); err != nil || silent {
			return silent, err
		}
	}
	return false, err
}

// hasSilentNode reports whether a node is to have a version that an intent names, and has yet
// to say how it does with it: it is away, or its report was lost. One that never had
// an agent says nothing, and runs nothing.
func hasSilentNode(live *intent.Payload, n status.Node) (bool, error) {
	version := live
	if !live.Reaches(n.Name) {
		version = live.Previous
	}
	if version == nil {
		return false, nil
	}
	answers, err := status.Answers(status.Wanted{UID: live.UID, Serial: version.VersionSerial(), Selector: version.NodeSelector}, []status.Node{n})
	if err != nil || len(answers) == 0 {
		return false, err
	}
	if answers[0].Reachable {
		return answers[0].State == v1alpha1.NodePending, nil
	}
	return n.Ready || n.Gone != nil || n.Reported != nil, nil
}

// nodesAreAhead reports whether nodes have seen a newer intent than the one that is
// to be kept: they refuse it, and run something else. It is sealed again then,
// unless it was a moment ago: wait is when to look again.
func (r *Reconciler) nodesAreAhead(s sealed) (yes bool, wait time.Duration) {
	if !s.isBehindNodes() {
		return false, 0
	}
	wait = time.UnixMilli(s.payload.Serial).Add(minBetween).Sub(r.now())
	return wait <= 0, max(wait, 0)
}

// replaceLostIntent has nodes unload what they run under an application's name by an
// intent that was lost: the application takes its place. What still is an
// application or has an intent, a node cannot have unloaded.
func (r *Reconciler) replaceLostIntent(ctx context.Context, app application, others []sealed, said map[string]nodeReport) error {
	known := map[string]bool{string(app.GetUID()): true}
	for _, s := range others {
		known[s.payload.UID] = true
	}
	for _, uid := range slices.Sorted(maps.Keys(said)) {
		if known[uid] || !said[uid].runs || len(known) > maxTombstones || len(validation.IsDNS1123Subdomain(uid)) > 0 {
			continue
		}
		lost, err := r.isAbandoned(ctx, uid)
		if err != nil {
			return err
		}
		if !lost {
			continue
		}
		known[uid] = true
		crd, err := r.crd(ctx, app.Identity().Kind)
		if err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).Info("unloading application whose intent was lost", "application", app.Identity().String(), "uid", uid)
		before := sealed{payload: &intent.Payload{Application: app.Identity(), UID: uid}, report: said[uid]}
		envelope, err := gate.SealTombstone(r.Keys().Sealer, app.Identity(), gate.Stamp{UID: uid, Serial: r.serial(before)}, tookItsPlace)
		if err != nil {
			return err
		}
		if _, err := r.putEnvelope(ctx, before, envelope, crd); err != nil {
			return err
		}
	}
	return nil
}

// isAbandoned reports whether nothing stands for a UID any more: neither an application
// nor an intent whose seal holds.
func (r *Reconciler) isAbandoned(ctx context.Context, uid string) (bool, error) {
	var o v1alpha1.BpfIntent
	err := r.Live.Get(ctx, client.ObjectKey{Name: uid}, &o)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get intent %s: %w", uid, err)
	}
	if _, holds := r.openIntent(&o); holds && err == nil {
		return false, nil
	}
	var (
		namespaced v1alpha1.BpfApplicationList
		cluster    v1alpha1.ClusterBpfApplicationList
	)
	for _, list := range []client.ObjectList{&namespaced, &cluster} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("list applications: %w", err)
		}
	}
	return !slices.ContainsFunc(namespaced.Items, func(a v1alpha1.BpfApplication) bool { return string(a.UID) == uid }) &&
		!slices.ContainsFunc(cluster.Items, func(a v1alpha1.ClusterBpfApplication) bool { return string(a.UID) == uid }), nil
}
