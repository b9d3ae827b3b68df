package status

import (
	"fmt"
	"slices"
	"strings"

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

// Unloaded says that nothing runs of an application that is to be unloaded by a tombstone of
// such a serial, once nodes report so. Nodes that do not answer are told, and not waited for.
func Unloaded(uid string, tombstone int64, nodes []Node) metav1.Condition {
	var running, silent []Answer
	for _, n := range nodes {
		if n.Reported == nil {
			continue
		}
		a := n.Reported.Of(uid)
		switch {
		case a == nil && n.Reported.Counts.NotReported > 0:
			silent = append(silent, Answer{Node: n.Name})
		case a == nil || a.State == v1alpha1.NodeRemoved || !mayRun(*a, tombstone):
		case n.Ready:
			running = append(running, Answer{Node: n.Name, Message: a.Message})
		default:
			silent = append(silent, Answer{Node: n.Name})
		}
	}
	byName := func(a, b Answer) int { return strings.Compare(a.Node, b.Node) }
	slices.SortFunc(running, byName)
	slices.SortFunc(silent, byName)
	c := metav1.Condition{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionFalse, Reason: ReasonNotDeployed, Message: "nothing is deployed"}
	if len(running) > 0 {
		c.Reason = ReasonUnloading
		c.Message = fmt.Sprintf("it is to be unloaded, and runs on %d of %d nodes still", len(running), len(nodes)) + named(running[0].Node, int32(len(running)))
	}
	if len(silent) > 0 {
		c.Message += fmt.Sprintf("; %d may run it, and do not answer", len(silent)) + named(silent[0].Node, int32(len(silent)))
	}
	if said := first(running, func(a Answer) string { return a.Message }); said != "" {
		c.Message += "; " + said
	}
	return c
}

// mayRun reports whether a node's report on an application says that something of it runs,
// or that what a tombstone asks for is under way. A report in short is on what runs.
func mayRun(a v1alpha1.NodeApplication, tombstone int64) bool {
	return a.Revision != "" || a.Kind == "" || a.Serial >= tombstone
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
