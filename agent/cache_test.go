package agent

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestSelectorsMatchLabels(t *testing.T) {
	node := map[string]string{"role": "edge", "zone": "a"}
	for sentence, c := range map[string]struct {
		selector metav1.LabelSelector
		want     bool
		err      bool
	}{
		"all labels match":        {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "a"}}, true, false},
		"one does not":            {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "b"}}, false, false},
		"an empty one takes all":  {metav1.LabelSelector{}, true, false},
		"an expression":           {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}}, true, false},
		"an unknown operator":     {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}, false, true},
		"a label it does not own": {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: metav1.LabelSelectorOpExists}}}, false, false},
	} {
		got, err := matchLabels(&c.selector, node)
		if got != c.want || (err != nil) != c.err {
			t.Errorf("%s: %v, %v", sentence, got, err)
		}
	}
}

func TestNewcomersAreToldFromWhoRuns(t *testing.T) {
	m := func(uid, revision string) plan.Member {
		return plan.Member{UID: uid, Identity: v1alpha1.Identity{Name: uid}, Revision: revision, Program: "f"}
	}
	running := []plan.Member{m("a", "1"), m("b", "1")}
	all := []plan.Member{m("c", "1"), m("a", "1"), m("b", "2"), m("c", "2")}
	if got := newcomersOf(all, running); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("newcomersOf = %v", got)
	}
	if got := without(all, []string{"c"}); len(got) != 2 || got[0].UID != "a" || len(all) != 4 {
		t.Errorf("without = %v", got)
	}
	moved := m("a", "1")
	moved.Priority, moved.ProceedOn = 7, 3
	if isNew(moved, running) {
		t.Error("a new priority makes a newcomer")
	}
	if got := memberKeys([]plan.Member{m("a", "1"), {UID: "a2", Identity: v1alpha1.Identity{Name: "a"}, Program: "f"}, m("b", "1")}); !slices.Equal(got, []string{"a f (a)", "a f (a2)", "b f"}) {
		t.Errorf("memberKeys = %v", got)
	}
}
