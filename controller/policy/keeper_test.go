package policy

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// cluster is what a Keeper reads, and who weighs for it.
type cluster struct {
	client.Client

	signers    []v1alpha1.BpfSigner
	cluster    []v1alpha1.ClusterBpfPolicy
	namespaced []v1alpha1.BpfPolicy
	unloads    []v1alpha1.Identity
	running    int
}

// List implements client.Reader.
func (c *cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1alpha1.BpfSignerList:
		list.Items = c.signers
	case *v1alpha1.ClusterBpfPolicyList:
		list.Items = c.cluster
	case *v1alpha1.BpfPolicyList:
		list.Items = c.namespaced
	default:
		return fmt.Errorf("nobody lists %T", list)
	}
	return nil
}

// Get implements client.Reader: every CRD stands, and nothing was remembered.
func (c *cluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if _, ok := o.(*metav1.PartialObjectMetadata); !ok {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	o.SetUID(types.UID(key.Name))
	return nil
}

// Weigh implements Weigher.
func (c *cluster) Weigh(context.Context) (int, []v1alpha1.Identity, error) {
	return c.running, c.unloads, nil
}

// unreachable has no images.
type unreachable struct{ gate.Images }

func (c *cluster) keeper(t *testing.T) *Keeper {
	t.Helper()
	trust, err := signing.NewTrust(nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := policies.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	judge, err := gate.New(gate.Options{Images: unreachable{}, Trust: trust, Policies: set})
	if err != nil {
		t.Fatal(err)
	}
	return NewKeeper(Options{Reader: c, Direct: c, Judge: judge})
}

func refresh(t *testing.T, k *Keeper, c *cluster) {
	t.Helper()
	if _, _, err := k.Refresh(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// app is an application's name.
func app(name string) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}
}

func TestOnlyWhoGovernsTheClusterConfirms(t *testing.T) {
	spec := v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\nwarn contains \"so\"\n"}
	for name, c := range map[string]struct {
		confirm func(*cluster, map[string]string)
		held    bool
	}{
		"nobody did":                   {func(*cluster, map[string]string) {}, true},
		"a namespace's policy may not": {func(c *cluster, a map[string]string) { c.namespaced[0].Annotations = a }, true},
		"a cluster's policy may":       {func(c *cluster, a map[string]string) { c.cluster[0].Annotations = a }, false},
		"a signer may":                 {func(c *cluster, a map[string]string) { c.signers[0].Annotations = a }, false},
	} {
		t.Run(name, func(t *testing.T) {
			meta := func(kind string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: kind, UID: types.UID(kind)} }
			in := &cluster{
				signers: []v1alpha1.BpfSigner{{ObjectMeta: meta("signer")}}, cluster: []v1alpha1.ClusterBpfPolicy{{ObjectMeta: meta("cluster"), Spec: spec}},
				namespaced: []v1alpha1.BpfPolicy{{ObjectMeta: meta("namespaced"), Spec: spec}},
				running:    3, unloads: []v1alpha1.Identity{app("a"), app("b"), app("c")},
			}
			in.namespaced[0].Namespace = "team"
			k := in.keeper(t)
			refresh(t, k, in)
			revision, _ := k.Holds(app("a"))
			c.confirm(in, map[string]string{AnnotationConfirm: revision})
			refresh(t, k, in)
			if _, held := k.Holds(app("a")); held != c.held {
				t.Errorf("held: %t", held)
			}
		})
	}
}
