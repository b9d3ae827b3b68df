package version

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// TestAGrantIsThatOfTheNewestIntents: an application has no more than its intent grants, and than the last one of its namespace does.
func TestAGrantIsThatOfTheNewestIntents(t *testing.T) {
	key := seals.New(t)
	of := func(namespace, uid string, serial int64, g *intent.Grant) Known {
		return Known{Newest: key.Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: uid}, UID: uid,
			Serial: serial, ObjectDigest: "sha256:object", Programs: []v1alpha1.Program{{Name: "p"}}, Grant: g})}
	}
	gone := Known{Newest: key.Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "gone"},
		UID: "gone", Serial: 99, Tombstone: true})}
	wide, narrow := &intent.Grant{TargetPrograms: 9, TextPages: 70}, &intent.Grant{TargetPrograms: 6, TextPages: 100}
	for sentence, c := range map[string]struct {
		known []Known
		want  map[string]intent.Grant
	}{
		"nothing is granted":         {[]Known{of("team-a", "a", 1, nil)}, nil},
		"an application has its own": {[]Known{of("team-a", "a", 1, wide), of("team-b", "b", 2, nil), gone}, map[string]intent.Grant{"a": *wide}},
		"it has less since": {[]Known{of("team-a", "a", 1, wide), of("team-a", "b", 2, narrow)},
			map[string]intent.Grant{"a": {TargetPrograms: 6, TextPages: 70}, "b": *narrow}},
		"it was taken back since":                   {[]Known{of("team-a", "b", 2, nil), of("team-a", "a", 1, wide)}, nil},
		"what is granted since is not in an intent": {[]Known{of("team-a", "a", 1, nil), of("team-a", "b", 2, wide)}, map[string]intent.Grant{"b": *wide}},
	} {
		if got := Granted(c.known); !maps.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", sentence, got, c.want)
		}
	}
}

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
