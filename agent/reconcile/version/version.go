// Package version decides which version of an application a node runs. It is pure: it looks
// at intents and at the node's name and labels, and loads nothing.
package version

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/intent"
)

// Node is the node as rollouts and selectors see it.
type Node struct {
	// Name is empty in node mode, where there are no rollouts.
	Name string
	// Labels are the node's. Nil means that every intent is for this node.
	Labels map[string]string
}

// Known are the intents that a node has of one application.
type Known struct {
	// Newest is the last one accepted, a tombstone too. Like Deployed, it is as it
	// concerns this node; see intent.Opened.For.
	Newest intent.Opened
	// Deployed is the last one that ran in whole; nil where none did.
	Deployed *intent.Opened
}

// Granted returns what applications are granted beyond the settings of the node, by UID. One has what its newest intent grants, as far
// as that which was sealed last for its namespace does: no application keeps what was taken back from its namespace, because its
// own definition cannot be sealed any more.
func Granted(known []Known) map[string]intent.Grant {
	last := map[string]intent.Payload{}
	for _, k := range known {
		p := k.Newest.Payload()
		if in := p.Application.Namespace; !p.Tombstone && p.Serial > last[in].Serial {
			last[in] = p
		}
	}
	all := map[string]intent.Grant{}
	for _, k := range known {
		p := k.Newest.Payload()
		if own, now := p.Grant, last[p.Application.Namespace].Grant; own != nil && now != nil {
			all[p.UID] = intent.Grant{TargetPrograms: min(own.TargetPrograms, now.TargetPrograms), TextPages: min(own.TextPages, now.TextPages)}
		}
	}
	return all
}

// SameLabels reports whether nodes with the labels are chosen alike.
func SameLabels(x, y map[string]string) bool {
	return (x == nil) == (y == nil) && maps.Equal(x, y)
}

// matchLabels reports whether the node's labels match the selector.
func matchLabels(s *metav1.LabelSelector, node map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return false, fmt.Errorf("read selector: %w", err)
	}
	return selector.Matches(labels.Set(node)), nil
}

// Selects reports whether the intent is for this node.
func (n Node) Selects(payload intent.Payload) (bool, error) {
	if n.Labels == nil || payload.Tombstone || payload.NodeSelector == nil {
		return true, nil
	}
	ok, err := matchLabels(payload.NodeSelector, n.Labels)
	if err != nil {
		return false, fmt.Errorf("choose nodes for %s: %w", payload.Application, err)
	}
	return ok, nil
}

// MayHave reports whether a version is known to be for this node.
func (n Node) MayHave(o intent.Opened) bool {
	ok, err := n.Selects(o.Payload())
	return err == nil && ok
}

// Fallback returns the version that a node goes on with when it cannot have the newest. runs
// is the revision that runs now, or empty, and pending reports that the newest is on its
// way. Where there is no such version, stays reports whether what runs stays as it is.
//
// Node mode goes on with what ran last. In a cluster the intent names the versions that may
// run beside its own. A revision that it does not name goes, but not while the newest is on
// its way; nothing else is loaded meanwhile. A version that is not for this node is none.
func (n Node) Fallback(k Known, runs string, pending bool) (other *intent.Opened, stays bool) {
	if n.Name == "" {
		last := k.Deployed
		if last != nil && last.Payload().Serial == k.Newest.Payload().Serial {
			last = nil
		}
		return last, true
	}
	named := k.Newest.Names(runs)
	mine := slices.IndexFunc(named, n.MayHave)
	before, isBefore := k.Newest.Before()
	switch {
	case mine >= 0:
		return &named[mine], true
	case pending || runs == k.Newest.Revision() && !k.hasSameBytesElsewhere(k.Newest):
		return nil, true
	case isBefore && n.MayHave(before):
		return &before, true
	}
	return nil, false
}

// StaysWithout reports whether what runs stays where another version, which was to take its
// place, cannot be had: that very version, and in node mode any.
func (n Node) StaysWithout(other *intent.Opened, runs string) bool {
	return n.Name == "" || runs == other.Revision()
}

// Withdrew reports whether a revision may not run any more beside the newest intent.
func (n Node) Withdrew(k Known, revision string) bool {
	return n.Name != "" && revision != k.Newest.Revision() && len(k.Newest.Names(revision)) == 0
}

// Withdraws reports whether a revision in the kernel may not run beside the intent. Node mode
// goes on with what ran last; only in a cluster do the versions matter that an intent names.
func (n Node) Withdraws(o intent.Opened, k Known, loaded []string) bool {
	return n.Name != "" && slices.ContainsFunc(loaded, func(revision string) bool {
		return len(o.Names(revision)) == 0 && (revision != o.Revision() || k.hasSameBytesElsewhere(o))
	})
}

// MayRun reports whether a revision is one that the application may run: its newest, one
// that its intent names beside that, or, in node mode, what ran last.
func (n Node) MayRun(k Known, revision string) bool {
	return revision == k.Newest.Revision() || len(k.Newest.Names(revision)) > 0 ||
		n.Name == "" && k.Deployed != nil && revision == k.Deployed.Revision()
}

// hasSameBytesElsewhere reports whether what ran here in whole last is another version than
// the intent's own with the same bytes, at other places or for other nodes: no revision
// tells the two apart.
func (k Known) hasSameBytesElsewhere(o intent.Opened) bool {
	if k.Deployed == nil || k.Deployed.Revision() != o.Revision() {
		return false
	}
	was, is := k.Deployed.Payload(), o.Payload()
	return !was.SameVersion(&is)
}

// IsUpdate reports whether another version than the newest was the last that ran here in
// whole.
func (k Known) IsUpdate() bool {
	if k.Deployed == nil {
		return false
	}
	was, is := k.Deployed.Payload(), k.Newest.Payload()
	return was.VersionSerial() != is.VersionSerial()
}

// Intent finds the intent with the revision; nil where none is known.
func (k *Known) Intent(revision string) *intent.Opened {
	if !k.Newest.Payload().Tombstone && k.Newest.Revision() == revision {
		return &k.Newest
	}
	if k.Deployed != nil && k.Deployed.Revision() == revision {
		return k.Deployed
	}
	if named := k.Newest.Names(revision); len(named) > 0 {
		return &named[0]
	}
	return nil
}
