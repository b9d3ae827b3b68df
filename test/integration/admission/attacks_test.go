package admission

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// member is a person with the editor's role in the world's namespace and no
// other.
func (w *world) member(name string) client.Client {
	w.t.Helper()
	w.create(admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "skep-application-editor"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})
	w.until(func() error {
		if !may(w.t, name, w.namespace, "create", v1alpha1.Group, "bpfapplications", "") {
			return errors.New("the role is not active")
		}
		return nil
	})
	c, _ := w.as(rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}})
	return c
}

// intent waits until the intent of an application is as wanted.
func (w *world) intent(app client.Object, want func(v1alpha1.BpfIntentSpec) bool) *v1alpha1.BpfIntent {
	w.t.Helper()
	o := &v1alpha1.BpfIntent{}
	w.until(func() error {
		if err := admin.Get(w.t.Context(), client.ObjectKey{Name: string(app.GetUID())}, o); err != nil {
			return err
		}
		if !want(o.Spec) {
			return fmt.Errorf("serial %d, tombstone %v, digest %s", o.Spec.Serial, o.Spec.Tombstone, o.Spec.Digest)
		}
		return nil
	})
	return o
}

// unloaded waits until an application has a tombstone, which may be gone already
// where no node has anything to unload.
func (w *world) unloaded(app client.Object) {
	w.t.Helper()
	w.until(func() error {
		o := &v1alpha1.BpfIntent{}
		err := admin.Get(w.t.Context(), client.ObjectKey{Name: string(app.GetUID())}, o)
		if err == nil && !o.Spec.Tombstone {
			return errors.New("what runs is to go on running")
		}
		return client.IgnoreNotFound(err)
	})
}

// lives is what an intent is as long as it is not to be unloaded.
func lives(s v1alpha1.BpfIntentSpec) bool { return !s.Tombstone }

func TestANameIsStolenByNobody(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	alice, ben := w.member("alice-of-"+w.namespace), other.member("ben-of-"+other.namespace)
	app := w.app("firewall", w.signed())
	w.create(alice, app)
	sealed := w.intent(app, lives)

	theirs := other.app(app.Name, other.signed())
	theirs.UID = app.UID
	other.create(ben, theirs)
	if its := other.intent(theirs, lives); theirs.UID == app.UID || its.Spec.Application.Namespace != other.namespace {
		t.Errorf("the same name in another namespace: uid %s, sealed for %s", theirs.UID, its.Spec.Application)
	}
	whole := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: app.Name}, Spec: *app.Spec.DeepCopy()}
	for name, steal := range map[string]func() error{
		"of the whole cluster": func() error { return ben.Create(t.Context(), whole.DeepCopy()) },
		"in her namespace":     func() error { return ben.Create(t.Context(), w.app("another", app.Spec.Bytecode.Image)) },
		"by changing hers":     func() error { return labelled(t, app)(ben) },
		"by deleting hers":     func() error { return ben.Delete(t.Context(), app.DeepCopy()) },
	} {
		t.Run(name, func(t *testing.T) { forbidden(t, steal(), "ben-of-") })
	}
	// An admin's application of the whole cluster is another one as well.
	w.create(admin, whole)
	w.intent(whole, lives)
	if err := admin.Delete(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	if now := w.intent(app, lives); now.ResourceVersion != sealed.ResourceVersion {
		t.Errorf("her intent was written: serial %d, now %d", sealed.Spec.Serial, now.Spec.Serial)
	}
}

func TestWhoTakesAPlaceIsJudgedAnew(t *testing.T) {
	w := newWorld(t)
	ann := "ann-of-" + w.namespace
	owner, successor := w.member(ann), w.member("zoe-of-"+w.namespace)
	app := w.app("firewall", w.signed())
	w.create(owner, app)
	w.intent(app, lives)
	w.policy("owners", fmt.Sprintf(`deny contains "not yours" if {
	input.application.metadata.name == "firewall"
	input.requester.username != %q
}`, ann))
	again := func() *v1alpha1.BpfApplication {
		o := w.app(app.Name, app.Spec.Bytecode.Image)
		o.Annotations = map[string]string{v1alpha1.AnnotationRequester: fmt.Sprintf(`{"username":%q}`, ann)}
		return o
	}
	// Whoever may write in the namespace may delete; the name does not lend what
	// its first owner was allowed.
	if err := successor.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	w.unloaded(app)
	w.until(func() error {
		err := successor.Create(t.Context(), again(), client.DryRunAll)
		if err == nil {
			return errors.New("the policy is not active")
		}
		return nil
	})
	forbidden(t, successor.Create(t.Context(), again()), "owners/deny", "not yours")
	mine := again()
	w.create(owner, mine)
	if w.intent(mine, lives); mine.UID == app.UID {
		t.Error("it is the same application as before")
	}
}

func TestForgeriesCountForNothing(t *testing.T) {
	w := newWorld(t)
	dora := w.member("dora-of-" + w.namespace)
	w.signed()
	unsigned, digest := w.Push("forged:v1", append(programs.Object("xdp_pass"), w.namespace...))
	unsigned = strings.TrimSuffix(unsigned, ":v1") + "@" + digest
	forged := func(name string) *v1alpha1.BpfApplication {
		app := w.app(name, unsigned)
		app.Spec.Programs[0].Name = "xdp_pass"
		app.Annotations = map[string]string{
			"skep.dev/verified": "true", "skep.dev/signers": w.signer, "skep.dev/confirm": "true", v1alpha1.AnnotationRequester: forgery,
		}
		app.Status.Digest, app.Status.Signers, app.Status.Serial = digest, []string{w.signer}, 1
		for _, kind := range []string{v1alpha1.ConditionVerified, v1alpha1.ConditionAllowed, v1alpha1.ConditionDeployed, v1alpha1.ConditionReady} {
			apimeta.SetStatusCondition(&app.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Forged", Message: "trust me"})
		}
		return app
	}
	// What could not be determined is stored, and shows what the reconcilers make of it.
	w.Down.Store(true)
	app := forged("app")
	if err := dora.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	w.Down.Store(false)
	if slices.ContainsFunc(app.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == "Forged" }) || app.Status.Digest != "" {
		t.Errorf("the status was stored: %+v", app.Status)
	}
	t.Run("in the status", func(t *testing.T) {
		forbidden(t, dora.Status().Update(t.Context(), app.DeepCopy()), "bpfapplications/status", "dora-of-")
		forbidden(t, dora.Status().Patch(t.Context(), app.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"digest":"x"}}`))),
			"dora-of-")
	})
	w.denied(app)

	t.Run("in the status, by who may", func(t *testing.T) {
		lie := app.DeepCopy()
		lie.Status = forged("app").Status
		if err := admin.Status().Patch(t.Context(), lie, client.MergeFrom(app)); err != nil {
			t.Fatal(err)
		}
		before := lie.DeepCopy()
		lie.Labels = map[string]string{"looked": "at"}
		if err := dora.Patch(t.Context(), lie, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		w.denied(lie)
	})
	t.Run("at the door", func(t *testing.T) {
		forbidden(t, dora.Create(t.Context(), forged("another")), "baseline/signed")
	})
	if err := admin.Get(t.Context(), client.ObjectKey{Name: string(app.UID)}, &v1alpha1.BpfIntent{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is sealed: %v", err)
	}
}

// request asks for what an application's tag stands for now.
func (w *world) request(by client.Client, app *v1alpha1.BpfApplication) error {
	now := app.DeepCopy()
	if now.Annotations == nil {
		now.Annotations = map[string]string{}
	}
	now.Annotations[meta.ReconcileRequestAnnotation] += "again"
	return by.Patch(w.t.Context(), now, client.MergeFrom(app))
}

// denied waits until the reconcilers have said of an application, as it is now,
// that it is denied.
func (w *world) denied(app *v1alpha1.BpfApplication) {
	w.t.Helper()
	w.until(func() error {
		if err := admin.Get(w.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		allowed := apimeta.FindStatusCondition(app.Status.Conditions, v1alpha1.ConditionAllowed)
		if allowed == nil || allowed.Reason != "Denied" || apimeta.IsStatusConditionTrue(app.Status.Conditions, v1alpha1.ConditionReady) ||
			app.Status.LastHandledReconcileAt != app.Annotations[meta.ReconcileRequestAnnotation] {
			return fmt.Errorf("status is %+v", app.Status)
		}
		return nil
	})
}

// TestAForgedImageMakesNothingSigned has the controller's own account stolen: what
// it remembers of images is verified like what a registry says.
func TestAForgedImageMakesNothingSigned(t *testing.T) {
	w := newWorld(t)
	config, err := serviceAccount(t.Context(), "skep-controller", nil)
	if err != nil {
		t.Fatal(err)
	}
	thief, eve := w.client(config), w.member("eve-of-"+w.namespace)
	app := w.app("app", w.signed())
	w.create(eve, app)
	w.intent(app, lives)
	_, digest, _ := strings.Cut(app.Spec.Bytecode.Image, "@")
	known := &v1alpha1.BpfImage{}
	w.until(func() error {
		if err := admin.Get(t.Context(), client.ObjectKey{Name: strings.Replace(digest, ":", "-", 1)}, known); err != nil {
			return err
		}
		if len(known.Spec.Memory) == 0 {
			return errors.New("nothing is remembered")
		}
		return nil
	})
	for name, forge := range map[string]func(memory []byte, digest string) []byte{
		"copied":                 func(memory []byte, _ string) []byte { return memory },
		"copied and relabelled":  func(memory []byte, now string) []byte { return bytes.ReplaceAll(memory, []byte(digest), []byte(now)) },
		"not what it looks like": func([]byte, string) []byte { return []byte("{}") },
	} {
		t.Run(name, func(t *testing.T) {
			ref, fake := w.Push("fake:v1", slices.Concat(programs.Object("xdp_count"), []byte(w.namespace+name)))
			image := &v1alpha1.BpfImage{ObjectMeta: metav1.ObjectMeta{Name: strings.Replace(fake, ":", "-", 1)}, Spec: *known.Spec.DeepCopy()}
			for key, packed := range maps.All(image.Spec.Memory) {
				image.Spec.Memory[key] = pack(t, forge(unpack(t, packed), fake))
			}
			w.create(thief, image)
			fakeApp := w.app("fake", strings.TrimSuffix(ref, ":v1")+"@"+fake)
			forbidden(t, eve.Create(t.Context(), fakeApp), "baseline/signed")
		})
	}
}

func pack(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(t *testing.T, packed []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestATagThatMovesIsNotFollowedUnasked(t *testing.T) {
	w := newWorld(t)
	finn := w.member("finn-of-" + w.namespace)
	w.signed()
	object := func(which string) []byte {
		return slices.Concat(programs.Object("xdp_count"), []byte(w.namespace+which))
	}
	tag, first := w.Push("moving:v1", object("first"), w.signer)
	app := w.app("app", tag)
	w.create(finn, app)
	is := func(digest string) func(v1alpha1.BpfIntentSpec) bool {
		return func(s v1alpha1.BpfIntentSpec) bool { return !s.Tombstone && s.Digest == digest }
	}
	w.intent(app, is(first))

	w.Push("moving:v1", object("second"))
	before := app.DeepCopy()
	app.Labels = map[string]string{"looked": "at"}
	if err := finn.Patch(t.Context(), app, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	// The label is in what was evaluated, so a new policy that reads it tells when.
	w.policy("looked", `deny contains "seen" if input.application.metadata.labels.looked == "at"`)
	w.denied(app)
	w.intent(app, is(first))
	if app.Status.Digest != first {
		t.Errorf("the status says %s, want %s", app.Status.Digest, first)
	}
	if err := admin.Delete(t.Context(), &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "looked"}}); err != nil {
		t.Fatal(err)
	}
	w.until(func() error {
		if err := w.request(client.NewDryRunClient(finn), app); err == nil || strings.Contains(err.Error(), "looked") {
			return fmt.Errorf("the policy is still active: %w", err)
		}
		return nil
	})

	// Whoever asks for what the tag stands for now is told what is wrong with it.
	forbidden(t, w.request(finn, app), "baseline/signed")
	w.intent(app, is(first))
	_, third := w.Push("moving:v1", object("third"), w.signer)
	if err := w.request(finn, app); err != nil {
		t.Fatal(err)
	}
	w.intent(app, is(third))

	t.Run("a change by a user is evaluated by what the tag stands for then", func(t *testing.T) {
		w.Push("moving:v1", object("fourth"))
		before := app.DeepCopy()
		app.Spec.Programs[0].Attach[0].Interfaces.Names[0] = "eth1"
		forbidden(t, finn.Patch(t.Context(), app, client.MergeFrom(before)), "baseline/signed")
		w.intent(app, is(third))
	})
}
