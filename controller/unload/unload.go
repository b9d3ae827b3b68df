// Package unload takes every program of Skep's off the nodes of a cluster that
// Skep is being uninstalled from.
//
// It owns the order and the waiting: agents go first, since they would bring
// back what is unloaded, and the chart's cleaners, one a node, do the work. It
// deletes nothing but the agents' DaemonSet.
package unload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The DaemonSets, as the chart has them. A cleaner's Pod is initialized when its
// node is clean.
const (
	agents   = "skep-agent"
	cleaners = "skep-unload"
)

// every is how often the cleaners are looked at.
const every = time.Second

// Run takes the agents of the namespace away and waits until every node is
// clean. Where ctx ends before, the error names nodes that are not. The client
// should not cache.
func Run(ctx context.Context, c client.Client, namespace string) error {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agents}}
	err := c.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DaemonSet %s/%s: %w", namespace, agents, err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	left := "nobody looked yet"
	for {
		now, err := uncleaned(ctx, c, namespace)
		if err == nil && now == "" {
			return nil
		}
		if err == nil {
			left = now
		} else if ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for clean nodes: %w: %s", ctx.Err(), left)
		case <-tick.C:
		}
	}
}

// uncleaned says what is not clean yet; nothing where all is.
func uncleaned(ctx context.Context, c client.Client, namespace string) (string, error) {
	set := &appsv1.DaemonSet{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: cleaners}, set); err != nil {
		return "", fmt.Errorf("get DaemonSet %s/%s: %w", namespace, cleaners, err)
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(set.Spec.Selector.MatchLabels)); err != nil {
		return "", fmt.Errorf("list Pods of DaemonSet %s/%s: %w", namespace, cleaners, err)
	}
	clean, waiting := 0, []string{}
	for i := range pods.Items {
		switch p := &pods.Items[i]; {
		case p.DeletionTimestamp != nil:
		case initialized(p):
			clean++
		default:
			waiting = append(waiting, p.Spec.NodeName)
		}
	}
	want := int(set.Status.DesiredNumberScheduled)
	if set.Status.ObservedGeneration >= set.Generation && clean >= want && len(waiting) == 0 {
		return "", nil
	}
	slices.Sort(waiting)
	return fmt.Sprintf("%d of %d nodes are clean; waiting for %s", clean, want, strings.Join(waiting, ", ")), nil
}

// initialized reports whether a Pod's init containers ended well.
func initialized(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodInitialized && c.Status == corev1.ConditionTrue
	})
}
