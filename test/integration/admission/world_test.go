package admission

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// world is a namespace of a test's own, with a registry and a signer.
type world struct {
	*supply.Chain
	t         testing.TB
	namespace string
	signer    string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, Chain: supply.New(t)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}}
	w.create(admin, ns)
	w.namespace, w.signer = ns.Name, ns.Name
	signer := w.Signer(w.signer)
	w.create(admin, signer)
	t.Cleanup(func() {
		if err := admin.Delete(context.WithoutCancel(t.Context()), signer); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) create(c client.Client, objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		var failed error
		w.until(func() error {
			// The replica that is asked may not have seen the signer yet that another one knows.
			if failed = c.Create(w.t.Context(), o); failed != nil && strings.Contains(failed.Error(), "no known signer") {
				return failed
			}
			return nil
		})
		if failed != nil {
			w.t.Fatal(failed)
		}
	}
}

func (w *world) until(check func() error) {
	w.t.Helper()
	if err := until(w.t.Context(), check); err != nil {
		w.t.Fatal(err)
	}
}

// app is an application of the namespace that counts packets.
func (w *world) app(name, image string) *v1alpha1.BpfApplication {
	a := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	a.Spec.Bytecode.Image = image
	a.Spec.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{
		{Hook: "xdp", Pods: &v1alpha1.Pods{}, Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}},
	}}}
	return a
}

// signed is an image by digest that the policies let pass. No other test's has
// that digest: who signed it is remembered by it. It waits until the signer is
// active.
func (w *world) signed() string {
	w.t.Helper()
	ref, digest := w.Push("count:v1", append(programs.Object("xdp_count"), w.namespace...), w.signer)
	ref = strings.TrimSuffix(ref, ":v1") + "@" + digest
	w.until(func() error { return admin.Create(w.t.Context(), w.app("spared", ref), client.DryRunAll) })
	return ref
}

// policy activates Rego in the namespace, on both replicas.
func (w *world) policy(name, rego string, change ...func(*v1alpha1.BpfPolicySpec)) *v1alpha1.BpfPolicy {
	w.t.Helper()
	p := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	p.Spec.Rego = "package skep.policy\n\n" + rego + "\n"
	for _, f := range change {
		f(&p.Spec)
	}
	w.create(admin, p)
	return p
}

// user is a person who may do what the roles of the chart allow, all over the
// cluster.
func (w *world) user(name string, roles ...string) (client.Client, *heard) {
	w.t.Helper()
	for _, role := range roles {
		var granted rbacv1.ClusterRole
		if err := admin.Get(w.t.Context(), client.ObjectKey{Name: role}, &granted); err != nil {
			w.t.Fatal(err)
		}
		w.create(admin, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		})
		rule := granted.Rules[0]
		w.until(func() error {
			if !may(w.t, name, "", rule.Verbs[0], rule.APIGroups[0], rule.Resources[0], "") {
				return errors.New("role " + role + " is not active")
			}
			return nil
		})
	}
	return w.as(rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated", "group-of-" + name}})
}

func (w *world) as(who rest.ImpersonationConfig) (client.Client, *heard) {
	w.t.Helper()
	config, h := rest.CopyConfig(plane.Config), &heard{}
	config.Impersonate, config.WarningHandler, config.QPS = who, h, -1
	return w.client(config), h
}

func (w *world) client(config *rest.Config) client.Client {
	w.t.Helper()
	c, err := newClient(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// heard gathers the warnings that a user is shown.
type heard struct {
	mu   sync.Mutex
	said []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, text)
}

// all is what was said until now.
func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.said...)
}
