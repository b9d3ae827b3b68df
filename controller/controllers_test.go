package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOfANodeItIsKeptSinceWhenItIsSilent(t *testing.T) {
	silent := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(time.Unix(1_700_000_000, 0))}
	kept, err := trimNode(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure}, silent}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := kept.(*corev1.Node).Status.Conditions; len(got) != 1 || got[0] != silent {
		t.Errorf("%+v, want %+v", got, silent)
	}
}
