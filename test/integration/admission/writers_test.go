package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// forgedIntent is one that nobody sealed.
var forgedIntent = v1alpha1.BpfIntentSpec{
	Envelope: []byte("{}"), Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "forged"}, Serial: 1,
}

// everything grants a user every verb on every kind of skep.dev.
func (w *world) everything(name string) client.Client {
	w.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "everything-" + w.namespace + "-" + strings.ReplaceAll(name, ":", "-")},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.Group}, Resources: []string{"*"}, Verbs: []string{"*"}}}}
	w.create(admin, role)
	c, _ := w.user(name, role.Name)
	return c
}

// agentOn is an agent's client: its token is bound to its Pod, and names the
// Pod's node.
func (w *world) agentOn(node string) client.Client {
	w.t.Helper()
	w.create(admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-" + node}}
	pod.Spec = corev1.PodSpec{NodeName: node, ServiceAccountName: "skep-agent", Containers: []corev1.Container{{Name: "agent", Image: "agent"}}}
	w.create(admin, pod)
	config, err := serviceAccount(w.t.Context(), "skep-agent", pod)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.client(config)
}

func TestOnlyTheControllerWritesIntents(t *testing.T) {
	w := newWorld(t)
	app := w.app("app", w.signed())
	w.create(admin, app)
	sealed := &v1alpha1.BpfIntent{}
	w.until(func() error { return admin.Get(t.Context(), client.ObjectKey{Name: string(app.UID)}, sealed) })
	mallory := w.everything("mallory")
	controller, err := serviceAccount(t.Context(), "skep-controller", nil)
	if err != nil {
		t.Fatal(err)
	}
	trusted := w.client(controller)

	forged := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: "forged"}, Spec: forgedIntent}
	image := &v1alpha1.BpfImage{ObjectMeta: metav1.ObjectMeta{Name: "sha256-" + strings.Repeat("ab", 32)}}
	edited := sealed.DeepCopy()
	edited.Spec.Envelope, edited.Spec.Serial = []byte("{}"), edited.Spec.Serial+1
	for name, c := range map[string]struct {
		write   func(client.Client) error
		allowed bool
	}{
		"an intent is forged":            {func(c client.Client) error { return c.Create(t.Context(), forged.DeepCopy(), client.DryRunAll) }, true},
		"an intent's payload is edited":  {func(c client.Client) error { return c.Update(t.Context(), edited.DeepCopy(), client.DryRunAll) }, true},
		"an intent's label is edited":    {labelled(t, sealed), true},
		"an intent is deleted":           {func(c client.Client) error { return c.Delete(t.Context(), sealed.DeepCopy(), client.DryRunAll) }, true},
		"evidence about an image is put": {func(c client.Client) error { return c.Create(t.Context(), image.DeepCopy(), client.DryRunAll) }, true},
		"all intents are deleted at once": {func(c client.Client) error {
			return c.DeleteAllOf(t.Context(), &v1alpha1.BpfIntent{}, client.DryRunAll)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			forbidden(t, c.write(mallory), "mallory", "skep-controller alone")
			if err := c.write(trusted); c.allowed && err != nil {
				t.Errorf("the controller may not: %v", err)
			}
		})
	}
	t.Run("a cluster admin clears up, and forges nothing", func(t *testing.T) {
		if err := admin.Delete(t.Context(), sealed.DeepCopy(), client.DryRunAll); err != nil {
			t.Error(err)
		}
		forbidden(t, admin.Create(t.Context(), forged.DeepCopy()), "skep/writers")
	})
	t.Run("the garbage collector clears up", func(t *testing.T) {
		if err := w.everything("system:serviceaccount:kube-system:generic-garbage-collector").Delete(t.Context(), sealed.DeepCopy(), client.DryRunAll); err != nil {
			t.Error(err)
		}
	})
}

// labelled is a write of a label on an object.
func labelled(t *testing.T, o client.Object) func(client.Client) error {
	return func(c client.Client) error {
		changed := o.DeepCopyObject().(client.Object)
		changed.SetLabels(map[string]string{"mine": "yes"})
		return c.Patch(t.Context(), changed, client.MergeFrom(o), client.DryRunAll)
	}
}

func TestAnAgentWritesItsOwnNodeAlone(t *testing.T) {
	w := newWorld(t)
	one, two := w.agentOn(w.namespace+"-one"), w.agentOn(w.namespace+"-two")
	node := func() *v1alpha1.BpfNode {
		return &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-one"}}
	}
	unbound, err := serviceAccount(t.Context(), "skep-agent", nil)
	if err != nil {
		t.Fatal(err)
	}
	// Another service account on the same node, with every right.
	lodger := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lodger-" + w.namespace}}
	w.create(admin, lodger)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lodger.Name},
		Spec: corev1.PodSpec{NodeName: node().Name, ServiceAccountName: lodger.Name, Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	w.create(admin, pod)
	w.everything("system:serviceaccount:" + namespace + ":" + lodger.Name)
	lodging, err := serviceAccount(t.Context(), lodger.Name, pod)
	if err != nil {
		t.Fatal(err)
	}
	mallory := w.everything("mallet")

	if err := one.Create(t.Context(), node()); err != nil {
		t.Fatalf("its own: %v", err)
	}
	report := node()
	report.Status.Kernel.Release = "6.18"
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"kernel":{"release":"6.18"}}}`))
	if err := one.Patch(t.Context(), report, patch); err != nil {
		t.Errorf("its own report: %v", err)
	}
	impostor, _ := w.as(rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":skep-agent",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node().Name, node().Name + "-too"}}})
	for name, c := range map[string]client.Client{
		"another node's agent":                    two,
		"an agent whose token is bound to no Pod": w.client(unbound),
		"another service account on that node":    w.client(lodging),
		"a user with every right":                 mallory,
		"one who shows two nodes":                 impostor,
		"a cluster admin":                         admin,
	} {
		t.Run(name, func(t *testing.T) {
			forbidden(t, c.Patch(t.Context(), node(), patch), "skep/writers", node().Name)
			other := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-three"}}
			forbidden(t, c.Create(t.Context(), other), "skep/writers")
		})
	}
	forbidden(t, mallory.Delete(t.Context(), node()), "skep/writers")
	if err := admin.Delete(t.Context(), node()); err != nil {
		t.Errorf("an admin clears up: %v", err)
	}
}

// filled makes a BpfNode ever larger by one thing, up to so many bytes of JSON.
func filled(t *testing.T, name string, most int, add func(n *v1alpha1.BpfNode, i int)) *v1alpha1.BpfNode {
	t.Helper()
	fits := &v1alpha1.BpfNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfNode}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i := 0; ; i++ {
		more := fits.DeepCopy()
		add(more, i)
		body, err := json.Marshal(more)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > most {
			return fits
		}
		fits = more
	}
}

// TestABpfNodeHasABound: one agent that was taken over keeps no more of etcd and of
// the controllers' memory than another, and none that keeps to the bound is rejected.
func TestABpfNodeHasABound(t *testing.T) {
	w := newWorld(t)
	name := w.namespace + "-full"
	agent := w.agentOn(name)
	uid := func(i int) string { return fmt.Sprintf("0f8fad5b-d9cb-469f-a165-%012d", i) }
	kinds := map[string]func(n *v1alpha1.BpfNode, i int){
		"labels": func(n *v1alpha1.BpfNode, i int) {
			metav1.SetMetaDataLabel(&n.ObjectMeta, fmt.Sprint("k", i), strings.Repeat("v", 60))
		},
		"annotations": func(n *v1alpha1.BpfNode, i int) {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, fmt.Sprint("k", i), strings.Repeat("é", 300))
		},
		"finalizers": func(n *v1alpha1.BpfNode, i int) {
			n.Finalizers = append(n.Finalizers, fmt.Sprint("example.com/", i, strings.Repeat("f", 40)))
		},
		"owners": func(n *v1alpha1.BpfNode, i int) {
			n.OwnerReferences = append(n.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: types.UID(uid(i))})
		},
		"applications with nothing to say": func(n *v1alpha1.BpfNode, i int) {
			n.Status.Applications = append(n.Status.Applications, v1alpha1.NodeApplication{
				Kind: v1alpha1.KindClusterBpfApplication, Name: "n", UID: uid(i), State: v1alpha1.NodeLoaded,
			})
		},
		"applications with messages": func(n *v1alpha1.BpfNode, i int) {
			n.Status.Applications = append(n.Status.Applications, v1alpha1.NodeApplication{Kind: v1alpha1.KindBpfApplication, Namespace: "namespace",
				Name: "n", UID: uid(i), Serial: 1763719501000, Revision: strings.Repeat("r", 32), State: v1alpha1.NodeFailed, Message: strings.Repeat("é", 500)})
		},
		"applications in short": func(n *v1alpha1.BpfNode, i int) {
			n.Status.Loaded = append(n.Status.Loaded, v1alpha1.LoadedAs(uid(i), 1763719501000))
		},
		"foreign programs": func(n *v1alpha1.BpfNode, i int) {
			n.Status.Unmanaged = append(n.Status.Unmanaged, v1alpha1.UnmanagedProgram{
				ID: int64(i), Type: strings.Repeat("é", 64), Name: strings.Repeat("é", 128), LoadedBy: strings.Repeat("é", 128),
			})
		},
		"hooks": func(n *v1alpha1.BpfNode, i int) {
			deny := v1alpha1.DeniedHooks{Reason: strings.Repeat("w", 200)}
			for k := range 60 {
				deny.Hooks = append(deny.Hooks, fmt.Sprint(strings.Repeat("é", 40), k))
			}
			n.Status.Kernel.Denied = append(n.Status.Kernel.Denied, deny)
		},
	}
	for kind, add := range kinds {
		t.Run(kind, func(t *testing.T) {
			if err := agent.Create(t.Context(), filled(t, name, v1alpha1.MaxBpfNodeBytes, add), client.DryRunAll); err != nil {
				t.Errorf("one that fits is refused: %v", err)
			}
			// What the CRD allows beside it is some bytes an entry, which are not counted.
			err := agent.Create(t.Context(), filled(t, name, v1alpha1.MaxBpfNodeBytes*3/2, add), client.DryRunAll)
			if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "32768 are allowed") {
				t.Errorf("one of half as much again: %v", err)
			}
		})
	}
	t.Run("it grows by an update", func(t *testing.T) {
		if err := agent.Create(t.Context(), &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
		large := filled(t, name, v1alpha1.MaxBpfNodeBytes*2, kinds["annotations"])
		if err := agent.Patch(t.Context(), large, client.Merge); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Error(err)
		}
	})
}
