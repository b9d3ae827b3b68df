// Package observe owns what a reconcile reads of the node for the intents at hand: the pods and network devices that attachments
// choose or programs run in, and which changes of these matter. It must not change the node, and asks nothing of links.
package observe

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/changes"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// Options are what a Node is told once.
type Options struct {
	Log *slog.Logger
	// Containers are those of the node; nil where there is no source of them.
	Containers containers.Source
	// NamespaceLabels is as in targets.Pods.
	NamespaceLabels targets.NamespaceLabels
	// Namespaces tells the network namespaces of pods.
	Namespaces func(targets.Pods) targets.Namespaces
	// Changes are told what matters.
	Changes *changes.Changes
	// IsHurried is as in targets.Pods.
	IsHurried func() bool
}

// Node is what is kept of the node from one reconcile to the next. The caller serializes all calls.
type Node struct {
	opts Options
	// skipped are the containers that the last Snapshot left out, by id, with why.
	skipped map[string]string
	// pods are those of the last reconcile that could read the node, and serials those of its intents, by UID.
	pods    *containers.Snapshot
	serials map[string]int64
}

// New returns a Node that was not read yet.
func New(o Options) *Node { return &Node{opts: o} }

// HasPods reports whether the last reconcile read pods, so that the next one may follow changes alone.
func (n *Node) HasPods() bool { return n.pods != nil }

// Round is what one reconcile reads.
type Round struct {
	// Pods are those of the node.
	Pods targets.Pods

	node  *Node
	full  bool
	known []version.Known
	// serials are those of the newest intents, by UID. fresh are the applications of those that came since the last reconcile
	// that was kept: one that was deleted may have an intent still beside that of its successor.
	serials map[string]int64
	fresh   map[v1alpha1.Identity]bool
	byUID   map[string]*version.Known
	open    *live.Open
}

// Begin reads the pods for a reconcile, which is full or has the pods of the last one, and says what matters from now on
// to the intents and to what is open.
func (n *Node) Begin(known []version.Known, open *live.Open, full bool) *Round {
	r := &Round{node: n, full: full, known: known, byUID: make(map[string]*version.Known, len(known)),
		serials: make(map[string]int64, len(known)), fresh: map[v1alpha1.Identity]bool{}, open: open}
	for i := range known {
		newest := known[i].Newest.Payload()
		r.byUID[newest.UID], r.serials[newest.UID] = &known[i], newest.Serial
		if n.serials[newest.UID] != newest.Serial {
			r.fresh[newest.Application] = true
		}
	}
	// In this order: a change that the former choices did not match is in the Snapshot.
	choices := r.choices()
	n.opts.Changes.Choose(choices)
	if keeper, ok := n.opts.Containers.(containers.Keeper); ok {
		keeper.Keep(choices.Keys())
	}
	r.Pods = n.podsNow(known, open)
	r.Pods.Before, r.Pods.Anew, r.Pods.IsHurried, r.Pods.IsNew = n.pods, r.full, n.opts.IsHurried, r.isNew
	n.logSkipped(r.Pods.Snapshot)
	return r
}

// Last are the pods of the last reconcile.
func (n *Node) Last() targets.Pods {
	return targets.Pods{Snapshot: n.pods, NamespaceLabels: n.opts.NamespaceLabels}
}

// Namespaces are the network namespaces of pods.
func (n *Node) Namespaces(pods targets.Pods) targets.Namespaces { return n.opts.Namespaces(pods) }

// IsIncremental reports whether the reconcile follows changes alone.
func (r *Round) IsIncremental() bool { return !r.full }

// Keep has the next reconcile follow changes of these pods and intents: this one could read the node, and found what they name.
func (r *Round) Keep() {
	r.node.pods, r.node.serials = r.Pods.Snapshot, r.serials
}

// isNew reports whether an intent of an application came since the last reconcile that was kept.
func (r *Round) isNew(application v1alpha1.Identity) bool { return r.fresh[application] }

// podsNow are the pods of the node, if an intent chooses some, or something of Skep's is in one.
func (n *Node) podsNow(known []version.Known, open *live.Open) targets.Pods {
	pods := targets.Pods{NamespaceLabels: n.opts.NamespaceLabels}
	if n.opts.Containers == nil || !slices.ContainsFunc(known, choosesPods) && !open.IsInPods() {
		return pods
	}
	var away *containers.AwayError
	pods.Snapshot, pods.Err = n.opts.Containers.Snapshot()
	if errors.As(pods.Err, &away) && pods.Snapshot.IsWhole() {
		// What it knows is true all the same.
		n.opts.Log.Debug("the container runtime does not answer; its containers are those that it named last", "error", pods.Err)
		pods.Err = nil
	}
	return pods
}

// logSkipped logs each container once that a Snapshot leaves out: no program can be attached in it.
func (n *Node) logSkipped(seen *containers.Snapshot) {
	now := map[string]string{}
	if seen != nil {
		for _, one := range seen.Skipped() {
			now[one.ID] = string(one.Reason)
			if n.skipped[one.ID] != now[one.ID] {
				n.opts.Log.Info("a container is left out: no program is attached in it", "id", one.ID, "pod", one.Pod.Namespace+"/"+one.Pod.Name,
					"reason", one.Reason, "error", one.Err)
			}
		}
	}
	n.skipped = now
}
