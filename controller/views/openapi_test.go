package views_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// openAPI is what kubectl explain reads.
type openAPI struct {
	Paths map[string]struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
		Get               struct {
			Of kind `json:"x-kubernetes-group-version-kind"`
		} `json:"get"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Of         []kind                                  `json:"x-kubernetes-group-version-kind"`
			Properties map[string]struct{ Description string } `json:"properties"`
		} `json:"schemas"`
	} `json:"components"`
}

type kind struct{ Group, Version, Kind string }

// TestFieldsAreExplained by the comments of their types, as kubectl explain finds them.
func TestFieldsAreExplained(t *testing.T) {
	f := newFleet(t, 0, 0)
	var root, document openAPI
	f.get(t, "/openapi/v3", "application/json", &root)
	where := root.Paths["apis/"+view.GroupVersion].ServerRelativeURL
	if !strings.HasPrefix(where, "/openapi/v3/apis/"+view.GroupVersion+"?hash=") {
		t.Fatalf("%+v", root)
	}
	tag := f.get(t, where, "application/json", &document).Header.Get("ETag")
	for resource, name := range map[string]string{"bpfattachments": view.KindBpfAttachment, "clusterbpfattachments": view.KindClusterBpfAttachment,
		"bpfapplications": v1alpha1.KindBpfApplication, "clusterbpfapplications": v1alpha1.KindClusterBpfApplication, "nodeviews": view.KindNodeView} {
		of, field := document.Paths[base+"/"+resource].Get.Of, ""
		for _, schema := range document.Components.Schemas {
			for _, one := range schema.Of {
				if one == of {
					field = schema.Properties["hook"].Description + schema.Properties["loads"].Description + schema.Properties["leftOut"].Description
				}
			}
		}
		isExplained := strings.Contains(field, "Hook is the name of libbpf's section") || strings.Contains(field, "Loads are those under way") ||
			strings.Contains(field, "LeftOut says what is not shown")
		if of != (kind{view.Group, view.Version, name}) || !isExplained {
			t.Errorf("%s is %+v, with %q", resource, of, field)
		}
	}
	again := httptest.NewRequest(http.MethodGet, where, nil)
	again.Header.Set("If-None-Match", tag)
	w := httptest.NewRecorder()
	if f.served.ServeHTTP(w, again); w.Code != http.StatusNotModified {
		t.Errorf("a client that has %s is answered %d", tag, w.Code)
	}
}
