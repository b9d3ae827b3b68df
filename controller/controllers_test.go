package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/workers"
)

func TestMain(m *testing.M) { workers.Main(m) }

// stopping is a manager whose servers answer a last request after it is told to stop.
type stopping struct {
	ctrl.Manager
	answer func() error
}

func (s stopping) Start(ctx context.Context) error {
	<-ctx.Done()
	return s.answer()
}

// TestPoliciesAnswerUntilTheServersHaveStopped has the webhook ask once more while the
// controller stops.
func TestANegativeIntervalIsAnError(t *testing.T) {
	if _, err := New(t.Context(), Options{Interval: -time.Second}); err == nil || !strings.Contains(err.Error(), "interval -1s is negative") {
		t.Errorf("New = %v", err)
	}
}

func TestPoliciesAnswerUntilTheServersHaveStopped(t *testing.T) {
	engine := policies.NewEngine(policies.EngineOptions{})
	set, err := engine.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	decide := func() error {
		_, err := set.Decide(context.WithoutCancel(t.Context()), policies.Input{})
		return err
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := (draining{stopping{answer: decide}, engine.Close}).Start(ctx); err != nil {
		t.Errorf("while it stops: %v", err)
	}
	if decide() == nil {
		t.Error("the engine is not closed after it stopped")
	}
}

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

func TestMetadataThatNobodyReadsIsNotKept(t *testing.T) {
	written := metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{"l": "v"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Annotations: map[string]string{"example.com/owner": "team", gate.AnnotationLastApplied: "{…}"},
	}
	read := metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"example.com/owner": "team"}}
	labelled := metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}}
	for name, c := range map[string]struct{ is, want client.Object }{
		"of an application, what policies read": {&v1alpha1.BpfApplication{ObjectMeta: written}, &v1alpha1.BpfApplication{ObjectMeta: read}},
		"of a cluster's application, the same":  {&v1alpha1.ClusterBpfApplication{ObjectMeta: written}, &v1alpha1.ClusterBpfApplication{ObjectMeta: read}},
		"of a namespace, the labels":            {&metav1.PartialObjectMetadata{ObjectMeta: written}, &metav1.PartialObjectMetadata{ObjectMeta: labelled}},
		"of an intent, which is updated, all but this": {&v1alpha1.BpfIntent{ObjectMeta: written}, &v1alpha1.BpfIntent{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: written.Labels, Annotations: written.Annotations},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kept, err := trimMetadata(c.is.DeepCopyObject())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, kept); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestASeriesThatCannotBeShownHidesNoOther of what the controller's metrics are served with.
func TestASeriesThatCannotBeShownHidesNoOther(t *testing.T) {
	registry := prometheus.NewRegistry()
	served := Options{Metrics: registry, InsecureMetrics: true}.metricsServer(nil)
	var o promhttp.HandlerOpts
	for _, set := range served.HandlerOpts {
		set(&o)
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "good"}, func() float64 { return 7 }),
		prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
			to <- prometheus.NewInvalidMetric(prometheus.NewDesc("bad", "Bad.", nil, nil), errors.New("it is bad"))
		}))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, o).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "good 7\n") || o.Registry != prometheus.Registerer(registry) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
