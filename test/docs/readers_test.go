package docs_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

const readersPage = "docs/user-space.md"

// TestTheReaderOfThePageIsTheExamples: a reader who copies it gets what the tests run.
func TestTheReaderOfThePageIsTheExamples(t *testing.T) {
	_, block, _ := strings.Cut(read(t, readersPage), "\n```go\n")
	block, _, _ = strings.Cut(block, "```")
	if whole := read(t, "examples/xdp-counter/packet-exporter/main.go"); block == "" || !strings.HasSuffix(whole, "\n"+block) {
		t.Errorf("examples/xdp-counter/packet-exporter/main.go does not end in what %s shows first:\n%s", readersPage, block)
	}
}

// TestTheDeploymentOfThePageIsGrantedItsMaps is what test/e2e runs on a kubelet, before any pod waits for it.
func TestTheDeploymentOfThePageIsGrantedItsMaps(t *testing.T) {
	page := read(t, readersPage)
	_, block, _ := strings.Cut(page, "\n```yaml\napiVersion: apps/v1\n")
	block, _, _ = strings.Cut("apiVersion: apps/v1\n"+block, "```")
	raw, err := yaml.ToJSON([]byte(block))
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	reader, ok := object.(*appsv1.Deployment)
	if !ok {
		t.Fatalf("it is a %T", object)
	}
	pod := reader.Spec.Template.Spec
	if want := map[string]string{"clusterApplication": "counter"}; !maps.Equal(pod.Volumes[0].CSI.VolumeAttributes, want) {
		t.Errorf("its volume is of %v, want %v", pod.Volumes[0].CSI.VolumeAttributes, want)
	}
	for _, one := range wholes(page) {
		for _, app := range applications(t, "page.yaml", one) {
			for _, grant := range app.Body().Maps["counts"].Export {
				if slices.Contains(grant.Namespaces, reader.Namespace) && slices.Contains(grant.ServiceAccounts, pod.ServiceAccountName) {
					return
				}
			}
		}
	}
	t.Errorf("no definition of the page grants counts to %s of %s", pod.ServiceAccountName, reader.Namespace)
}
