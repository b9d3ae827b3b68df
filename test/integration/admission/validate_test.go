package admission

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// forbidden fails the test unless err is 403 and says each of the words.
func forbidden(t *testing.T, err error, words ...string) {
	t.Helper()
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != http.StatusForbidden || status.Status().Reason != metav1.StatusReasonForbidden {
		t.Fatalf("not forbidden: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in: %v", w, err)
		}
	}
}

// denies waits until a policy of the namespace is active: a dry run is denied.
func (w *world) denies(app *v1alpha1.BpfApplication, words string) {
	w.t.Helper()
	w.until(func() error {
		err := admin.Create(w.t.Context(), app.DeepCopy(), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("%q is not active: %w", words, err)
		}
		return nil
	})
}

const noMonday = `deny contains {"msg": "no counting on mondays", "path": "spec.programs", "fix": ` +
	`"come back on tuesday"} if input.application.metadata.name != "spared"`

func TestADenialNamesRuleReasonAndFix(t *testing.T) {
	w := newWorld(t)
	alice, _ := w.user("alice", "skep-application-editor")
	ref, _ := w.Push("pass:v1", programs.Object("xdp_pass"))
	unsigned := w.app("app", ref)
	unsigned.Spec.Programs[0].Name = "xdp_pass"
	forbidden(t, alice.Create(t.Context(), unsigned), "BpfApplication "+w.namespace+"/app", "baseline/signed at spec.bytecode.image: no known signer", "(")
	image := w.signed()
	misspelt := w.app("app", image)
	misspelt.Spec.Programs[0].Name = "count_pakets"
	forbidden(t, alice.Create(t.Context(), misspelt), "inspect/program at spec.programs[0].name", "count_packets")

	w.policy("mondays", noMonday)
	app := w.app("app", image)
	w.denies(app, "mondays")
	forbidden(t, alice.Create(t.Context(), app), w.namespace+"/mondays/deny at spec.programs: no counting on mondays (come back on tuesday)")
	if err := alice.Create(t.Context(), w.app("spared", image)); err != nil {
		t.Error(err)
	}
}

// TestWhatNoKernelLoadsIsDeniedBeforeANodeTries, by the facts of the object: docs/impossible.md.
func TestWhatNoKernelLoadsIsDeniedBeforeANodeTries(t *testing.T) {
	w := newWorld(t)
	w.signed()
	image, _ := w.Push("never:v1", programs.Object("tcx_never"), w.signer)
	app := w.app("app", image)
	app.Spec.Programs[0].Name, app.Spec.Programs[0].Attach[0].Hook = "adjusted", "tcx/ingress"
	forbidden(t, admin.Create(t.Context(), app), "inspect/kernel",
		"no kernel loads program adjusted: it calls bpf_xdp_adjust_head, which programs of type XDP alone have")
}

// TestANamespaceReachesNoPodOfANode: the API server rejects a namespace's hook
// on a cgroup by the CRD, and the webhook one that only the object names.
func TestANamespaceReachesNoPodOfANode(t *testing.T) {
	w := newWorld(t)
	alice, _ := w.user("alice", "skep-application-editor")
	app := w.app("app", "")
	app.Spec.Bytecode.Image, _ = w.Push("connect:v1", programs.Object("cgroup_connect4"), w.signer)
	app.Spec.Programs = []v1alpha1.Program{{Name: "cgroup_connect4", Attach: []v1alpha1.Attachment{{Hook: "cgroup/connect4", Cgroup: "/"}}}}
	err := alice.Create(t.Context(), app.DeepCopy())
	if !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "reaches beyond a namespace without pods: give pods, such as {} for all Pods of the namespace, "+
			"or use a ClusterBpfApplication") {
		t.Errorf("named in the definition: %v", err)
	}
	app.Spec.Programs[0].Attach[0].Hook = ""
	forbidden(t, alice.Create(t.Context(), app), "BpfApplication "+w.namespace+"/app", "shape/scope at spec.programs[0].attach[0].pods",
		"reaches beyond a namespace without pods", "give pods, such as {} for all Pods of the namespace, or use a ClusterBpfApplication)")
}

func TestPoliciesThatWarn(t *testing.T) {
	w := newWorld(t)
	bob, said := w.user("bob", "skep-application-editor")
	w.policy("soft", `deny contains {"msg": "late", "path": "spec", "fix": "be early"} if true`, func(s *v1alpha1.BpfPolicySpec) {
		s.Admission = v1alpha1.AdmissionWarn
	})
	w.policy("talker", `warn contains sprintf("%d é\n\u001b[31m %s", [i, long]) if {
	some i in numbers.range(1, 40)
	long := concat(" ", [sprintf("%d", [n]) | some n in numbers.range(1, 400)])
}`)
	app := w.app("app", w.signed())
	w.until(func() error {
		if err := bob.Create(t.Context(), app.DeepCopy(), client.DryRunAll); err != nil {
			return err
		}
		if all := strings.Join(said.all(), "\n"); !strings.Contains(all, "soft/deny") || !strings.Contains(all, "talker/warn") {
			return fmt.Errorf("heard %q", all)
		}
		return nil
	})
	fresh, said := w.user("bob")
	if err := fresh.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	heard := said.all()
	if want := "denied, and not loaded: " + w.namespace + "/soft/deny at spec: late (be early)"; len(heard) == 0 || heard[0] != want {
		t.Errorf("heard %q, want first %q", heard, want)
	}
	if n := len(heard); n != 8 || !strings.Contains(heard[n-1], "more") {
		t.Errorf("heard %d warnings: %q", n, heard)
	}
	for _, text := range heard {
		if utf8.RuneCountInString(text) > 256 || strings.ContainsAny(text, "\n\x1b") {
			t.Errorf("a warning that is too long, or not printable: %q", text)
		}
	}
}

func TestPoliciesAndSignersAreReadAtOnce(t *testing.T) {
	w := newWorld(t)
	rego := func(text string) *v1alpha1.ClusterBpfPolicy {
		p := &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "typo"}}
		p.Spec.Rego = "package skep.policy\n\n" + text
		return p
	}
	namespaced := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "typo"}, Spec: rego("deny contains").Spec.BpfPolicySpec}
	signer := w.Signer("garbled")
	signer.Spec.Key.PublicKey = "-----BEGIN PUBLIC KEY-----\nnone\n-----END PUBLIC KEY-----\n"
	carol, _ := w.user("carol", "skep-policy-admin")
	for name, c := range map[string]struct {
		object client.Object
		says   []string
	}{
		"a misspelt field shows its line and column": {rego("deny contains \"x\" if input.aplication"), []string{
			"ClusterBpfPolicy typo", "typo.rego:3:22", "aplication",
		}},
		"a half rule shows its line": {namespaced, []string{w.namespace + "/typo.rego:3:"}},
		"a key that is none":         {signer, []string{"BpfSigner garbled"}},
	} {
		t.Run(name, func(t *testing.T) {
			forbidden(t, carol.Create(t.Context(), c.object), c.says...)
		})
	}
	if err := carol.Create(t.Context(), rego(`deny contains "x" if false`), client.DryRunAll); err != nil {
		t.Errorf("a policy without a fault: %v", err)
	}
}

// TestWhoSwitchesBaselineOffIsWarned: a policy that is added is not warned of, and one
// that replaces baseline is, or is rejected where it may not.
func TestWhoSwitchesBaselineOffIsWarned(t *testing.T) {
	w := newWorld(t)
	erin, said := w.user("erin", "skep-policy-admin")
	own := func(change func(*v1alpha1.ClusterBpfPolicySpec)) *v1alpha1.ClusterBpfPolicy {
		p := &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
		// What is active for others in this cluster, it is for nobody.
		p.Spec.Rego, p.Spec.Match = "package skep.policy\n\ndeny contains \"x\" if false", &v1alpha1.PolicyMatch{Namespaces: []string{"nobody-*"}}
		change(&p.Spec)
		return p
	}
	replaces := func(s *v1alpha1.ClusterBpfPolicySpec) {
		s.Replaces = []v1alpha1.BuiltinPolicy{v1alpha1.PolicyBaseline}
	}
	for name, c := range map[string]struct {
		policy *v1alpha1.ClusterBpfPolicy
		hears  string
	}{
		"it is added":          {own(func(*v1alpha1.ClusterBpfPolicySpec) {}), ""},
		"it replaces baseline": {own(replaces), "policy own replaces baseline in namespaces nobody-*: "},
		"it seems to configure": {func() *v1alpha1.ClusterBpfPolicy {
			p := own(func(*v1alpha1.ClusterBpfPolicySpec) {})
			p.Name = "baseline"
			return p
		}(), "a policy called baseline sets the parameters"},
	} {
		before := len(said.all())
		if err := erin.Create(t.Context(), c.policy, client.DryRunAll); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if heard := strings.Join(said.all()[before:], "\n"); !strings.HasPrefix(heard, c.hears) || c.hears == "" && heard != "" {
			t.Errorf("%s: heard %q, want %q", name, heard, c.hears)
		}
	}
	for name, change := range map[string]func(*v1alpha1.ClusterBpfPolicySpec){
		"a policy in mode Audit replaces nothing":       func(s *v1alpha1.ClusterBpfPolicySpec) { s.Mode = v1alpha1.PolicyAudit },
		"a policy with match.selector replaces nothing": func(s *v1alpha1.ClusterBpfPolicySpec) { s.Match.Selector = &metav1.LabelSelector{} },
		`Unsupported value: "restricted"`:               func(s *v1alpha1.ClusterBpfPolicySpec) { s.Replaces[0] = "restricted" },
	} {
		p := own(replaces)
		change(&p.Spec)
		if err := erin.Create(t.Context(), p, client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhatAPolicyInAuditModeDeniesIsRecorded: nobody is rejected, nor warned, and the audit
// log, the application's condition and the metrics say what would be rejected.
func TestWhatAPolicyInAuditModeDeniesIsRecorded(t *testing.T) {
	w := newWorld(t)
	alice, said := w.user("alice", "skep-application-editor")
	image := w.signed()
	const rego = `deny contains "no network here" if input.application.spec.programs[_].attach[_].hook == "xdp"

warn contains "it counts" if input.application.metadata.name == "recorded"`
	policy := w.policy("quiet", rego)
	app := w.app(recorded, image)
	w.denies(app, "quiet/deny")
	was := policy.DeepCopy()
	policy.Spec.Mode = v1alpha1.PolicyAudit
	if err := admin.Patch(t.Context(), policy, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	// One replica may deny still, and warns then.
	quietly := func(write func() error) {
		var heard []string
		w.until(func() error {
			before := len(said.all())
			err := write()
			heard = said.all()[before:]
			return err
		})
		if len(heard) != 0 {
			t.Errorf("heard %q", heard)
		}
	}
	quietly(func() error { return alice.Create(t.Context(), app) })
	before := app.DeepCopy()
	app.Spec.Programs[0].Attach[0].Priority = new(int32(600))
	quietly(func() error { return alice.Patch(t.Context(), app, client.MergeFrom(before)) })
	rule := w.namespace + "/quiet/deny"
	log, err := os.ReadFile(filepath.Join(folder, "audit.log"))
	if want := `"validate.skep.dev/denials":"[\"` + rule + `\"]"`; err != nil || !strings.Contains(string(log), want) {
		t.Errorf("%v, no %s in the audit log:\n%s", err, want, log)
	}
	w.until(func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		allowed := apimeta.FindStatusCondition(app.Status.Conditions, v1alpha1.ConditionAllowed)
		if allowed == nil || allowed.Status != metav1.ConditionTrue ||
			!strings.Contains(allowed.Message, "; in mode Audit, which denies nothing: "+rule+": no network here (") {
			return fmt.Errorf("its condition is %v", allowed)
		}
		return nil
	})
	w.until(func() error {
		if n := pair.sum(t, `skep_audited_denials{rule="`+rule+`"}`); n != 1 {
			return fmt.Errorf("%v are counted", n)
		}
		return nil
	})
}

func TestASlowRegistryStopsNobody(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	dora, said := w.user("dora", "skep-application-editor")
	began := time.Now()
	app := w.app("app", strings.TrimPrefix(hangs.URL, "http://")+"/bpf/count@sha256:"+strings.Repeat("ab", 32))
	if err := dora.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < budget/2 {
		t.Errorf("took %s, with a budget of %s", took, budget)
	}
	if heard := said.all(); len(heard) != 1 ||
		!strings.Contains(heard[0], "BpfApplication "+w.namespace+"/app is not verified yet, and nothing is loaded until it is") {
		t.Errorf("heard %q", heard)
	}
	var intents v1alpha1.BpfIntentList
	if err := admin.List(t.Context(), &intents); err != nil {
		t.Fatal(err)
	}
	for _, i := range intents.Items {
		if i.Spec.Application == app.Identity() {
			t.Error("something is sealed")
		}
	}
	// What is wrong in itself is told at once all the same.
	app = w.app("wrong", app.Spec.Bytecode.Image)
	app.Spec.Programs[0].Attach[0].Interfaces.Names[0] = "eth["
	forbidden(t, dora.Create(t.Context(), app), "shape/fields")
}

// TestADefinitionIsDeniedWithoutItsRegistry has a policy list registries, and each that
// an application names be away.
func TestADefinitionIsDeniedWithoutItsRegistry(t *testing.T) {
	w := newWorld(t)
	hugo, said := w.user("hugo-of-"+w.namespace, "skep-application-editor")
	w.signed()
	w.Down.Store(true)
	w.policy("listed",
		`deny contains {
	"rule": "registry", "path": "spec.bytecode.image",
	"msg": sprintf("%s is not listed", [input.image.registry]), "fix": "take a listed one",
} if {
	input.image.registry != "127.0.0.1:1"
}

deny contains "nobody signed it" if count(input.signatures) == 0`)
	unlisted := w.app("unlisted", "127.0.0.1:2/bpf/count:v1")
	w.denies(unlisted, "listed/registry")
	before := len(said.all())
	err := hugo.Create(t.Context(), unlisted)
	forbidden(t, err, w.namespace+"/listed/registry at spec.bytecode.image: 127.0.0.1:2 is not listed (take a listed one)")
	if strings.Contains(err.Error(), "signed") {
		t.Errorf("what nobody knows is a reason: %v", err)
	}
	if heard := strings.Join(said.all()[before:], "\n"); !strings.Contains(heard, "only the definition was evaluated") {
		t.Errorf("heard %q", heard)
	}
	before = len(said.all())
	if err := hugo.Create(t.Context(), w.app("listed", "127.0.0.1:1/bpf/count:v1")); err != nil {
		t.Errorf("nothing is known against it: %v", err)
	}
	if heard := strings.Join(said.all()[before:], "\n"); !strings.Contains(heard, "is not verified yet") {
		t.Errorf("heard %q", heard)
	}
}

func TestHugeObjectsAreRefused(t *testing.T) {
	w := newWorld(t)
	kim, app := w.member("kim-of-"+w.namespace), w.app("app", w.signed())
	for name, c := range map[string]struct {
		size int
		code int32
	}{
		"beyond what an intent holds": {600 << 10, http.StatusForbidden},
		"10 MiB":                      {10 << 20, http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			big := app.DeepCopy()
			big.Labels = map[string]string{}
			for i := range c.size / 100 {
				big.Labels[fmt.Sprintf("k%d", i)] = strings.Repeat("v", 63)
			}
			err := kim.Create(t.Context(), big)
			status, ok := err.(apierrors.APIStatus)
			if !ok || status.Status().Code != c.code {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("labels that come later", func(t *testing.T) {
		if err := kim.Create(t.Context(), app); err != nil {
			t.Fatal(err)
		}
		filled := map[string]string{}
		for i := range 12000 {
			filled[fmt.Sprintf("k%d", i)] = strings.Repeat("v", 63)
		}
		before := app.DeepCopy()
		app.Labels = filled
		forbidden(t, kim.Patch(t.Context(), app, client.MergeFrom(before)), "admission/size", "at most 524288")
		if err := kim.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			t.Fatal(err)
		}
		if len(app.Labels) > 0 {
			t.Errorf("%d labels were stored", len(app.Labels))
		}
	})
}

func TestStatusNeverReachesTheWebhook(t *testing.T) {
	w := newWorld(t)
	app := w.app("app", w.signed())
	w.create(admin, app)
	before := fmt.Sprint(pair.requests(v1alpha1.KindBpfApplication))
	app.Status.Digest = "sha256:forged"
	if err := admin.Status().Update(t.Context(), app); err != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	// The reconcilers write it too, until it says what is true.
	w.until(func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if app.Status.Serial == 0 {
			return fmt.Errorf("status is %+v", app.Status)
		}
		return nil
	})
	if after := fmt.Sprint(pair.requests(v1alpha1.KindBpfApplication)); after != before {
		t.Errorf("requests were %s, are %s", before, after)
	}
	app.Spec.Suspend = true
	if err := admin.Update(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprint(pair.requests(v1alpha1.KindBpfApplication)); after == before {
		t.Error("the count does not count")
	}
}

// TestWhatIsDeniedAlreadyIsDeniedWithoutARegistry has an application whose image is
// named by a tag: what that stands for now is asked of the registry, and what it
// stood for counts where nobody answers.
func TestWhatIsDeniedAlreadyIsDeniedWithoutARegistry(t *testing.T) {
	w := newWorld(t)
	fay, said := w.user("fay-of-"+w.namespace, "skep-application-editor")
	w.signed()
	tag, _ := w.Push("known:v1", append(programs.Object("xdp_count"), w.namespace...), w.signer)
	app := w.app("app", tag)
	w.create(fay, app)
	w.until(func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if verified := apimeta.FindStatusCondition(app.Status.Conditions, v1alpha1.ConditionVerified); verified == nil || verified.Status != metav1.ConditionTrue {
			return fmt.Errorf("status is %+v", app.Status)
		}
		return nil
	})
	// The definition alone is not denied: that needs no registry.
	w.policy("first", `deny contains "places before 100 are for firewalls" if {
	count(input.signatures) > 0
	input.application.spec.programs[_].attach[_].priority < 100
}`)
	early := w.app("early", app.Spec.Bytecode.Image)
	early.Spec.Programs[0].Attach[0].Priority = new(int32(10))
	w.denies(early, "first/deny")

	w.Down.Store(true)
	change := func(f func(*v1alpha1.BpfApplication)) error {
		changed := app.DeepCopy()
		f(changed)
		return fay.Patch(t.Context(), changed, client.MergeFrom(app), client.DryRunAll)
	}
	before := func(a *v1alpha1.BpfApplication) { a.Spec.Programs[0].Attach[0].Priority = new(int32(10)) }
	// Either replica may be asked.
	w.until(func() error {
		if err := change(before); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not forbidden: %w", err)
		}
		return nil
	})
	asked := len(said.all())
	forbidden(t, change(before), "BpfApplication "+w.namespace+"/app", "first/deny", "places before 100 are for firewalls")
	if heard := said.all()[asked:]; len(heard) != 1 ||
		!strings.HasPrefix(heard[0], "evaluated by what is known of "+app.Status.Digest+", since its registry could not be asked: ") {
		t.Errorf("heard %q", heard)
	}
	for name, f := range map[string]func(*v1alpha1.BpfApplication){
		"what is allowed so far":              func(a *v1alpha1.BpfApplication) { a.Spec.Programs[0].Attach[0].Priority = new(int32(100)) },
		"what is to be asked of the registry": func(a *v1alpha1.BpfApplication) { before(a); a.Annotations[gate.AnnotationRequestedAt] = "now" },
		"what has another image": func(a *v1alpha1.BpfApplication) {
			before(a)
			a.Spec.Bytecode.Image = strings.Replace(tag, ":v1", ":v2", 1)
		},
	} {
		n := len(said.all())
		if err := change(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if heard := said.all()[n:]; len(heard) != 1 || !strings.Contains(heard[0], "is not verified yet, and nothing is loaded until it is") {
			t.Errorf("%s: heard %q", name, heard)
		}
	}
}

// TestWhoAsksWritesNothing has users ask about images that nobody knows: what the
// webhook learns is written down once an application is there that rests on it.
func TestWhoAsksWritesNothing(t *testing.T) {
	w := newWorld(t)
	gil, _ := w.user("gil-of-"+w.namespace, "skep-application-editor")
	w.signed()
	push := func(what string, signers ...string) (*v1alpha1.BpfApplication, client.ObjectKey) {
		ref, digest := w.Push(what+":v1", slices.Concat(programs.Object("xdp_count"), []byte(w.namespace+what)), signers...)
		return w.app(what, ref), client.ObjectKey{Name: strings.Replace(digest, ":", "-", 1)}
	}
	tried, dry := push("tried", w.signer)
	if err := gil.Create(t.Context(), tried, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	refused, no := push("refused")
	forbidden(t, gil.Create(t.Context(), refused), "baseline/signed")
	real, there := push("real", w.signer)
	w.create(gil, real)
	w.until(func() error { return admin.Get(t.Context(), there, &v1alpha1.BpfImage{}) })
	for what, key := range map[string]client.ObjectKey{"a dry run": dry, "what was refused": no} {
		if err := admin.Get(t.Context(), key, &v1alpha1.BpfImage{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s is written down: %v", what, err)
		}
	}
}

func TestWhatIsDeniedStaysInItsOperatorsHands(t *testing.T) {
	w := newWorld(t)
	app := w.app("app", w.signed())
	app.Finalizers = []string{"example.com/hold"}
	w.create(admin, app)
	w.policy("mondays", noMonday)
	w.denies(w.app("other", app.Spec.Bytecode.Image), "mondays")
	erin, _ := w.user("erin", "skep-application-editor")
	change := func(f func(*v1alpha1.BpfApplication)) error {
		changed := &v1alpha1.BpfApplication{}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), changed); err != nil {
			return err
		}
		before := changed.DeepCopy()
		f(changed)
		return erin.Patch(t.Context(), changed, client.MergeFrom(before))
	}
	forbidden(t, change(func(a *v1alpha1.BpfApplication) { a.Spec.Programs[0].Attach[0].Interfaces.Names[0] = "eth1" }), "mondays")
	for _, annotation := range []string{gate.AnnotationRequestedAt, v1alpha1.AnnotationResume} {
		forbidden(t, change(func(a *v1alpha1.BpfApplication) { a.Annotations[annotation] = "1" }), "mondays")
	}
	for _, step := range []struct {
		name   string
		change func(*v1alpha1.BpfApplication)
	}{
		{"label it", func(a *v1alpha1.BpfApplication) { a.Labels = map[string]string{"seen": "yes"} }},
		{"undo its rollout", func(a *v1alpha1.BpfApplication) { a.Annotations[v1alpha1.AnnotationUndo] = "1" }},
		{"suspend it", func(a *v1alpha1.BpfApplication) { a.Spec.Suspend = true }},
	} {
		if err := change(step.change); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	forbidden(t, change(func(a *v1alpha1.BpfApplication) { a.Spec.Suspend = false }), "mondays")
	if err := erin.Delete(t.Context(), app); err != nil {
		t.Errorf("delete it: %v", err)
	}
	if err := change(func(a *v1alpha1.BpfApplication) { a.Finalizers = nil }); err != nil {
		t.Errorf("take its finalizer: %v", err)
	}
}

// TestContentsThatNoNodeWritesAreWarnedOf: whoever applies other contents of a map that is kept
// hears it at once.
func TestContentsThatNoNodeWritesAreWarnedOf(t *testing.T) {
	w := newWorld(t)
	alice, heard := w.user("alice", "skep-application-editor")
	app := w.app("app", w.signed())
	with := func(value string, update v1alpha1.MapUpdate) map[string]v1alpha1.Map {
		entry := v1alpha1.MapEntry{Key: apiextensionsv1.JSON{Raw: []byte("0")}, Value: apiextensionsv1.JSON{Raw: []byte(value)}}
		return map[string]v1alpha1.Map{"counts": {Contents: []v1alpha1.MapEntry{entry}, OnUpdate: update}}
	}
	app.Spec.Maps = with("1", "")
	if err := alice.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		maps  map[string]v1alpha1.Map
		warns bool
	}{
		{with("2", ""), true},
		{with("2", v1alpha1.MapReset), false},
		{with("3", v1alpha1.MapReset), false},
		{with("4", v1alpha1.MapKeep), true},
		{nil, true},
	} {
		before := len(heard.all())
		// The controller writes the status meanwhile.
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				return err
			}
			app.Spec.Maps = c.maps
			return alice.Update(t.Context(), app)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := heard.all()[before:]; strings.Contains(strings.Join(got, "\n"), "set onUpdate: Reset to write them: counts") != c.warns {
			t.Errorf("%+v: heard %q", c.maps, got)
		}
	}
}
