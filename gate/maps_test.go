package gate_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestMapsOfADefinition evaluates what definitions say of the maps of one object.
func TestMapsOfADefinition(t *testing.T) { mapCases(t, "testdata/maps/*.txtar", "xdp_contents") }

// TestMetricsOfADefinition evaluates which entries of maps become series.
func TestMetricsOfADefinition(t *testing.T) { mapCases(t, "testdata/metrics/*.txtar", "xdp_series") }

// mapCases evaluates definitions of the maps of an object.
func mapCases(t *testing.T, cases, object string) {
	w := newWorld(t)
	ref := w.signed(object)
	evaluator := w.evaluator()
	golden.Cases(t, cases, func(t *testing.T, ar *txtar.Archive) []txtar.File {
		a := app(ref, object, onEth0())
		if err := yaml.UnmarshalStrict(ar.Files[0].Data, &a.Spec.Maps); err != nil {
			t.Fatal(err)
		}
		v := mustEvaluate(t, evaluator, a)
		got := fmt.Sprintf("allowed: %v\n", v.Allowed())
		for _, r := range v.Decision().Denied {
			got += gate.Sentence(r) + "\n"
		}
		return []txtar.File{golden.Part("want", got)}
	})
}

// TestAMapHasAReaderAndTheNameOfAnotherFile grants maps whose names are those of other files in a readers' folder.
func TestAMapHasAReaderAndTheNameOfAnotherFile(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"socket", "we.btf"} {
		body := bytes.ReplaceAll(programs.Object("xdp_contents"), []byte("\x00routes\x00"), []byte("\x00"+name+"\x00"))
		ref := w.pushObject("xdp_contents", "v"+name, body)
		w.sign(ref, "team-a")
		a := app(ref, "xdp_contents", onEth0())
		keep := v1alpha1.Map{OnUpdate: v1alpha1.MapKeep}
		a.Spec.Maps = map[string]v1alpha1.Map{name: keep}
		if v := mustEvaluate(t, w.evaluator(), a); !v.Allowed() {
			t.Errorf("%s without a reader: %v", name, v.Decision().Denied)
		}
		keep.Export = []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: []string{"web"}}}
		a.Spec.Maps = map[string]v1alpha1.Map{name: keep}
		v := mustEvaluate(t, w.evaluator(), a)
		if denied := v.Decision().Denied; len(denied) != 1 || denied[0].Path != "spec.maps."+name+".export" || !strings.Contains(denied[0].Fix, "rename") {
			t.Errorf("%s with a reader: %+v", name, denied)
		}
	}
}

// entry is one of a map's contents.
func entry(key, value string) v1alpha1.MapEntry {
	return v1alpha1.MapEntry{Key: apiextensionsv1.JSON{Raw: []byte(key)}, Value: apiextensionsv1.JSON{Raw: []byte(value)}}
}

// TestMoreContentsThanNodesAreGivenAreDenied: by their number, and by their size as JSON.
func TestMoreContentsThanNodesAreGivenAreDenied(t *testing.T) {
	for sentence, c := range map[string]struct {
		entries int
		value   string
		denied  string
	}{
		"as many entries as a map may have": {v1alpha1.MaxMapEntries, "1", ""},
		"one entry too many":                {v1alpha1.MaxMapEntries + 1, "1", "spec.maps.limits.contents"},
		"as much text as there may be":      {1, `"` + strings.Repeat("x", v1alpha1.MaxMapContents-32) + `"`, ""},
		"too much text":                     {2, `"` + strings.Repeat("x", v1alpha1.MaxMapContents/2) + `"`, "spec.maps"},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := app("r.example.com/x:v1", "p", onEth0())
			m := v1alpha1.Map{}
			for range c.entries {
				m.Contents = append(m.Contents, entry("1", c.value))
			}
			a.Spec.Maps = map[string]v1alpha1.Map{"limits": m}
			_, err := gate.Shape(gate.Request{Application: a})
			if c.denied == "" && err != nil || c.denied != "" && (err == nil || !strings.Contains(err.Error(), "shape/maps at "+c.denied+":")) {
				t.Errorf("Shape = %v", err)
			}
		})
	}
}

// TestMoreContentsOfAllMapsThanFitAreDenied: as an API server does, in the same words.
func TestMoreContentsOfAllMapsThanFitAreDenied(t *testing.T) {
	for entries, denied := range map[int]bool{v1alpha1.MaxContents: false, v1alpha1.MaxContents + 1: true} {
		a := app("r.example.com/x:v1", "p", onEth0())
		a.Spec.Maps = map[string]v1alpha1.Map{}
		for i := 0; entries > 0; i++ {
			n := min(entries, v1alpha1.MaxMapEntries)
			a.Spec.Maps[fmt.Sprintf("m%d", i)] = v1alpha1.Map{Contents: slices.Repeat([]v1alpha1.MapEntry{entry("1", "1")}, n)}
			entries -= n
		}
		_, err := gate.Shape(gate.Request{Application: a})
		if denied != (err != nil) || denied && !strings.Contains(err.Error(), "the contents of all maps list more than 6553 entries") {
			t.Errorf("Shape = %v, want a denial: %v", err, denied)
		}
	}
}

// TestContentsAreSealedAndMakeAVersion: whoever changes an entry, or onUpdate, asks nodes for
// another version.
func TestContentsAreSealedAndMakeAVersion(t *testing.T) {
	w := newWorld(t)
	ref, key := w.signed("xdp_contents"), seals.New(t)
	sealed := func(m v1alpha1.Map) (revision string, has v1alpha1.Map) {
		a := app(ref, "xdp_contents", onEth0())
		a.Spec.Maps = map[string]v1alpha1.Map{"which": m}
		v := mustEvaluate(t, w.evaluator(), a)
		envelope, err := v.Seal(key.Sealer, gate.Stamp{UID: "u", Serial: 1})
		if err != nil {
			t.Fatal(err)
		}
		opened, err := key.Trust.Open(envelope)
		if err != nil {
			t.Fatal(err)
		}
		return opened.Revision(), opened.Payload().Maps["which"]
	}
	first := v1alpha1.Map{Contents: []v1alpha1.MapEntry{entry("0", "1")}}
	revision, has := sealed(first)
	if diff := cmp.Diff(first, has); diff != "" {
		t.Error(diff)
	}
	if again, _ := sealed(first); again != revision {
		t.Error("the same contents are another revision")
	}
	for sentence, other := range map[string]v1alpha1.Map{
		"another value":    {Contents: []v1alpha1.MapEntry{entry("0", "2")}},
		"another onUpdate": {Contents: first.Contents, OnUpdate: v1alpha1.MapReset},
		"no contents":      {},
		"another's map":    {From: &v1alpha1.MapSource{Application: "other", Map: "which"}},
	} {
		if got, _ := sealed(other); got == revision {
			t.Errorf("%s is the same revision", sentence)
		}
	}
	// Whom a map is shared with is sealed, and loads nothing anew.
	shared := v1alpha1.Map{Contents: first.Contents, SharedWith: []string{"other"}}
	got, has := sealed(shared)
	if diff := cmp.Diff(shared, has); got != revision || diff != "" {
		t.Errorf("shared, it is revision %s and was %s; (-want +got):\n%s", got, revision, diff)
	}
	// Who reads it is sealed as well.
	granted := v1alpha1.Map{Contents: first.Contents, Export: []v1alpha1.MapExport{{Access: v1alpha1.MapWrite, Groups: []string{"adm"}}}}
	got, has = sealed(granted)
	if diff := cmp.Diff(granted, has); got != revision || diff != "" {
		t.Errorf("granted, it is revision %s and was %s; (-want +got):\n%s", got, revision, diff)
	}
}

// TestANamespaceGrantsToItself: a BpfApplication names no other namespace, and need not name its own.
func TestANamespaceGrantsToItself(t *testing.T) {
	read := func(namespaces ...string) v1alpha1.MapExport {
		return v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: namespaces, ServiceAccounts: []string{"reader"}}
	}
	for sentence, c := range map[string]struct {
		grants []v1alpha1.MapExport
		denied string
	}{
		"it names none":                {[]v1alpha1.MapExport{read()}, ""},
		"it names its own":             {[]v1alpha1.MapExport{read("red")}, ""},
		"it names another":             {[]v1alpha1.MapExport{read("blue")}, "export[0].namespaces: a BpfApplication grants its maps to pods of its own"},
		"it names another one as well": {[]v1alpha1.MapExport{read("red", "blue")}, "export[0].namespaces: a BpfApplication grants"},
		"the last of many grants does": {[]v1alpha1.MapExport{read(), read(), read("blue")}, "export[2].namespaces"},
		"there are as many as may be":  {slices.Repeat([]v1alpha1.MapExport{read()}, v1alpha1.MaxExports), ""},
		"there are more than may be":   {slices.Repeat([]v1alpha1.MapExport{read()}, v1alpha1.MaxExports+1), "export: 5 grants are listed"},
		"one names more than it may":   {[]v1alpha1.MapExport{{Access: "Read", Groups: strings.Fields("a b c d e f g h i")}}, "export[0].groups: 9 are listed"},
		"it names a group of the host": {[]v1alpha1.MapExport{{Access: v1alpha1.MapRead, Groups: []string{"adm"}}}, ""},
		"a group has another line":     {[]v1alpha1.MapExport{{Access: v1alpha1.MapRead, Groups: []string{"adm\n"}}}, "export[0].groups[0]"},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := &v1alpha1.BpfApplication{}
			a.Namespace, a.Name = "red", "app"
			a.Spec = app("r.example.com/x:v1", "p").Spec
			a.Spec.Maps = map[string]v1alpha1.Map{"limits": {Export: c.grants}}
			_, err := gate.Shape(gate.Request{Application: a})
			if c.denied == "" && err != nil || c.denied != "" && (err == nil || !strings.Contains(err.Error(), "shape/maps at spec.maps.limits."+c.denied)) {
				t.Errorf("Shape = %v", err)
			}
		})
	}
}
