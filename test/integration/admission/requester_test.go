package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/application"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

const forgery = `{"username":"admin","groups":["system:masters"]}`

// TestTheRequesterIsRecorded holds the policy of newer clusters and the webhook
// of older ones to the same.
func TestTheRequesterIsRecorded(t *testing.T) {
	if here.Versions == nil {
		t.Run("by a webhook", requesters)
		t.Skip("SKIPPED: this API server has no MutatingAdmissionPolicy")
	}
	t.Run("by a policy", requesters)
	all := func(do func(client.Object) error, objects []*unstructured.Unstructured, recorded bool) {
		t.Helper()
		for _, o := range objects {
			if err := do(o); err != nil {
				t.Fatal(err)
			}
		}
		if err := until(t.Context(), func() error { return requesterRecorded(t.Context(), recorded) }); err != nil {
			t.Fatal(err)
		}
	}
	create := func(o client.Object) error { return admin.Create(t.Context(), o) }
	remove := func(o client.Object) error { return admin.Delete(t.Context(), o) }
	hook := slices.DeleteFunc(render("webhook.yaml", older), func(o *unstructured.Unstructured) bool { return o.GetKind() != "MutatingWebhookConfiguration" })
	stands := standing(t)
	all(remove, render("requester.yaml", newest), false)
	t.Run("and believed by nobody while none is there", stands)
	all(create, hook, true)
	t.Run("by a webhook", requesters)
	all(remove, hook, false)
	all(create, render("requester.yaml", newest), true)
}

// standing makes an application, and returns what may be done to it while nobody
// records who asks.
func standing(t *testing.T) func(*testing.T) {
	w := newWorld(t)
	ann, _ := w.user("ann", "skep-application-editor")
	ben, _ := w.user("ben", "skep-application-editor")
	app := w.app("app", w.signed())
	w.create(ann, app)
	return func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(*v1alpha1.BpfApplication)
			taken  bool
		}{
			"a label":                   {func(a *v1alpha1.BpfApplication) { a.Labels = map[string]string{"a": "b"} }, true},
			"to suspend it":             {func(a *v1alpha1.BpfApplication) { a.Spec.Suspend = true }, true},
			"a forgery":                 {func(a *v1alpha1.BpfApplication) { a.Annotations[v1alpha1.AnnotationRequester] = forgery }, false},
			"no record":                 {func(a *v1alpha1.BpfApplication) { a.Annotations = nil }, false},
			"a spec by another":         {func(a *v1alpha1.BpfApplication) { a.Spec.Programs[0].Attach[0].Interfaces.Names[0] = "eth1" }, false},
			"what steers it by another": {func(a *v1alpha1.BpfApplication) { a.Annotations[gate.AnnotationRequestedAt] = "1" }, false},
		} {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				t.Fatal(err)
			}
			changed := app.DeepCopy()
			c.change(changed)
			if err := ben.Patch(t.Context(), changed, client.MergeFrom(app), client.DryRunAll); c.taken != (err == nil) {
				t.Errorf("%s: %v", name, err)
			} else if err != nil {
				forbidden(t, err, "admission/requester", "skep-requester")
			}
		}
	}
}

func requesters(t *testing.T) {
	t.Run("and forged by nobody", forgeries)
	t.Run("of what steers as well", steering)
	t.Run("of numbers that no float holds", numbers)
	t.Run("without drift", drift)
	t.Run("within bounds", bounds)
}

// asked is who an application says asked for it.
func (w *world) asked(app *v1alpha1.BpfApplication) string {
	w.t.Helper()
	if err := admin.Get(w.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
		w.t.Fatal(err)
	}
	return application.Requester(app).Username
}

func forgeries(t *testing.T) {
	w := newWorld(t)
	ann, _ := w.user("ann", "skep-application-editor")
	ben, _ := w.user("ben", "skep-application-editor")
	app := w.app("app", w.signed())
	app.Annotations = map[string]string{v1alpha1.AnnotationRequester: forgery, "mine": "yes"}
	w.create(ann, app)
	want := policies.Requester{Username: "ann", Groups: []string{"system:authenticated", "group-of-ann"}}
	if diff := cmp.Diff(want, application.Requester(app)); diff != "" || app.Annotations["mine"] != "yes" {
		t.Fatalf("requester (-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		name   string
		change func(*v1alpha1.BpfApplication)
		want   string
	}{
		{"another's label does not change it", func(a *v1alpha1.BpfApplication) { a.Labels = map[string]string{"a": "b"} }, "ann"},
		{"nor does another's forgery", func(a *v1alpha1.BpfApplication) { a.Annotations[v1alpha1.AnnotationRequester] = forgery }, "ann"},
		{"nor its removal, with all annotations", func(a *v1alpha1.BpfApplication) { a.Annotations = nil }, "ann"},
		{"another's spec does", func(a *v1alpha1.BpfApplication) { a.Spec.Programs[0].Attach[0].Interfaces.Names[0] = "eth1" }, "ben"},
		{"and so does a spec with a forgery", func(a *v1alpha1.BpfApplication) {
			a.Spec.Suspend = true
			a.Annotations[v1alpha1.AnnotationRequester] = forgery
		}, "ben"},
	} {
		w.asked(app)
		before := app.DeepCopy()
		step.change(app)
		if err := ben.Patch(t.Context(), app, client.MergeFrom(before)); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := w.asked(app); got != step.want {
			t.Errorf("%s: requester is %q, want %q", step.name, got, step.want)
		}
	}
	// What the controller wrote meanwhile is status, and its requester nobody's.
	if strings.Contains(app.Annotations[v1alpha1.AnnotationRequester], "serviceaccount") {
		t.Errorf("requester is %s", app.Annotations[v1alpha1.AnnotationRequester])
	}
}

// numbers changes a variable by so little that a float would not tell. No registry
// can say whether there is one.
func numbers(t *testing.T) {
	w := newWorld(t)
	ann, _ := w.user("ann", "skep-application-editor")
	ben, _ := w.user("ben", "skep-application-editor")
	app := w.app("app", "127.0.0.1:1/none:v1")
	for _, step := range []struct {
		by   client.Client
		seed string
		want string
	}{{ann, "9007199254740993", "ann"}, {ben, "9007199254740992", "ben"}, {ann, "9007199254740993", "ann"}} {
		before := app.DeepCopy()
		app.Spec.Variables = map[string]apiextensionsv1.JSON{"seed": {Raw: []byte(step.seed)}}
		if before.UID == "" {
			w.create(step.by, app)
		} else if err := step.by.Patch(t.Context(), app, client.MergeFrom(before)); err != nil {
			t.Fatalf("%s: %v", step.seed, err)
		}
		if got := w.asked(app); got != step.want {
			t.Errorf("%s: requester is %q, want %q", step.seed, got, step.want)
		}
		if got := string(app.Spec.Variables["seed"].Raw); got != step.seed {
			t.Errorf("%s was stored as %s", step.seed, got)
		}
	}
}

// steering changes what runs without a change of the spec.
func steering(t *testing.T) {
	w := newWorld(t)
	ann, _ := w.user("ann", "skep-application-editor")
	ben, _ := w.user("ben", "skep-application-editor")
	for i, annotation := range []string{gate.AnnotationRequestedAt, v1alpha1.AnnotationResume, v1alpha1.AnnotationUndo} {
		app := w.app(fmt.Sprintf("app-%d", i), w.signed())
		w.create(ann, app)
		for _, step := range []struct {
			name   string
			by     client.Client
			change func(map[string]string)
			want   string
		}{
			{"set", ben, func(a map[string]string) { a[annotation] = "1" }, "ben"},
			{"left as it is", ann, func(a map[string]string) { a["mine"] = "yes" }, "ben"},
			{"removed", ann, func(a map[string]string) { delete(a, annotation) }, "ann"},
			{"set with a forgery", ben, func(a map[string]string) { a[annotation], a[v1alpha1.AnnotationRequester] = "2", forgery }, "ben"},
		} {
			w.asked(app)
			before := app.DeepCopy()
			step.change(app.Annotations)
			if err := step.by.Patch(t.Context(), app, client.MergeFrom(before)); err != nil {
				t.Fatalf("%s is %s: %v", annotation, step.name, err)
			}
			if got := w.asked(app); got != step.want {
				t.Errorf("%s is %s: requester is %q, want %q", annotation, step.name, got, step.want)
			}
		}
	}
}

// drift applies one object again and again, as Flux does, and as another tool
// does that writes the annotation itself.
func drift(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"without the annotation": nil,
		"with a forged one":      {v1alpha1.AnnotationRequester: forgery},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			flux, _ := w.user("system:serviceaccount:apps:team", "skep-application-editor")
			other, _ := w.user("zoe", "skep-application-editor")
			app := w.app("app", w.signed())
			app.APIVersion, app.Kind, app.Annotations = v1alpha1.APIVersion, v1alpha1.KindBpfApplication, annotations
			content, err := json.Marshal(app)
			if err != nil {
				t.Fatal(err)
			}
			apply := func(c client.Client, force ...client.ApplyOption) *unstructured.Unstructured {
				t.Helper()
				o := &unstructured.Unstructured{}
				if err := json.Unmarshal(content, &o.Object); err != nil {
					t.Fatal(err)
				}
				unstructured.RemoveNestedField(o.Object, "status")
				unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
				if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), append(force, client.FieldOwner("kustomize-controller"))...); err != nil {
					t.Fatal(err)
				}
				return o
			}
			first := apply(flux)
			text := first.GetAnnotations()[v1alpha1.AnnotationRequester]
			if !strings.Contains(text, "system:serviceaccount:apps:team") {
				t.Fatalf("requester is %q", text)
			}
			for range 3 {
				for _, c := range []client.Client{flux, other} {
					again := apply(c, client.ForceOwnership)
					if again.GetGeneration() != first.GetGeneration() || again.GetAnnotations()[v1alpha1.AnnotationRequester] != text {
						t.Fatalf("applied again: generation %d, requester %q", again.GetGeneration(), again.GetAnnotations()[v1alpha1.AnnotationRequester])
					}
					if diff := cmp.Diff(owners(first), owners(again)); diff != "" {
						t.Fatalf("applying again moved fields between owners:\n%s", diff)
					}
				}
			}
		})
	}
}

// owners are who owns which fields of an object, status apart.
func owners(o *unstructured.Unstructured) map[string]string {
	owned := map[string]string{}
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "" {
			owned[f.Manager+" "+string(f.Operation)] = string(f.FieldsV1.GetRawBytes())
		}
	}
	return owned
}

func bounds(t *testing.T) {
	w := newWorld(t)
	var groups []string
	for i := range 100 {
		groups = append(groups, fmt.Sprintf("g%02d", i))
	}
	const all = "system:masters"
	image := w.signed()
	for name, c := range map[string]struct {
		user   string
		groups []string
		want   policies.Requester
	}{
		"of a hundred groups 64 are kept": {
			"many", append([]string{all}, groups...), policies.Requester{Username: "many", Groups: append([]string{all}, groups[:63]...)}},
		"what needs escaping is kept whole": {
			`a"b\c`, []string{all, `quote"d`, `back\slash`}, policies.Requester{Username: `a"b\c`, Groups: []string{all, `quote"d`, `back\slash`}}},
		"what is too long is left out": {
			strings.Repeat("u", 1025), []string{strings.Repeat("l", 257), all}, policies.Requester{Groups: []string{all}}},
	} {
		t.Run(name, func(t *testing.T) {
			user, _ := w.as(rest.ImpersonationConfig{UserName: c.user, Groups: c.groups})
			app := w.app("app", image)
			if err := user.Create(t.Context(), app, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			got := application.Requester(app)
			// The API server adds one to whoever is impersonated.
			got.Groups = slices.DeleteFunc(got.Groups, func(g string) bool { return g == "system:authenticated" })
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("requester (-want +got):\n%s", diff)
			}
		})
	}
}
