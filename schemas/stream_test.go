package schemas_test

import (
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

func TestStreamIsReadWithinTheBoundOfAFile(t *testing.T) {
	const one = "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: one}\n" +
		"spec: {bytecode: {image: \"r.example.com/x:v1\"}, programs: [{name: f}]}\n"
	other := "---\nkind: Other\nspec: {a: b}\n---\n" + one
	defs, err := schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(other)})
	if err != nil || len(defs.Problems) > 0 || len(defs.Applications) != 1 {
		t.Fatalf("a stream: %+v, %v; want one application", defs, err)
	}
	if at := defs.Applications[0].Source.String(); at != "stdin:5:1" {
		t.Errorf("it is at %s, want stdin:5:1", at)
	}
	defs, err = schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(one + strings.Repeat("#", 4<<20))})
	if err != nil || len(defs.Problems) != 1 || len(defs.Applications) > 0 || !strings.Contains(defs.Problems[0].Message, "larger than 4 MiB") {
		t.Errorf("a stream over the bound: %+v, %v; want one problem", defs, err)
	}
}

// TestStreamIsReadAsClientsSendIt has lists of any kind, documents of comments alone, directives,
// and what only an API server writes, of which nothing is left.
func TestStreamIsReadAsClientsSendIt(t *testing.T) {
	const spec = "spec: {bytecode: {image: \"r.example.com/x:v1\"}, programs: [{name: f}]}"
	stream := "# of kustomize\n---\n# nothing\n---\n" +
		"apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems:\n" +
		"- {apiVersion: skep.dev/v1alpha1, kind: ClusterBpfApplication, metadata: {name: one, namespace: team, uid: u, annotations: }, " +
		spec + ", status: {digest: d}}\n" +
		"---\n%YAML 1.1\n---\n" +
		"apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplicationList\nmetadata: {continue: \"\"}\nitems:\n" +
		"- {apiVersion: skep.dev/v1alpha1, kind: ClusterBpfApplication, metadata: {name: two, creationTimestamp: null}, " + spec + "}\n" +
		"---\napiVersion: skep.dev/v1alpha1\nkind: BpfSigner\nmetadata: {name: s, namespace: team}\nspec: {key: {publicKey: k}, revoked: yes}\n" +
		"---\n# the end\n...\n"
	defs, err := schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(stream)})
	if err != nil || len(defs.Problems) > 0 || len(defs.Applications) != 2 || len(defs.Signers) != 1 {
		t.Fatalf("%+v, %v; want two applications and a signer", defs, err)
	}
	if !defs.Signers[0].Spec.Revoked || defs.Signers[0].Namespace != "" {
		t.Errorf("the signer is %+v, want one that is revoked and of no namespace", defs.Signers[0])
	}
	one, ok := defs.Applications[0].Application.(*v1alpha1.ClusterBpfApplication)
	if want := (metav1.ObjectMeta{Name: "one"}); !ok || !reflect.DeepEqual(one.ObjectMeta, want) || one.Status.Digest != "" {
		t.Errorf("it is %+v, want the metadata %+v and no status", defs.Applications[0].Application, want)
	}
}

// TestWhatAnAPIServerDoesNotTakeIsAProblem is about what no schema says.
func TestWhatAnAPIServerDoesNotTakeIsAProblem(t *testing.T) {
	const head = "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\n"
	const spec = "spec: {bytecode: {image: \"r.example.com/x:v1\"}, programs: [{name: f}]}\n"
	for why, doc := range map[string]string{
		"no field of a status":    head + "metadata: {name: a}\n" + spec + "status: {foo: 1}\n",
		"annotations too long":    head + "metadata: {name: a, annotations: {a: " + strings.Repeat("x", 256<<10) + "}}\n" + spec,
		"an item without a kind":  "apiVersion: skep.dev/v1alpha1\nkind: BpfPolicyList\nitems: [{metadata: {name: a}, spec: {profile: baseline}}]\n",
		"a list that has no list": "apiVersion: skep.dev/v1alpha1\nkind: BpfPolicyList\nitems: {}\n",
		"a null spec":             head + "metadata: {name: a}\nspec:\n",
	} {
		defs, err := schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(doc)})
		if err != nil || len(defs.Problems) == 0 || len(defs.Applications)+len(defs.Policies) > 0 {
			t.Errorf("%s: %+v, %v; want a problem", why, defs, err)
		}
	}
}
