package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The parts of Kubernetes' own kinds that are read: the types of all kinds would make up a quarter of the binary.
type (
	// deployment is of apps/v1, and daemonSet, too.
	deployment struct {
		Spec struct {
			Replicas *int32 `json:"replicas"`
		} `json:"spec"`
		Status struct {
			ReadyReplicas int32 `json:"readyReplicas"`
		} `json:"status"`
	}
	daemonSet struct {
		Status struct {
			DesiredNumberScheduled int32 `json:"desiredNumberScheduled"`
			NumberReady            int32 `json:"numberReady"`
		} `json:"status"`
	}
	// lease is of coordination.k8s.io/v1.
	lease struct {
		Spec struct {
			HolderIdentity       string            `json:"holderIdentity"`
			LeaseDurationSeconds int32             `json:"leaseDurationSeconds"`
			RenewTime            *metav1.MicroTime `json:"renewTime"`
		} `json:"spec"`
	}
	// webhooks is a ValidatingWebhookConfiguration of admissionregistration.k8s.io/v1.
	webhooks struct {
		Webhooks []struct {
			ClientConfig struct {
				CABundle []byte `json:"caBundle"`
				Service  *struct {
					Namespace string `json:"namespace"`
				} `json:"service"`
			} `json:"clientConfig"`
		} `json:"webhooks"`
	}
	// configMap and event are of v1.
	configMap struct {
		Data map[string]string `json:"data"`
	}
	event struct {
		Type          string           `json:"type"`
		Reason        string           `json:"reason"`
		Message       string           `json:"message"`
		Count         int32            `json:"count"`
		LastTimestamp metav1.Time      `json:"lastTimestamp"`
		EventTime     metav1.MicroTime `json:"eventTime"`
		Series        *struct {
			Count            int32            `json:"count"`
			LastObservedTime metav1.MicroTime `json:"lastObservedTime"`
		} `json:"series"`
	}
)

// seen is an event as it is shown, at the time when it was last observed.
func (e event) seen() Event {
	seen := Event{Time: e.LastTimestamp, Count: max(e.Count, 1), Type: e.Type, Reason: e.Reason, Message: e.Message}
	if e.Series != nil {
		seen.Time, seen.Count = metav1.NewTime(e.Series.LastObservedTime.Time), e.Series.Count
	}
	if seen.Time.IsZero() {
		seen.Time = metav1.NewTime(e.EventTime.Time)
	}
	return seen
}
