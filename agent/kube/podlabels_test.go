package kube_test

import (
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/test/harness/need"
)

// asks counts the requests for a resource.
type asks struct {
	next     http.RoundTripper
	resource string
	count    atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (a *asks) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/api/v1/"+a.resource) {
		a.count.Add(1)
	}
	return a.next.RoundTrip(r)
}

func TestNamespacesAreWatchedFromTheFirstQuestionOn(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: map[string]string{"team": "a"}}}
	w.create(namespace)
	counts := &asks{resource: "namespaces"}
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counts.next = next
		return counts
	})
	a, _ := w.start(func(o *kube.Options) { o.RuntimeEndpoint = "unix:///run/none.sock" })
	until(t, "a report", func() bool { return w.report() != nil })
	w.quiet()
	if n := counts.count.Load(); n != 0 {
		t.Fatalf("%d requests for namespaces before anybody asked", n)
	}
	if labels, known, _ := a.NamespaceLabels(w.name); known {
		t.Errorf("labels %v are known before the first answer", labels)
	}
	await := func(what string, want map[string]string) {
		until(t, what, func() bool {
			labels, known, _ := a.NamespaceLabels(w.name)
			return known && labels["team"] == want["team"]
		})
	}
	await("the labels", namespace.Labels)
	namespace.Labels = maps.Clone(namespace.Labels)
	namespace.Labels["team"] = "b"
	if err := w.admin.Update(t.Context(), namespace, &client.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the new label", namespace.Labels)
	if n := counts.count.Load(); n < 1 || n > 3 {
		t.Errorf("%d requests for namespaces, want a list and a watch", n)
	}
}
