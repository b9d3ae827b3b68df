package images

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestWhoeverAsksDoesNotFillEtcd(t *testing.T) {
	scheme := runtime.NewScheme()
	v1alpha1.AddToScheme(scheme)
	for sentence, m := range map[string]*Memory{
		"by many images":  {MaxImages: 2},
		"by large images": {MaxBytes: 40},
	} {
		t.Run(sentence, func(t *testing.T) {
			m.Client = fake.NewClientBuilder().WithScheme(scheme).Build()
			name := func(i string) string { return "evidence-sha256:" + strings.Repeat(i, 64) }
			for _, i := range []string{"a", "b", "c"} {
				if err := m.Store(name(i), []byte("what a registry said")); err != nil {
					t.Fatal(err)
				}
			}
			if _, known := m.Load(name("a")); !known {
				t.Error("the first is not remembered")
			}
			if _, known := m.Load(name("c")); known {
				t.Error("the third is remembered")
			}
			if err := m.Store(name("a"), []byte("what it says now")); err != nil {
				t.Fatal(err)
			}
			if data, _ := m.Load(name("a")); string(data) != "what it says now" {
				t.Errorf("the first is not kept up to date: %q", data)
			}
		})
	}
}
