// Package nodereports gathers the nodes of a cluster, where agents run, and what they report,
// as one value: a reconcile gathers once, and every step of it reads the same.
//
// Gather reads the cache. All else is pure. It decides nothing: what follows from a report is
// for packages status, rollout and application to say.
package nodereports

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/intent"
)

// Agents returns the nodes an agent runs on, and since when none does on others, as far as
// that is known.
type Agents func(ctx context.Context) (runs map[string]bool, gone map[string]time.Time, err error)

// Snapshot is what was known of the nodes at one time. It shares the memory of the cache:
// nobody may change it.
type Snapshot struct {
	// reports are all reports, also of nodes that are gone.
	reports []v1alpha1.BpfNode
	// nodes are the nodes of the cluster, with their reports; err is why they are not known.
	nodes []status.Node
	err   error
}

// Gather reads reports, nodes and agents from the cache. With nil agents, one is taken to
// run on every node. It fails if there are no reports. To unload needs no more than reports:
// why the nodes are not known is an error of Nodes.
func Gather(ctx context.Context, cache client.Reader, agents Agents) (Snapshot, error) {
	var reports v1alpha1.BpfNodeList
	if err := cache.List(ctx, &reports, client.UnsafeDisableDeepCopy); err != nil {
		return Snapshot{}, fmt.Errorf("list what nodes report: %w", err)
	}
	s := Snapshot{reports: reports.Items}
	s.nodes, s.err = s.gatherNodes(ctx, cache, agents)
	return s, nil
}

// Nodes are the nodes of the cluster, with their reports.
func (s Snapshot) Nodes() ([]status.Node, error) { return s.nodes, s.err }

// gatherNodes reads the nodes, and adds where agents run and what is reported.
func (s Snapshot) gatherNodes(ctx context.Context, cache client.Reader, agents Agents) ([]status.Node, error) {
	var nodes corev1.NodeList
	if err := cache.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var (
		runs map[string]bool
		gone map[string]time.Time
	)
	if agents != nil {
		var err error
		if runs, gone, err = agents(ctx); err != nil {
			return nil, err
		}
	}
	reported := make(map[string]*v1alpha1.BpfNodeStatus, len(s.reports))
	for i := range s.reports {
		reported[s.reports[i].Name] = &s.reports[i].Status
	}
	all := make([]status.Node, 0, len(nodes.Items))
	for i := range nodes.Items {
		n := &nodes.Items[i]
		alive := Ready(n) && (agents == nil || runs[n.Name])
		all = append(all, status.Node{Name: n.Name, Labels: n.Labels, Ready: alive, Gone: unreachableSince(n, alive, gone), Reported: reported[n.Name]})
	}
	return all, nil
}

// unreachableSince is when a node went away: since its kubelet is silent, else since its
// agent is gone; nil if neither is known.
func unreachableSince(n *corev1.Node, alive bool, agents map[string]time.Time) *time.Time {
	if alive {
		return nil
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return &c.LastTransitionTime.Time
		}
	}
	if at, known := agents[n.Name]; known {
		return &at
	}
	return nil
}

// Ready reports whether the kubelet of a node says that the node is well.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Of returns the reports on all applications of one name, by UID. uids are those whose
// reports in short, which have no name, count as well: true if an intent of that UID is
// known to have been sealed. Serials after latest, in unix milliseconds, are not believed.
//
// The reports are the memory of an API server that lost its own: after a restore from a
// backup, nodes have seen newer intents than there are.
func (s Snapshot) Of(id v1alpha1.Identity, uids map[string]bool, latest int64) map[string]Report {
	found := map[string]Report{}
	for i := range s.reports {
		n := &s.reports[i].Status
		for _, a := range n.Applications {
			if (v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}) == id && a.Serial <= latest {
				found[a.UID] = found[a.UID].and(a)
			}
		}
		for uid := range uids {
			if a := n.Of(uid); a != nil && isShort(*a) && a.Serial <= latest {
				found[uid] = found[uid].and(*a)
			}
		}
	}
	for uid, sealed := range uids {
		// No node runs what was never sealed, even if its report has no room for all.
		if r, reported := found[uid]; (sealed || reported) && s.mayRunUnreported(uid) {
			r.Runs, r.notReported = true, true
			found[uid] = r
		}
	}
	return found
}

// MayRun reports whether a node runs what a tombstone unloads: it reports that, or has not
// seen the tombstone's serial, or its report has no room for all. A node that is away
// counts, however long.
func (s Snapshot) MayRun(uid string, tombstone int64) bool {
	return s.mayRunUnreported(uid) || slices.ContainsFunc(s.reports, func(n v1alpha1.BpfNode) bool {
		a := n.Status.Of(uid)
		return a != nil && !status.HasUnloaded(*a, tombstone)
	})
}

// mayRunUnreported reports whether a node does not report an application, and may run it:
// its report has no room for all.
func (s Snapshot) mayRunUnreported(uid string) bool {
	return slices.ContainsFunc(s.reports, func(n v1alpha1.BpfNode) bool {
		return n.Status.Counts.NotReported > 0 && n.Status.Of(uid) == nil
	})
}

// Furthest is the greatest hash of the nodes that report another version than those beside
// the live one: a lost intent had rolled it out to them. It is empty if there are none.
func (s Snapshot) Furthest(live intent.Payload) (through string) {
	var known []version
	for _, v := range live.Beside() {
		known = append(known, versionOf(v))
	}
	for i := range s.reports {
		a := s.reports[i].Status.Of(live.UID)
		if a == nil {
			continue
		}
		if r := (Report{}).and(*a); r.Runs && !slices.ContainsFunc(known, r.runs) {
			through = max(through, intent.NodeHash(live.UID, s.reports[i].Name))
		}
	}
	return through
}

// AwaitsReport reports whether a node should run a version in a live intent and has not
// reported on it: it is away, or its report was lost. A node that never had an agent
// runs nothing.
func (s Snapshot) AwaitsReport(live *intent.Payload) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	for _, n := range s.nodes {
		if awaited, err := awaitsReport(live, n); err != nil || awaited {
			return awaited, err
		}
	}
	return false, nil
}

func awaitsReport(live *intent.Payload, n status.Node) (bool, error) {
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
