package migrate

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/test/harness/hostile"
	"github.com/skep-dev/skep/text"
)

// TestNoFieldOfAManifestReachesTheTerminalAsItIs: the author of one of bpfman's objects writes its names, labels and globals.
func TestNoFieldOfAManifestReachesTheTerminalAsItIs(t *testing.T) {
	quoted, err := json.Marshal(hostile.Text)
	if err != nil {
		t.Fatal(err)
	}
	// YAML takes this control character escaped alone.
	h := strings.ReplaceAll(string(quoted), "\u009b", `\u009b`)
	all := map[string]string{
		"program": `{apiVersion: bpfman.io/v1alpha1, kind: TracepointProgram, metadata: {name: H, namespace: H, labels: {H: H}, H: H}, ` +
			`spec: {bpffunctionname: H, name: H, H: H, bytecode: {image: {url: H, H: H}}, globaldata: {H: H, a: [1, H]}}}`,
		"application": `{apiVersion: bpfman.io/v1alpha1, kind: ClusterBpfApplication, metadata: {name: H, annotations: {H: H}}, ` +
			`spec: {bytecode: {image: {url: H}}, nodeSelector: {matchLabels: {H: H}}, programs: [{name: H, type: XDP, H: H, ` +
			`xdp: {links: [{interfaceSelector: {interfaces: [H]}, priority: H}]}}, {name: H, type: H}]}}`,
		"kind":    `{apiVersion: H, kind: H, metadata: {name: H}}`,
		"version": `{apiVersion: bpfman.io/v1alpha1, kind: H, metadata: {name: H}}`,
		"broken":  `{H: [}`,
		"scalar":  `H`,
	}
	documents := len(all)
	for name, manifest := range all {
		stdout, stderr, err := runWith(t.Context(), t, strings.ReplaceAll(manifest, "H", h), "-")
		hostile.Check(t, name, stdout)
		hostile.Check(t, name+", stderr", stderr)
		if err != nil {
			hostile.Check(t, name+", the last line", text.Printable(err.Error()))
		}
		var read struct{ Metadata metav1.ObjectMeta }
		if err := yaml.Unmarshal([]byte(stdout), &read); err != nil || stdout != "" && read.Metadata.Name != hostile.Text {
			t.Errorf("%s is read as %q, %v", name, read.Metadata.Name, err)
		}
		if stdout == "" {
			documents--
		}
	}
	if documents != 2 {
		t.Errorf("%d are converted, want 2", documents)
	}
}
