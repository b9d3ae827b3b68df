package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// refill has the other tests' replicas back when a test ends that removes them.
func (r *replicas) refill(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		err := errors.Join(r.add(), r.add())
		if err == nil {
			ctx := context.WithoutCancel(t.Context())
			err = until(ctx, func() error { return r.ready(ctx) })
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// TestWithNoReplicaNobodyWritesWhatIsJudgedAndAllElseGoesOn has nobody answer
// the webhook, which fails closed: for what it is asked about, and for nothing
// else in the cluster.
func TestWithNoReplicaNobodyWritesWhatIsJudgedAndAllElseGoesOn(t *testing.T) {
	w := newWorld(t)
	app := w.app("app", w.signed())
	w.create(admin, app)
	w.intent(app, lives)
	name := w.namespace + "-one"
	agent := w.agentOn(name)
	w.create(agent, &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "config"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pod"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "c"}}
	pair.refill(t)
	for len(pair.running) > 0 {
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
	}
	merge := func(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }
	create := func(o client.Object) error { return admin.Create(t.Context(), o) }
	cluster := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Spec: app.Spec}
	policy := v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n"}

	for name, write := range map[string]func() error{
		"a BpfApplication": func() error { return create(w.app("another", app.Spec.Bytecode.Image)) },
		"another spec of one": func() error {
			return admin.Patch(t.Context(), app.DeepCopy(), merge(`{"spec":{"suspend":true}}`))
		},
		"a ClusterBpfApplication": func() error { return create(cluster) },
		"a BpfPolicy": func() error {
			return create(&v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "policy"}, Spec: policy})
		},
		"a ClusterBpfPolicy": func() error {
			return create(&v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: policy}})
		},
		"a BpfSigner": func() error { return create(w.Signer(w.namespace + "-another")) },
	} {
		t.Run("nobody writes "+name, func(t *testing.T) {
			if err := write(); err == nil || !strings.Contains(err.Error(), `failed calling webhook "validate.skep.dev"`) {
				t.Errorf("nobody evaluated it, and the API server says: %v", err)
			}
		})
	}
	for _, c := range []struct {
		name  string
		write func() error
	}{
		{"a ConfigMap", func() error { return create(config) }},
		{"another word in it", func() error { return admin.Patch(t.Context(), config, merge(`{"data":{"a":"b"}}`)) }},
		{"a Pod", func() error { return create(pod) }},
		{"what its kubelet says", func() error { return admin.Status().Patch(t.Context(), pod, merge(`{"status":{"phase":"Running"}}`)) }},
		{"what an agent reports", func() error {
			return agent.Patch(t.Context(), &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}, merge(`{"status":{"kernel":{"release":"6.18"}}}`))
		}},
		{"an application's status", func() error {
			return admin.Status().Patch(t.Context(), app.DeepCopy(), merge(`{"status":{"digest":"`+forgedDigest+`"}}`))
		}},
		{"an end to it", func() error { return admin.Delete(t.Context(), app.DeepCopy()) }},
	} {
		t.Run("somebody writes "+c.name, func(t *testing.T) {
			if err := c.write(); err != nil {
				t.Errorf("it is stopped by a webhook that nobody answers: %v", err)
			}
		})
	}
}
