package application

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// TestANamespaceThatWaitsHoldsNoMoreWorkers has what runs of a namespace evaluated anew by
// a replica that knows nothing yet, while its registry hangs and as many evaluations of
// the namespace wait as may.
func TestANamespaceThatWaitsHoldsNoMoreWorkers(t *testing.T) {
	b := newBench(t)
	ref, _ := b.Push("app:v1", programs.Object("xdp_count"), "team-a")
	app := &v1alpha1.BpfApplication{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", UID: types.UID("app"), Generation: 1},
		Spec: v1alpha1.BpfApplicationSpec{Bytecode: v1alpha1.Bytecode{Image: ref}, Programs: []v1alpha1.Program{{Name: "count_packets",
			Attach: []v1alpha1.Attachment{{Hook: "xdp", Pods: &v1alpha1.Pods{}}}}}},
	}
	b.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, app)
	b.reconcile(app.Identity())
	if b.intent(app) == nil {
		t.Fatal("it is not sealed")
	}
	var asked atomic.Int64
	hanging := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			asked.Add(1)
			supply.Hang(w, r)
		}
	})
	b.Instead.Store(&hanging)
	b.limiter.slow, b.EvaluationTimeout = map[string]int{"team": slowAtOnce}, time.Hour
	b.forgets(gate.Options{Timeout: time.Hour})
	// Its definition is asked for, and given up after a moment; what runs is not.
	_, err := b.Reconcile(t.Context(), app.Identity())
	if n := asked.Load(); n > 1 {
		t.Errorf("a registry that hangs is asked %d times: %v", n, err)
	}
	if p := b.intent(app); p.Tombstone {
		t.Errorf("it is unloaded: %s", p.Reason)
	}
}
