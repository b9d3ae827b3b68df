package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
)

// census counts what is in the cache when Prometheus asks, so that nothing is
// told of what is gone.
type census struct {
	reader client.Reader
	keeper *policy.Keeper

	applications, intents, protected *prometheus.Desc
}

// censusTimeout bounds one count; a cache that is not synced yet would make
// Prometheus wait.
const censusTimeout = 2 * time.Second

func newCensus(reader client.Reader, keeper *policy.Keeper) *census {
	return &census{reader: reader, keeper: keeper,
		applications: prometheus.NewDesc("skep_applications", "Applications, by what the gate says: True, False or Unknown.", []string{"allowed"}, nil),
		intents:      prometheus.NewDesc("skep_intents", "BpfIntents, by state: live or tombstone.", []string{"state"}, nil),
		protected:    prometheus.NewDesc("skep_unload_protected_applications", "Applications a change of policies would unload, waiting to be confirmed.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *census) Describe(to chan<- *prometheus.Desc) {
	to <- c.applications
	to <- c.intents
	to <- c.protected
}

// Collect implements prometheus.Collector. What cannot be listed is left out.
func (c *census) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), censusTimeout)
	defer cancel()
	send := func(desc *prometheus.Desc, counts map[string]int) {
		for value, n := range counts {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), value)
		}
	}
	if counts, ok := c.countApplications(ctx); ok {
		send(c.applications, counts)
	}
	if counts, ok := c.countIntents(ctx); ok {
		send(c.intents, counts)
	}
	to <- prometheus.MustNewConstMetric(c.protected, prometheus.GaugeValue, float64(c.keeper.Protected()))
}

func (c *census) countApplications(ctx context.Context) (map[string]int, bool) {
	var (
		namespaced v1alpha1.BpfApplicationList
		cluster    v1alpha1.ClusterBpfApplicationList
	)
	for _, list := range []client.ObjectList{&namespaced, &cluster} {
		if c.reader.List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
			return nil, false
		}
	}
	counts := map[string]int{string(metav1.ConditionTrue): 0, string(metav1.ConditionFalse): 0, string(metav1.ConditionUnknown): 0}
	count := func(conditions []metav1.Condition) {
		status := metav1.ConditionUnknown
		if found := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionAllowed); found != nil {
			status = found.Status
		}
		counts[string(status)]++
	}
	for i := range namespaced.Items {
		count(namespaced.Items[i].Status.Conditions)
	}
	for i := range cluster.Items {
		count(cluster.Items[i].Status.Conditions)
	}
	return counts, true
}

func (c *census) countIntents(ctx context.Context) (map[string]int, bool) {
	var list v1alpha1.BpfIntentList
	if c.reader.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil, false
	}
	counts := map[string]int{"live": 0, "tombstone": 0}
	for i := range list.Items {
		if list.Items[i].Spec.Tombstone {
			counts["tombstone"]++
		} else {
			counts["live"]++
		}
	}
	return counts, true
}
