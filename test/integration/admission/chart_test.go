package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skep-dev/skep/test/controlplane"
)

// versions are what helm calls .Capabilities.APIVersions.
type versions []string

// Has is helm's.
func (v versions) Has(version string) bool { return slices.Contains(v, version) }

// setting is what a chart is rendered with.
type setting struct {
	versions    versions
	certManager bool
}

var (
	// newest is a cluster with MutatingAdmissionPolicy, older one without.
	newest = setting{versions: versions{"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"}}
	older  = setting{}
)

// render is one of the chart's templates, which are plain enough for
// text/template, as objects that call the tests' replicas.
func render(file string, s setting) []*unstructured.Unstructured {
	objects, err := tryRender(file, s)
	if err != nil {
		panic(fmt.Errorf("render %s: %w", file, err))
	}
	for _, o := range objects {
		point(o)
	}
	return objects
}

func tryRender(file string, s setting) ([]*unstructured.Unstructured, error) {
	source, err := os.ReadFile(filepath.Join(controlplane.Root(), "charts", "skep", "templates", file))
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
		"Release":      map[string]any{"Namespace": namespace},
		"Capabilities": map[string]any{"APIVersions": s.versions},
		"Values": map[string]any{
			"admission":    map[string]any{"timeoutSeconds": 10},
			"certificates": map[string]any{"certManager": s.certManager},
		},
	})
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(&out, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// kinds counts the objects of each kind in a template.
func kinds(t *testing.T, file string, s setting) map[string]int {
	t.Helper()
	objects, err := tryRender(file, s)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, o := range objects {
		counts[o.GetKind()]++
	}
	return counts
}

func TestTheChartRecordsTheRequesterOnEveryCluster(t *testing.T) {
	for name, c := range map[string]struct {
		setting         setting
		policy, webhook int
	}{
		"by a policy where the cluster has them": {newest, 1, 0},
		"by a webhook where it has not":          {older, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			policies, webhooks := kinds(t, "requester.yaml", c.setting), kinds(t, "webhook.yaml", c.setting)
			if policies["MutatingAdmissionPolicy"] != c.policy || webhooks["MutatingWebhookConfiguration"] != c.webhook {
				t.Errorf("%v and %v", policies, webhooks)
			}
		})
	}
}

func TestCertManagerTakesTheCertificatesAndTheRightsToThem(t *testing.T) {
	managed := setting{certManager: true}
	if got := kinds(t, "webhook.yaml", managed); got["Certificate"] != 2 || got["Issuer"] != 2 {
		t.Errorf("no certificate and no authority: %v", got)
	}
	mayWrite := func(s setting) bool {
		objects, err := tryRender("rbac.yaml", s)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			return bytes.Contains([]byte(fmt.Sprint(o.Object["rules"])), []byte("skep-webhook"))
		})
	}
	if mayWrite(managed) || !mayWrite(newest) {
		t.Error("the right to the Secret does not follow who makes the certificate")
	}
}
