package application

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// informers is a cache as controller-runtime has it: what it lists are copies,
// unless it is asked not to make any.
type informers struct {
	client.Client
	// copies has it make them whatever it is asked.
	copies  bool
	intents []v1alpha1.BpfIntent
	nodes   []corev1.Node
	reports []v1alpha1.BpfNode
}

func (c *informers) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var asked client.ListOptions
	asked.ApplyOptions(opts)
	copies := c.copies || asked.UnsafeDisableDeepCopy == nil || !*asked.UnsafeDisableDeepCopy
	switch list := list.(type) {
	case *v1alpha1.BpfIntentList:
		list.Items = listed(c.intents, copies, (*v1alpha1.BpfIntent).DeepCopy)
	case *corev1.NodeList:
		list.Items = listed(c.nodes, copies, (*corev1.Node).DeepCopy)
	case *v1alpha1.BpfNodeList:
		list.Items = listed(c.reports, copies, (*v1alpha1.BpfNode).DeepCopy)
	}
	return nil
}

func listed[T any](items []T, copies bool, deep func(*T) *T) []T {
	out := make([]T, 0, len(items))
	for i := range items {
		if copies {
			out = append(out, *deep(&items[i]))
		} else {
			out = append(out, items[i])
		}
	}
	return out
}

// The size of a large cluster.
const (
	manyNodes        = 1000
	manyIntents      = 1000
	manyApplications = 100
)

// BenchmarkEvery is what one event of a Node takes before anything is looked at.
func BenchmarkEvery(b *testing.B) {
	ring, cache := newRing(b), &informers{}
	for i := range manyIntents {
		id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: fmt.Sprint(i)}
		envelope, err := ring.Keys().Sealer.Seal(intent.Payload{Application: id, UID: fmt.Sprint(i), Serial: 1, ObjectDigest: "sha256:aa",
			Programs: []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}}})
		if err != nil {
			b.Fatal(err)
		}
		cache.intents = append(cache.intents, v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)},
			Spec: v1alpha1.BpfIntentSpec{Envelope: envelope, Application: id}})
	}
	r := &Reconciler{Client: cache, Intents: &intents.Store{Keys: ring.Keys}}
	b.Run("opening every seal", func(b *testing.B) {
		b.ReportAllocs()
		cache.copies = true
		for b.Loop() {
			watches{client: cache}.allIdentities(b.Context())
			for i := range cache.intents {
				r.Intents.Open(&cache.intents[i])
			}
		}
	})
	b.Run("by what stands beside it", func(b *testing.B) {
		b.ReportAllocs()
		cache.copies = false
		for b.Loop() {
			watches{client: cache}.allIdentities(b.Context())
		}
	})
}

// BenchmarkFold is what one look at an application takes to count its nodes.
func BenchmarkFold(b *testing.B) {
	cache := &informers{}
	for n := range manyNodes {
		name := metav1.ObjectMeta{Name: fmt.Sprint(n)}
		report := v1alpha1.BpfNode{ObjectMeta: name}
		for i := range manyApplications {
			report.Status.Applications = append(report.Status.Applications, v1alpha1.NodeApplication{Kind: v1alpha1.KindBpfApplication,
				Namespace: "team", Name: fmt.Sprint(i), UID: fmt.Sprintf("%036d", i), Serial: 1, State: v1alpha1.NodeLoaded, Revision: strings.Repeat("a", 32)})
		}
		cache.nodes, cache.reports = append(cache.nodes, corev1.Node{ObjectMeta: name}), append(cache.reports, report)
	}
	for _, copies := range []bool{true, false} {
		b.Run(map[bool]string{true: "of copies", false: "of what the cache has"}[copies], func(b *testing.B) {
			b.ReportAllocs()
			cache.copies = copies
			for b.Loop() {
				nodes, err := nodereports.Gather(b.Context(), cache, nil)
				if err != nil {
					b.Fatal(err)
				}
				all, err := nodes.Nodes()
				if err != nil {
					b.Fatal(err)
				}
				last := intent.Payload{UID: fmt.Sprintf("%036d", manyApplications-1), Serial: 1}
				if _, err := status.Fold(wanted(last, lifecycle.Observation{}), all); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
