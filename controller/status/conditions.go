package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The reasons of the conditions that the nodes' answers make.
const (
	ReasonSucceeded   = "Succeeded"
	ReasonNoNodes     = "NoNodesSelected"
	ReasonProgressing = "Progressing"
	ReasonUnreachable = "NodesUnreachable"
	ReasonNotReported = "NodesNotReported"
	ReasonUnsupported = "NodesUnsupported"
	ReasonNodesFailed = "NodesFailed"
	ReasonNotDeployed = "NotDeployed"
	ReasonUnloading   = "Unloading"
)

// NotDeployed is the condition of an application that is to run nowhere.
func NotDeployed(message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionFalse, Reason: ReasonNotDeployed, Message: message}
}

// HasUnloaded reports whether a node says that it unloaded an application by a tombstone of such a serial, or a newer one.
func HasUnloaded(a v1alpha1.NodeApplication, tombstone int64) bool {
	return a.State == v1alpha1.NodeRemoved && a.Serial >= tombstone
}

// AnswersWithin is how long a node is waited for that says nothing of an application that is to be unloaded: it may have begun to run
// it a moment ago. A node with very many applications never says that it unloaded one.
const AnswersWithin = 5 * time.Second

// Unloaded says whether anything runs of an application that is to be unloaded by a tombstone of such a serial: nodes that can
// be reached are waited for until they say that nothing does. It names others that may run it, and waits for none of them.
// silent is for how long nodes are waited for now that say nothing; zero if there are none.
func Unloaded(uid string, tombstone int64, nodes []Node, now time.Time) (c metav1.Condition, silent time.Duration) {
	age := now.Sub(time.UnixMilli(tombstone))
	// It may be of a clock that is ahead, which is not waited for.
	isNew := age.Abs() < AnswersWithin
	var run, wait, away, noRoom []Answer
	for _, n := range nodes {
		var a *v1alpha1.NodeApplication
		if n.Reported != nil {
			a = of(n.Reported, uid)
		}
		switch {
		case a == nil && n.Reported != nil && n.Reported.Counts.NotReported > 0:
			noRoom = append(noRoom, Answer{Node: n.Name})
		case a == nil && n.Ready && isNew:
			silent = AnswersWithin - age
			wait = append(wait, Answer{Node: n.Name})
		case a == nil || HasUnloaded(*a, tombstone):
		case !n.Ready:
			away = append(away, Answer{Node: n.Name})
		case a.Revision != "" || a.State == v1alpha1.NodeLoaded:
			run = append(run, Answer{Node: n.Name, Message: a.Message})
		default:
			wait = append(wait, Answer{Node: n.Name, Message: a.Message})
		}
	}
	var said []string
	for _, p := range []struct {
		nodes []Answer
		word  string
	}{
		{run, "%d still running it"}, {wait, "%d that did not answer yet"}, {away, "%d that may run it, and cannot be reached"},
		{noRoom, "%d with no room to tell of it"},
	} {
		slices.SortFunc(p.nodes, func(a, b Answer) int { return strings.Compare(a.Node, b.Node) })
		if len(p.nodes) > 0 {
			said = append(said, fmt.Sprintf(p.word, len(p.nodes))+named(p.nodes[0].Node, int32(len(p.nodes))))
		}
	}
	if len(said) == 0 {
		return NotDeployed("nothing is deployed"), 0
	}
	c = NotDeployed("no node that answers runs it; nodes: " + strings.Join(said, ", "))
	if len(run)+len(wait) > 0 {
		c.Reason, c.Message = ReasonUnloading, "it is to be unloaded; nodes: "+strings.Join(said, ", ")
	}
	if why := first(append(run, wait...), func(a Answer) string { return a.Message }); why != "" {
		c.Message += "; " + why
	}
	return c, silent
}

// Deployed says whether the newest intent runs where it is meant to. It is true
// when it runs anywhere, and no reachable, supported node fails or has yet to
// answer; unreachable and unsupported nodes, and those whose report has no room
// for it, are told in the message.
func Deployed(n v1alpha1.NodesStatus) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionTrue, Reason: ReasonSucceeded, Message: describe(n)}
	switch {
	case n.Failed > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNodesFailed
	case n.Pending > 0 || n.Retained > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonProgressing
	case n.Selected == 0:
		c.Reason, c.Message = ReasonNoNodes, "the node selector chooses no node"
	case n.Loaded == 0 && n.Unreachable > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonUnreachable
	case n.Loaded == 0 && n.NotReported > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonNotReported
	case n.Loaded == 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonUnsupported
	}
	return c
}

// describe is the counts in words, with the first nodes of which nothing else is said,
// the first failure, what is waited for, what else nodes say, and the first doubt.
func describe(n v1alpha1.NodesStatus) string {
	parts := []string{fmt.Sprintf("loaded on %d of %d nodes", n.Loaded, n.Selected)}
	for _, p := range []struct {
		count       int32
		word, first string
	}{
		{n.Pending, "pending", n.FirstPending}, {n.Retained, "held by the rollout", ""}, {n.Failed, "failed", ""},
		{n.Unsupported, "unsupported", ""}, {n.Unreachable, "unreachable", n.FirstUnreachable}, {n.NotReported, "with no room to tell of it", ""},
	} {
		if p.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.count, p.word)+named(p.first, p.count))
		}
	}
	said := []string{strings.Join(parts, ", ")}
	if len(n.Failing) > 0 {
		said = append(said, n.Failing[0].Node+": "+n.Failing[0].Message)
	}
	said = append(said, n.Waiting, n.Skipped, n.Notice, n.KernelWarning)
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), "; ")
}

// named is the first of so many nodes in brackets, where it is known.
func named(first string, count int32) string {
	switch {
	case first == "":
		return ""
	case count == 1:
		return " (" + first + ")"
	}
	return fmt.Sprintf(" (%s and %d more)", first, count-1)
}
