package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// many are policies of a namespace of so many bytes each.
func many(namespace string, count, bytes int) []v1alpha1.BpfPolicy {
	all := make([]v1alpha1.BpfPolicy, count)
	for i := range all {
		name := fmt.Sprint("p", i)
		all[i].ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}
		all[i].Spec.Rego = "package skep.policy\n\n# " + strings.Repeat("x", bytes)
	}
	return all
}

// TestANamespaceTakesNoOthersPoliciesOverARestart has namespaces write more than is
// remembered, and another one little.
func TestANamespaceTakesNoOthersPoliciesOverARestart(t *testing.T) {
	for sentence, c := range map[string]struct {
		greedy [][]v1alpha1.BpfPolicy
		// most is how many of them may be remembered at most, least at least.
		least, most int
	}{
		"by large policies":             {[][]v1alpha1.BpfPolicy{many("greedy", 40, 50_000)}, 10, 15},
		"by one that is very large":     {[][]v1alpha1.BpfPolicy{many("greedy", 1, 1_200_000)}, 0, 0},
		"by many policies":              {[][]v1alpha1.BpfPolicy{many("greedy", 6000, 1)}, 1000, maxNamespacedPolicies - 2},
		"with another that has as many": {[][]v1alpha1.BpfPolicy{many("greedy", 20, 50_000), many("hungry", 20, 50_000)}, 10, 15},
	} {
		t.Run(sentence, func(t *testing.T) {
			key := seals.New(t)
			trust, err := intent.NewTrust(key.Public())
			if err != nil {
				t.Fatal(err)
			}
			before := &cluster{
				keys:    sealing.Keys{Sealer: key.Sealer, Trust: trust},
				signers: []v1alpha1.BpfSigner{{ObjectMeta: metav1.ObjectMeta{Name: "signer", UID: "signer"}}},
				cluster: []v1alpha1.ClusterBpfPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "cluster"}}},
			}
			for _, one := range c.greedy {
				before.namespaced = append(before.namespaced, one...)
			}
			before.namespaced = append(before.namespaced, many("small", 2, 3000)...)
			k := before.keeper(t)
			in, err := k.read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			k.before = &in
			if err := k.Remember(t.Context()); err != nil {
				t.Fatal(err)
			}
			if size := len(before.remembered.Data[activeKey]); size >= 1<<20 {
				t.Errorf("%d bytes are remembered, which no ConfigMap holds", size)
			}
			after := &cluster{keys: before.keys, crds: "-anew", remembered: before.remembered}
			recalled, err := after.keeper(t).read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for _, o := range recalled.all() {
				got[o.GetNamespace()]++
			}
			greedy := got["greedy"] + got["hungry"]
			delete(got, "greedy")
			delete(got, "hungry")
			if diff := cmp.Diff(map[string]int{"": 2, "small": 2}, got); diff != "" {
				t.Error(diff)
			}
			if greedy < c.least || greedy > c.most {
				t.Errorf("%d of the others are remembered, want %d to %d", greedy, c.least, c.most)
			}
			if len(recalled.CRDs) != 4+greedy {
				t.Errorf("the CRDs of %d objects are remembered, want %d", len(recalled.CRDs), 4+greedy)
			}
		})
	}
}

func TestWhatIsNotRememberedIsCountedByNamespace(t *testing.T) {
	in := objects{Namespaced: append(many("greedy", 5, 1000), many("small", 2, 10)...)}
	_, lost, err := in.within(4000, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(lost) != 1 || lost["greedy"] == 0 {
		t.Errorf("lost: %v", lost)
	}
}
