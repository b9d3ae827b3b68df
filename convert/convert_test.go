package convert_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/golden"
	"github.com/skep-dev/skep/test/harness/workers"
)

func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Use()
	os.Exit(m.Run())
}

// TestManifests converts the manifest in.yaml of each case to out.yaml. The file left has the
// objects that become no document, and vet what the schema says of the documents.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := convert.Convert(t.Context(), archive.Files[0].Data, convert.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var out, left bytes.Buffer
			for _, d := range r.Documents {
				fmt.Fprintf(&out, "---\n%s", d.YAML)
			}
			for _, n := range r.Left {
				fmt.Fprintf(&left, "%d: %s: %s (todo: %v)\n", n.Line, n.Path, n.Text, n.Todo)
			}
			archive.Files = []txtar.File{
				archive.Files[0], {Name: "out.yaml", Data: out.Bytes()}, {Name: "left", Data: left.Bytes()},
				{Name: "vet", Data: vet(t, out.Bytes(), len(r.Documents))},
			}
			golden.File(t, file, string(txtar.Format(archive)), "go test ./convert -update")
		})
	}
}

// vet says what the schema finds in documents, of which there are n.
func vet(t *testing.T, documents []byte, n int) []byte {
	t.Helper()
	if n == 0 {
		return nil
	}
	objects, problems, err := schemas.Render(t.Context(), schemas.Options{Stream: bytes.NewReader(documents)})
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Appendf(nil, "%d of %d documents are valid\n", len(objects), n)
	for _, p := range problems {
		out = fmt.Appendf(out, "%s\n", p.Error())
	}
	return out
}

func TestInputsThatAreRejected(t *testing.T) {
	deep := strings.Repeat("a: {", 70) + strings.Repeat("}", 70)
	for name, c := range map[string]struct{ in, want string }{
		"no YAML":               {"a: [", "read YAML"},
		"a list":                {"- a\n- b\n", "is no object of Kubernetes"},
		"an alias":              {"kind: &k XdpProgram\nother: *k\n", "is an alias"},
		"a field twice":         {"kind: a\nkind: b\n", "is given twice"},
		"fields nested deep":    {deep, "nested more than 64 deep"},
		"more than may be read": {strings.Repeat("#", convert.MaxBytes+1), "larger than 4 MiB"},
		"more objects than may": {strings.Repeat("{kind: A}\n---\n", convert.MaxObjects+1), "more than 5000 objects"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := convert.Convert(t.Context(), []byte(c.in), convert.Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// FuzzConvert looks for inputs that end the process, or whose text leaves a comment.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	f.Add([]byte("apiVersion: bpfman.io/v1alpha1\nkind: XdpProgram\nmetadata: {name: \"a\\nkind: B\"}\nspec: {\"x\\ny: 1\": 2}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := convert.Convert(t.Context(), data, convert.Options{})
		if err != nil {
			return
		}
		for _, d := range r.Documents {
			again, err := convert.Convert(t.Context(), d.YAML, convert.Options{})
			if err != nil || len(again.Documents) != 0 || len(again.Left) != 1 {
				out, _ := json.Marshal(again)
				t.Errorf("the document is no single object of Skep's: %v, %s\n%s", err, out, d.YAML)
			}
		}
	})
}

// A terminal obeys escape sequences, and a line end would leave a comment.
func TestTextOfAManifestStaysOnItsLine(t *testing.T) {
	in := `{apiVersion: bpfman.io/v1alpha1, kind: XdpProgram, metadata: {name: "a\n\e[2Jb"}, spec: {"c\n\e[2Jd": "e\n\e[2Jf"}}`
	r, err := convert.Convert(t.Context(), []byte(in), convert.Options{})
	if err != nil || len(r.Documents) != 1 {
		t.Fatalf("%v, %d documents, want 1", err, len(r.Documents))
	}
	d := r.Documents[0]
	found := false
	for _, n := range d.Notes {
		found = found || strings.HasPrefix(n.Path, "spec.c ")
		if strings.ContainsAny(n.Path+n.Text, "\n\x1b") {
			t.Errorf("a note holds control characters: %+q", n.Path+n.Text)
		}
	}
	if !found {
		t.Errorf("the field is not noted: %v", d.Notes)
	}
	if strings.ContainsAny(d.From+string(d.YAML), "\x1b") || strings.Contains(d.From, "\n") {
		t.Errorf("the document holds control characters: %q", d.YAML)
	}
}

// With the marks of its owner, Argo CD or Flux would remove the new object as one that Git no
// longer has.
func TestMarksOfOwnersAreLeftOut(t *testing.T) {
	owners := []string{
		"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "argocd.argoproj.io/tracking-id", "kustomize.toolkit.fluxcd.io/name",
		"helm.toolkit.fluxcd.io/namespace", "meta.helm.sh/release-name", "applyset.kubernetes.io/part-of", "config.k8s.io/owning-inventory",
	}
	marks := "{app.kubernetes.io/name: kept, " + strings.Join(owners, ": gone, ") + ": gone}"
	d := one(t, "{apiVersion: bpfman.io/v1alpha1, kind: XdpProgram, metadata: {name: a, labels: "+marks+", annotations: "+marks+"}, spec: {}}")
	if out := string(d.YAML); strings.Contains(out, ": gone") || strings.Count(out, "app.kubernetes.io/name: kept") != 2 {
		t.Errorf("marks are carried over, or others are gone:\n%s", out)
	}
	for _, name := range owners {
		for _, path := range []string{"metadata.labels.", "metadata.annotations."} {
			if !slices.ContainsFunc(d.Notes, func(n convert.Note) bool { return n.Path == path+name && !n.Todo }) {
				t.Errorf("%s is not noted", path+name)
			}
		}
	}
}

// Each of these said less than the manifest does, or chose more, without a note.
func TestValuesOfAnotherTypeAreNoted(t *testing.T) {
	xdp := func(link string) string { return "programs: [{name: a, type: xdp, xdp: {links: [" + link + "]}}]" }
	uprobe := func(pods string) string {
		return "programs: [{name: a, type: uprobe, uprobe: {links: [{target: /bin/a, function: f, containers: " + pods + "}]}}]"
	}
	for name, c := range map[string]struct{ spec, want, holds, without string }{
		"interfaces beside discovery": {
			xdp("{interfaceSelector: {interfaces: [eth7], interfacesDiscoveryConfig: {interfaceAutoDiscovery: true}}}"),
			"interfaceAutoDiscovery: interfaces are named as well", "- eth7", "'*'",
		},
		"the primary interface beside discovery": {
			xdp("{interfaceSelector: {primaryNodeInterface: true, interfacesDiscoveryConfig: {interfaceAutoDiscovery: true}}}"),
			"interfaceAutoDiscovery: interfaces are named as well", "primary: true", "'*'",
		},
		"a namespace that is a mapping": {uprobe("{namespace: {a: b}}"), "containers.namespace: ", "key: invalid", ""},
		"a namespace that is a list":    {uprobe("{namespace: [a]}"), "containers.namespace: ", "key: invalid", ""},
		"programs that are text":        {"programs: a", "spec.programs: a is not a list of programs", "programs: []", ""},
		"links that are a mapping":      {"programs: [{name: a, type: xdp, xdp: {links: {a: {}}}}]", "links: ", "programs: []", "hook"},
		"a type that is a list":         {"programs: [{name: a, type: [xdp]}]", "type: ", "programs: []", ""},
	} {
		d := one(t, application(c.spec))
		if out := string(d.YAML); !todo(d, c.want) || !strings.Contains(out, c.holds) || c.without != "" && strings.Contains(out, c.without) {
			t.Errorf("%s: want a TODO with %q, and the document with %q and without %q:\n%s", name, c.want, c.holds, c.without, out)
		}
	}
	for in, want := range map[string]string{
		"{image: {url: {a: b}}}": "spec.byteCode.image.url: ",
		"{image: {}}":            "no image is given in it",
		"{path: [a]}":            "spec.byteCode.path: ",
		"{imageurl: [a]}":        "spec.byteCode.imageurl: ",
		"[a]":                    "it is no mapping",
		"{image: {url: a, imagePullPolicy: [Never]}}":        "imagePullPolicy: ",
		"{image: {url: a, imagePullSecret: {}}}":             "no Secret is named",
		"{image: {url: a, imagePullSecret: [pull]}}":         "imagePullSecret: it is no mapping",
		"{image: {url: a, imagePullSecret: {name: [pull]}}}": "imagePullSecret.name: ",
	} {
		d := one(t, "{apiVersion: bpfman.io/v1alpha1, kind: XdpProgram, metadata: {name: a}, spec: {byteCode: "+in+"}}")
		if !todo(d, want) {
			t.Errorf("%s: no TODO with %q in:\n%s", in, want, d.YAML)
		}
	}
}
