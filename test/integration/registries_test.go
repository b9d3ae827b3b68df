package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
)

// TestAnApplicationSendsTheControllerNowhereInside: unless an administrator lists
// it, a registry that is not public is not asked, and the status tells nothing of it.
func TestAnApplicationSendsTheControllerNowhereInside(t *testing.T) {
	c := newCluster(t)
	var asked atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(inside.Close)
	c.control(func(o *controller.Options) { o.AllowedRegistries = nil })
	for name, registry := range map[string]string{
		"listening": strings.TrimPrefix(inside.URL, "http://"), "closed": "127.0.0.1:1", "service": "kubernetes.default.svc:443", "metadata": "169.254.169.254",
	} {
		app := application(name, registry+"/bpf/x:v1")
		c.create(app)
		c.until("the answer about "+name, func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				return err
			}
			want := "registry " + registry + " could not be reached or is not allowed; ask your platform team"
			for _, condition := range app.Status.Conditions {
				if strings.Contains(condition.Message, want) {
					return nil
				}
			}
			return fmt.Errorf("conditions are %+v", app.Status.Conditions)
		})
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the server inside was asked %d times", n)
	}
}

// TestAdministratorsLearnWhyARegistryIsNotReached: neither the application of a namespace nor an event outside Skep's own
// namespace names the cause. The application of the cluster names it, and so does an event of the controller. What the registry
// itself answered is no secret.
func TestAdministratorsLearnWhyARegistryIsNotReached(t *testing.T) {
	c := newCluster(t)
	denies := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	strange, denying := httptest.NewTLSServer(denies), httptest.NewServer(denies)
	forbidding := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	const skep = "skep-of-causes"
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: skep}})
	// Of 127.0.0.1 http is tried, too.
	at := strings.Replace(strange.Listener.Addr().String(), "127.0.0.1", "0.0.0.0", 1)
	c.control(func(o *controller.Options) { o.Namespace, o.AllowedRegistries = skep, append(o.AllowedRegistries, at) })
	for name, is := range map[string]struct {
		server            *httptest.Server
		registry, cause   string
		isTheRegistrysOwn bool
	}{
		"certificate": {strange, at, "x509: ", false},
		"ping":        {forbidding, forbidding.Listener.Addr().String(), "status 403 Forbidden", false},
		"credentials": {denying, denying.Listener.Addr().String(), "status 401 Unauthorized", true},
	} {
		t.Cleanup(is.server.Close)
		shared := application("of-cluster-"+name, is.registry+"/bpf/x:v1")
		owned := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own-" + name}, Spec: *shared.Spec.DeepCopy()}
		c.create(shared, owned)
		if got := c.condition(shared, v1alpha1.ConditionVerified, metav1.ConditionUnknown, "EvaluationFailed").Message; !strings.Contains(got, is.cause) {
			t.Errorf("%s: Verified of the cluster's is %q", name, got)
		}
		c.condition(owned, v1alpha1.ConditionVerified, metav1.ConditionUnknown, "EvaluationFailed")
		if body, err := json.Marshal(owned); err != nil || strings.Contains(string(body), is.cause) != is.isTheRegistrysOwn {
			t.Errorf("%s: the namespace's is %v, %s", name, err, body)
		}
		for _, o := range []client.Object{shared, owned} {
			if note := c.told(o, "EvaluationFailed").Note; strings.Contains(note, is.cause) != is.isTheRegistrysOwn {
				t.Errorf("%s: an event in namespace default is %q", name, note)
			}
		}
		if is.isTheRegistrysOwn {
			continue
		}
		c.until("an event of Skep's own namespace about "+is.registry, func() error {
			var all eventsv1.EventList
			if err := c.List(t.Context(), &all, client.InNamespace(skep)); err != nil {
				return err
			}
			for _, e := range all.Items {
				if e.Reason == v1alpha1.ReasonRegistryUnreachable && e.Related.Name == is.registry && strings.HasPrefix(e.Note, is.registry+": ") &&
					strings.Contains(e.Note, is.cause) {
					return nil
				}
			}
			return fmt.Errorf("there are %v", all.Items)
		})
	}
}
