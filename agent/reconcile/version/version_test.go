package version

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSelectorsMatchLabels(t *testing.T) {
	node := map[string]string{"role": "edge", "zone": "a"}
	for sentence, c := range map[string]struct {
		selector metav1.LabelSelector
		want     bool
		err      bool
	}{
		"all labels match":       {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "a"}}, true, false},
		"one does not":           {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "b"}}, false, false},
		"an empty one takes all": {metav1.LabelSelector{}, true, false},
		"an expression": {
			metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}},
			true, false,
		},
		"an unknown operator": {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}, false, true},
		"a label it does not own": {
			metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: metav1.LabelSelectorOpExists}}}, false, false,
		},
	} {
		got, err := matchLabels(&c.selector, node)
		if got != c.want || (err != nil) != c.err {
			t.Errorf("%s: %v, %v", sentence, got, err)
		}
	}
}
