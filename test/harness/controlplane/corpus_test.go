package controlplane_test

import (
	"cmp"
	"maps"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/test/harness/module"
)

// crdLine is what a case of the corpus says of the API server: accepts, rejects,
// or none where nothing comes out that could be sent to one.
var crdLine = regexp.MustCompile(`(?m)^crd: (accepts|refuses|none)$`)

// apart are the definitions that CUE rejects and the API server does not, each
// with the reason why it cannot.
var apart = map[string]string{
	"interface-regex": accepted + "a rule for it is estimated to cost as much as half of all others together; " +
		"the gate refuses what is none by its shape",
	"key-of-yaml-1.1":     accepted + "it stores the key as false, which no author means",
	"selector-label-null": accepted + "it leaves the label out, and chooses more; server-side apply rejects it",
	"variable-beyond-64-bits": accepted + "JSON knows no size of numbers, and clients send it as another; " +
		"the gate refuses what no variable takes by inspect/variable",
	"variable-null": accepted + "a schema of any value takes null, and CEL sees no map of such; " +
		"the gate refuses it by inspect/variable",

	"cue-condition-not-known":    unsent + inCUE,
	"cue-conflict":               unsent + inCUE,
	"cue-group-not-concrete":     unsent + inCUE,
	"cue-list-not-there":         unsent + inCUE,
	"cue-neither-group-nor-kind": unsent + inCUE,
	"cue-not-concrete":           unsent + inCUE,
	"cue-package-of-a-subfolder": unsent + inCUE,
	"cue-syntax":                 unsent + inCUE,
	"cue-template-misspelt":      unsent + inCUE,
	"cue-template-without-hash":  unsent + inCUE,
	"cue-unknown-import":         unsent + inCUE,
	"cue-unknown-version":        unsent + inCUE,
	"json-malformed":             unsent + "no client reads it",
	"kind-missing":               unsent + "the address of a request has the kind in it",
	"yaml-malformed":             unsent + "no client reads it",
}

const (
	accepted = "accepts: "
	unsent   = "none: "
	inCUE    = "what cannot be rendered is no object, and CUE itself is sent to nobody"
)

// TestCorpus sends every definition of the schemas' corpus to a real API
// server. What CUE accepts, the CRD accepts; what CUE rejects, the CRD rejects,
// but for those set apart.
func TestCorpus(t *testing.T) {
	c := newClient(t)
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(module.Root(), "schemas", "testdata", "*", "*.txtar"))
	if err != nil || len(names) < 90 {
		t.Fatalf("%d cases, %v", len(names), err)
	}
	left := maps.Clone(apart)
	for _, name := range names {
		folder, file := filepath.Split(name)
		folder, file = filepath.Base(folder), strings.TrimSuffix(file, ".txtar")
		want := map[string]string{"accepted": "accepts", "refused": "refuses"}[folder]
		if why, ok := apart[file]; ok && folder == "refused" {
			want, _, _ = strings.Cut(why, ":")
			delete(left, file)
		}
		t.Run(folder+"/"+file, func(t *testing.T) {
			ar, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if said := crdLine.FindStringSubmatch(string(ar.Comment)); len(said) != 2 || said[1] != want {
				t.Errorf("the comment says of the CRD %q, and it is to be %s", said, want)
			}
			sent, _, err := send(t, c, definition(ar))
			switch {
			case sent == (want == "none"):
				t.Errorf("want %s, but sent is %v", want, sent)
			case err != nil && want == "accepts":
				t.Errorf("refused: %v", err)
			case err == nil && want == "refuses":
				t.Error("accepted")
			case err != nil && !refusal(err):
				t.Errorf("not a refusal of the schema: %v", err)
			}
		})
	}
	for name, why := range left {
		t.Errorf("%s is set apart (%s), and there is no such case", name, why)
	}
}

// sentOtherwise are the definitions that are not stored as they are rendered, and why.
var sentOtherwise = map[string]string{
	"inside-a-list":           "clients send each item of a list",
	"variables-of-every-kind": "an API server rounds integers beyond 64 bits with a sign, which rendering writes as text",
}

// TestWhatIsWrittenIsStoredAsItIsRendered sends what an author wrote in YAML as it is: the API server
// takes it, and stores what it stores of what the schema makes of it.
func TestWhatIsWrittenIsStoredAsItIsRendered(t *testing.T) {
	c := newClient(t)
	names, err := filepath.Glob(filepath.Join(module.Root(), "schemas", "testdata", "accepted", "*.txtar"))
	if err != nil || len(names) < 40 {
		t.Fatalf("%d cases, %v", len(names), err)
	}
	for _, name := range names {
		ar, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		written, file := written(ar), strings.TrimSuffix(filepath.Base(name), ".txtar")
		if _, otherwise := sentOtherwise[file]; otherwise || written == nil {
			continue
		}
		t.Run(file, func(t *testing.T) {
			_, stored, err := send(t, c, written)
			if err != nil {
				t.Fatalf("refused as it is written: %v", err)
			}
			_, want, err := send(t, c, definition(ar))
			if err != nil {
				t.Fatalf("refused as it is rendered: %v", err)
			}
			for _, o := range []*unstructured.Unstructured{&stored, &want} {
				o.SetUID("")
				o.SetManagedFields(nil)
				o.SetCreationTimestamp(metav1.Time{})
				exact(t, o)
			}
			if diff := gocmp.Diff(want.Object, stored.Object); diff != "" {
				t.Errorf("of what is rendered (-) and of what is written (+) differs:\n%s", diff)
			}
		})
	}
}

// exact writes integers of variables as rendering does: those beyond 2^53 as text.
func exact(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	variables, found, err := unstructured.NestedMap(o.Object, "spec", "variables")
	if err != nil || !found {
		return
	}
	for name, value := range variables {
		if n, ok := value.(int64); ok && (n > 1<<53 || n < -1<<53) {
			variables[name] = strconv.FormatInt(n, 10)
		}
	}
	if err := unstructured.SetNestedMap(o.Object, variables, "spec", "variables"); err != nil {
		t.Fatal(err)
	}
}

// written is the one file that an author wrote, where that is YAML; nil where it is not.
func written(ar *txtar.Archive) []byte {
	if len(ar.Files) == 2 && filepath.Ext(ar.Files[0].Name) == ".yaml" {
		return ar.Files[0].Data
	}
	return nil
}

// refusal reports whether the API server found fault with the object itself.
func refusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

// definition is what a case would send: what the schema made of it, or the YAML
// or JSON it was rejected in; nil where there is none.
func definition(ar *txtar.Archive) []byte {
	var found []byte
	for _, f := range ar.Files {
		switch ext := filepath.Ext(f.Name); {
		case f.Name == "render.yaml":
			return f.Data
		case ext == ".yaml" || ext == ".json":
			found = f.Data
		}
	}
	return found
}

// send has the API server evaluate a definition as it is written, as kubectl
// create --dry-run=server does. It returns false where the text names no kind
// to send it as.
func send(t *testing.T, c client.Client, data []byte) (sent bool, stored unstructured.Unstructured, err error) {
	t.Helper()
	var obj unstructured.Unstructured
	if yaml.Unmarshal(data, &obj.Object) != nil || obj.GetKind() == "" {
		return false, stored, nil //nolint:nilerr // text that cannot be read names no kind
	}
	gvk := obj.GroupVersionKind()
	mapping, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return true, stored, err
	}
	config := rest.CopyConfig(plane.Config)
	config.APIPath, config.NegotiatedSerializer = "/apis", clientgoscheme.Codecs
	group := gvk.GroupVersion()
	config.GroupVersion = &group
	to, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := ""
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = cmp.Or(obj.GetNamespace(), "default")
	}
	answer, err := to.Post().NamespaceIfScoped(namespace, namespace != "").Resource(mapping.Resource.Resource).
		Param("dryRun", "All").Param("fieldValidation", "Strict").
		SetHeader("Content-Type", "application/yaml").Body(data).Do(t.Context()).Raw()
	if err == nil {
		err = stored.UnmarshalJSON(answer)
	}
	return true, stored, err
}
