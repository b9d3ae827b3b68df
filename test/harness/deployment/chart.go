package deployment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skep-dev/skep/test/harness/module"
)

// Versions are what helm calls .Capabilities.APIVersions.
type Versions []string

// Has is helm's.
func (v Versions) Has(version string) bool { return slices.Contains(v, version) }

// Chart is what one of the chart's templates is rendered with.
type Chart struct {
	// Namespace is the release's. Needed.
	Namespace   string
	Versions    Versions
	CertManager bool
}

// Mutates are the Versions of a cluster with MutatingAdmissionPolicy.
func Mutates() Versions { return Versions{"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"} }

// Render is a template that is plain enough for text/template, as objects: that
// of aggregated.yaml, flowcontrol.yaml, requester.yaml, roles.yaml, rbac.yaml, webhook.yaml or writers.yaml.
func (c Chart) Render(file string) ([]*unstructured.Unstructured, error) {
	source, err := os.ReadFile(filepath.Join(module.Root(), "charts", "skep", "templates", file))
	if err != nil {
		return nil, err
	}
	// Of what helm adds, the path is all that is needed, and it stands in no template
	// that is installed.
	t, err := template.New(file).Option("missingkey=error").Funcs(template.FuncMap{
		"include": func(name string, _ any) string { return name }, "quote": strconv.Quote,
	}).Parse(string(source))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Release":      map[string]any{"Namespace": c.Namespace},
		"Capabilities": map[string]any{"APIVersions": c.Versions},
		"Values": map[string]any{
			"metrics": map[string]any{"secure": true}, "agent": map[string]any{"exposeMetrics": true, "pods": map[string]any{"enabled": true}},
			"admission":    map[string]any{"timeoutSeconds": 10, "flowControl": map[string]any{"enabled": true, "shares": 1}},
			"certificates": map[string]any{"certManager": c.CertManager},
			"view":         map[string]any{"enabled": true},
			"mapReads":     map[string]any{"enabled": true},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", file, err)
	}
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(&out, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("read what %s renders: %w", file, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// Call has an object's webhooks call an address, host:port, at the path that the
// controllers there write.
func Call(o *unstructured.Unstructured, address string) {
	hooks, found, _ := unstructured.NestedSlice(o.Object, "webhooks")
	if !found {
		return
	}
	for _, h := range hooks {
		config := h.(map[string]any)["clientConfig"].(map[string]any)
		config["url"] = "https://" + address
		delete(config, "service")
	}
	_ = unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
}
