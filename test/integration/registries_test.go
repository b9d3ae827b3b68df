package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

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
