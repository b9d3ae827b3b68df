package integration

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/test/harness/deployment"
)

func TestMetricsAreForThoseWhoMayReadThem(t *testing.T) {
	c := newCluster(t)
	address, err := deployment.Free(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"}, Rules: []rbacv1.PolicyRule{
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}}}
	c.create(role, binding)
	t.Cleanup(func() { _ = c.Delete(context.Background(), role); _ = c.Delete(context.Background(), binding) })
	c.control(func(o *controller.Options) { o.MetricsAddress = address })
	prometheus, other, mirrors := c.token("prometheus", ""), c.token("other", ""), c.token("prometheus", mirror.Audience)

	scraper := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer scraper.CloseIdleConnections()
	get := func(scheme, token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+address+"/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := scraper.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		// A server of https resets the connection of whoever speaks http to it.
		body, err := io.ReadAll(answer.Body)
		if err != nil && scheme == "https" {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	c.until("metrics to be served to who may read them", func() error {
		if status, body := get("https", prometheus); status != http.StatusOK || !strings.Contains(body, "go_goroutines") {
			return errStatus(status)
		}
		return nil
	})
	for name, r := range map[string]struct {
		scheme, token string
		status        int
	}{
		"nobody":                      {"https", "", http.StatusUnauthorized},
		"a token that is none":        {"https", "x", http.StatusUnauthorized},
		"a token of another audience": {"https", mirrors, http.StatusUnauthorized},
		"who may not read them":       {"https", other, http.StatusForbidden},
		"by plain http":               {"http", prometheus, http.StatusBadRequest},
	} {
		if status, body := get(r.scheme, r.token); status != r.status || strings.Contains(body, "go_goroutines") {
			t.Errorf("%s: %d, want %d", name, status, r.status)
		}
	}
}
