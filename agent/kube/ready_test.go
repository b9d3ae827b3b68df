package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestReadyChangesWithItsStatusAlone has a node report over time: a condition that differed each time would be written each time.
func TestReadyChangesWithItsStatusAlone(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 1, time.UTC)
	var have []metav1.Condition
	for i, c := range []struct {
		failed int
		want   metav1.ConditionStatus
		since  int
		reason string
	}{
		{0, metav1.ConditionTrue, 0, v1alpha1.ReasonAgentReporting},
		{0, metav1.ConditionTrue, 0, v1alpha1.ReasonAgentReporting},
		{1, metav1.ConditionFalse, 2, v1alpha1.ReasonApplicationsFailed},
		{2, metav1.ConditionFalse, 2, v1alpha1.ReasonApplicationsFailed},
		{0, metav1.ConditionTrue, 4, v1alpha1.ReasonAgentReporting},
	} {
		var all []agent.ApplicationStatus
		for _, a := range many(2*c.failed, 3) {
			if a.Error != "" {
				all = append(all, a)
			}
		}
		f := facts{applications: all, fare: func(string) string { return accepted }, conditions: have, now: noon.Add(time.Duration(i) * time.Hour)}
		have = f.status().Conditions
		if len(have) != 1 {
			t.Fatalf("has %+v", have)
		}
		since := noon.Add(time.Duration(c.since) * time.Hour).Truncate(time.Second)
		if got := have[0]; got.Type != v1alpha1.ConditionReady || got.Status != c.want || got.Reason != c.reason || !got.LastTransitionTime.Time.Equal(since) {
			t.Errorf("report %d with %d failures says %+v, want %s of %s", i, c.failed, got, c.want, since)
		}
	}
}
