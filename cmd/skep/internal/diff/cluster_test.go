package diff

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

// clusterOf is a cluster whose API server answers as a handler does.
func clusterOf(t *testing.T, answer func(*http.Request) map[string]any) *Cluster {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := answer(r)
		if code, failed := body["code"].(int); failed {
			w.WriteHeader(code)
		}
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return &Cluster{Config: &rest.Config{Host: strings.Replace(server.URL, "://", "://user:s3cr3t@", 1)}}
}

// application is an application, as the API server has it or as it is defined.
func application(name string, annotations map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindClusterBpfApplication,
		"metadata": map[string]any{"name": name, "annotations": annotations}, "spec": map[string]any{"priority": 50},
	}
}

// defined are the definitions of applications.
func defined(t *testing.T, names ...string) (all []schemas.Object) {
	t.Helper()
	for _, name := range names {
		raw, err := json.Marshal(application(name, nil))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, schemas.Object{Identity: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}, JSON: raw})
	}
	return all
}

// TestAnUnreadableAnnotationConcernsOneObject has whoever can annotate an object break what
// kubectl apply noted there.
func TestAnUnreadableAnnotationConcernsOneObject(t *testing.T) {
	c := clusterOf(t, func(r *http.Request) map[string]any {
		if strings.HasSuffix(r.URL.Path, "/broken") {
			return application("broken", map[string]any{lastApplied: "{not json"})
		}
		return application("good", nil)
	})
	report, _, err := c.Compare(t.Context(), defined(t, "broken", "good"))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Changes) != 1 || report.Unchanged != 1 {
		t.Fatalf("it reports %+v", report)
	}
	one := report.Changes[0]
	if one.Name != "broken" || one.Answer != Unknown || !strings.Contains(strings.Join(one.Reasons, " "), lastApplied) {
		t.Errorf("it reports %+v", one)
	}
	if strings.Contains(report.Against, "s3cr3t") || !strings.HasPrefix(report.Against, "cluster http://127.0.0.1:") {
		t.Errorf("it is compared with %q", report.Against)
	}
}

// TestADenialWithoutAReasonConcernsOneObject has a webhook that sets no reason, as it need not.
func TestADenialWithoutAReasonConcernsOneObject(t *testing.T) {
	denial := map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": http.StatusForbidden, "message": `admission webhook "x" denied the request: no`,
	}
	c := clusterOf(t, func(r *http.Request) map[string]any {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/bad") {
			return denial
		}
		return application("good", nil)
	})
	report, _, err := c.Compare(t.Context(), defined(t, "bad", "good"))
	if err != nil || len(report.Changes) != 1 || report.Changes[0].Answer != Denied {
		t.Errorf("it reports %+v, %v", report, err)
	}
}

func TestTooManyObjectsAreACaution(t *testing.T) {
	listed := 0
	c := clusterOf(t, func(r *http.Request) map[string]any {
		page := map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": "List", "items": []any{}}
		switch {
		case strings.HasSuffix(r.URL.Path, "/good"):
			return application("good", nil)
		case strings.HasSuffix(r.URL.Path, "/clusterbpfapplications"):
			var items []any
			for range pageSize {
				items = append(items, application(fmt.Sprintf("a%d", listed), nil))
				listed++
			}
			page["items"], page["metadata"] = items, map[string]any{"continue": "more"}
		}
		return page
	})
	c.Selector = "team=a"
	report, cautions, err := c.Compare(t.Context(), defined(t, "good"))
	if err != nil {
		t.Fatal(err)
	}
	if listed != maxListed || report.count(Removed) != maxListed {
		t.Errorf("%d are listed, and %d removed", listed, report.count(Removed))
	}
	if len(cautions) != 1 ||
		!strings.Contains(cautions[0], v1alpha1.KindClusterBpfApplication+" are shown for the first 20000 of each alone; choose fewer by --selector") {
		t.Errorf("the cautions are %q", cautions)
	}
}
