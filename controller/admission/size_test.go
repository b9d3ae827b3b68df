package admission

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// sized is an application that nobody has to evaluate, changed.
func sized(change ...func(*v1alpha1.BpfApplication)) *v1alpha1.BpfApplication {
	app := &v1alpha1.BpfApplication{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfApplication},
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", ResourceVersion: "9", Generation: 9},
		Spec:       v1alpha1.BpfApplicationSpec{Bytecode: v1alpha1.Bytecode{Image: "r.example.com/x:v1"}, Programs: []v1alpha1.Program{{Name: "p"}}},
	}
	for _, f := range change {
		f(app)
	}
	return app
}

// Parts of an application that are of a size.
func labels(bytes int) func(*v1alpha1.BpfApplication) {
	return func(app *v1alpha1.BpfApplication) { app.Labels = map[string]string{"k": strings.Repeat("v", bytes)} }
}

func annotations(bytes int) func(*v1alpha1.BpfApplication) {
	return func(app *v1alpha1.BpfApplication) {
		app.Annotations = map[string]string{"k": strings.Repeat("v", bytes)}
	}
}

func managers(bytes int) func(*v1alpha1.BpfApplication) {
	return func(app *v1alpha1.BpfApplication) {
		app.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", bytes)}}
	}
}

func reported(bytes int) func(*v1alpha1.BpfApplication) {
	return func(app *v1alpha1.BpfApplication) { app.Status.SignedBy = strings.Repeat("s", bytes) }
}

func finalizers(names ...string) func(*v1alpha1.BpfApplication) {
	return func(app *v1alpha1.BpfApplication) { app.Finalizers = names }
}

func deleting(app *v1alpha1.BpfApplication) {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	app.DeletionTimestamp = &at
}

func later(app *v1alpha1.BpfApplication) { app.ResourceVersion, app.Generation = "1000", 1000 }

// update is an update as the webhook is asked about it.
func update(t *testing.T, before, now *v1alpha1.BpfApplication) webhook.AdmissionRequest {
	t.Helper()
	raw := func(o any) runtime.RawExtension {
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: body}
	}
	return webhook.AdmissionRequest{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Update, Name: now.Name, Namespace: now.Namespace,
		Kind:   metav1.GroupVersionKind{Group: v1alpha1.Group, Version: v1alpha1.Version, Kind: now.Kind},
		Object: raw(now), OldObject: raw(before),
	}}
}

func TestWhatIsTooLargeDoesNotGrow(t *testing.T) {
	const kib, most = 1 << 10, maxObjectBytes
	for name, c := range map[string]struct {
		before, now *v1alpha1.BpfApplication
		denied      string
	}{
		"labels alone":      {sized(), sized(labels(880 * kib)), "admission/size: the object has"},
		"annotations alone": {sized(), sized(annotations(most)), "admission/size: the object has"},
		"labels and annotations, each of which fits": {
			sized(annotations(200 * kib)), sized(annotations(200*kib), labels(400*kib)), "admission/size: the object has",
		},
		"another finalizer of what is too large":       {sized(labels(most)), sized(labels(most), finalizers("a")), "admission/size: the object has"},
		"a large share of what may be":                 {sized(), sized(labels(most - 10*kib)), ""},
		"what is too large shrinks, and still is":      {sized(labels(880 * kib)), sized(labels(870 * kib)), ""},
		"what is too large shrinks by another manager": {sized(labels(880*kib), managers(kib)), sized(labels(870*kib), managers(2*kib)), ""},
		"what is too large stays, at another version":  {sized(labels(880 * kib)), sized(labels(880*kib), later), ""},
		"its finalizer is taken while it is deleted":   {sized(labels(880*kib), deleting, finalizers("a")), sized(labels(880*kib), deleting, managers(kib)), ""},
		"it is not filled while it is deleted": {
			sized(deleting, finalizers("a")), sized(labels(880*kib), deleting, finalizers("a")), "admission/size: the object has",
		},
		"many managers":                                   {sized(managers(kib)), sized(managers(most)), "of them metadata.managedFields"},
		"many managers, of what is deleted":               {sized(managers(most), deleting, finalizers("a")), sized(managers(most+kib), deleting), ""},
		"labels and the record of who wrote them":         {sized(), sized(labels(300*kib), managers(300*kib)), "admission/size: the object has"},
		"more managers than a smaller object may have":    {sized(labels(200 * kib)), sized(labels(199*kib), managers(most+kib)), "of them metadata.managedFields"},
		"a status is the controller's":                    {sized(reported(kib)), sized(reported(880*kib), labels(kib)), ""},
		"a status takes nothing away from what is denied": {sized(reported(880 * kib)), sized(labels(880 * kib)), "admission/size: the object has"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := (&Validator{Metrics: NewMetrics(prometheus.NewRegistry())}).Handle(t.Context(), update(t, c.before, c.now))
			message := ""
			if answer.Result != nil {
				message = answer.Result.Message
			}
			if answer.Allowed != (c.denied == "") || !strings.Contains(message, c.denied) {
				t.Errorf("allowed: %t, %q; want %q", answer.Allowed, message, c.denied)
			}
		})
	}
}
