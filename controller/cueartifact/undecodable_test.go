package cueartifact

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// overflowing is a duration that Flux's schema admits, and Go cannot hold.
const overflowing = "99999999999h"

// sourceOf is a GitRepository as an API server gives it.
func sourceOf(name, interval string, status any) map[string]any {
	return map[string]any{
		"apiVersion": sourcev1.GroupVersion.String(), "kind": sourcev1.GitRepositoryKind,
		"metadata": map[string]any{"namespace": "team", "name": name, "resourceVersion": "1"},
		"spec":     map[string]any{"interval": interval}, "status": status,
	}
}

// serveList is an API server that lists objects, and has no changes to tell.
func serveList(t *testing.T, objects ...any) *rest.Config {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-ended:
			}
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": sourcev1.GroupVersion.String(), "kind": sourcev1.GitRepositoryKind + "List",
				"metadata": map[string]any{"resourceVersion": "1"}, "items": objects,
			})
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	return &rest.Config{Host: server.URL}
}

func TestASourceThatCannotBeDecodedHarmsItselfAlone(t *testing.T) {
	artifact := map[string]any{"artifact": map[string]any{"revision": "main@sha1:1", "lastUpdateTime": "2026-01-01T00:00:00Z"}}
	config := serveList(t, sourceOf("overflows", overflowing, artifact), sourceOf("good", "1m", artifact),
		sourceOf("broken", "1m", map[string]any{"artifact": map[string]any{"lastUpdateTime": "2026-01-01t00:00:00z"}}))
	scheme := runtime.NewScheme()
	if err := sourcev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(sourcev1.GroupVersion.WithKind(sourcev1.GitRepositoryKind), apimeta.RESTScopeNamespace)
	cached, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { _ = cached.Start(ctx) }()
	if !cached.WaitForCacheSync(ctx) {
		t.Fatal("the cache does not start")
	}
	for name, decodes := range map[string]bool{"good": true, "overflows": true, "broken": false} {
		o := fluxObject(sourcev1.GitRepositoryKind)
		if err := cached.Get(ctx, client.ObjectKey{Namespace: "team", Name: name}, o); err != nil {
			t.Fatalf("get %s: %v", name, err)
		}
		switch s, err := stateOf(o); {
		case (err == nil) != decodes:
			t.Errorf("decode %s: %v", name, err)
		case decodes && s.Artifact.Revision != "main@sha1:1":
			t.Errorf("%s has artifact %v", name, s.Artifact)
		}
	}
}

func TestTheSchemaDeniesDurationsThatDoNotParse(t *testing.T) {
	data, err := os.ReadFile("../../charts/skep/files/crds/skep.dev_cueartifacts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	for _, field := range []string{"interval", "retryInterval", "timeout"} {
		pattern := regexp.MustCompile(spec[field].Pattern)
		for value, want := range map[string]bool{"1m": true, "1m30.5s": true, overflowing: false, "99999999999999m": false, "": false} {
			if _, err := time.ParseDuration(value); pattern.MatchString(value) != want || want && err != nil {
				t.Errorf("%s: the schema admits %q: %t, want %t: %v", field, value, !want, want, err)
			}
		}
		if longest := "99999.999999999m99999.999999999m99999.999999999m"; !pattern.MatchString(longest) {
			t.Errorf("%s: the schema denies %s", field, longest)
		} else if _, err := time.ParseDuration(longest); err != nil {
			t.Error(err)
		}
	}
}
