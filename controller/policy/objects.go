package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/crd"
	"github.com/skep-dev/skep/intent"
)

// ConfigMapName is the ConfigMap that tells over restarts what was active, and
// activeKey the key in it.
const (
	ConfigMapName = "skep-policies"
	activeKey     = "in-force.json"
)

// payloadType is the DSSE type of what is remembered. The seal says that a
// controller found it active: whoever may write ConfigMaps, and no more, makes
// nobody a signer by it.
const payloadType = "application/vnd.skep.policies.v1+json"

// objects are the admins' objects of a cluster.
type objects struct {
	Signers    []v1alpha1.BpfSigner        `json:"signers"`
	Cluster    []v1alpha1.ClusterBpfPolicy `json:"cluster"`
	Namespaced []v1alpha1.BpfPolicy        `json:"namespaced"`
	// CRDs are the UIDs of the CRDs that they are objects of, by their own.
	CRDs map[types.UID]types.UID `json:"crds"`
	// vanished are those that went with their CRD.
	vanished map[types.UID]bool
}

// read reads what there is, and adds what was active and vanished with its
// CRD: nobody took that away.
func (k *Keeper) read(ctx context.Context) (objects, error) {
	var (
		signers    v1alpha1.BpfSignerList
		cluster    v1alpha1.ClusterBpfPolicyList
		namespaced v1alpha1.BpfPolicyList
	)
	for _, list := range []client.ObjectList{&signers, &cluster, &namespaced} {
		if err := k.Reader.List(ctx, list); err != nil {
			return objects{}, fmt.Errorf("list signers and policies: %w", err)
		}
	}
	standing := map[string]types.UID{}
	for _, resource := range []string{"bpfsigners", "clusterbpfpolicies", "bpfpolicies"} {
		uid, err := crd.UID(ctx, k.Direct, resource)
		if err != nil {
			return objects{}, err
		}
		standing[resource] = uid
	}
	if k.before == nil {
		before, err := k.recall(ctx)
		if err != nil {
			return objects{}, err
		}
		k.before = &before
	}
	now := objects{CRDs: map[types.UID]types.UID{}, vanished: map[types.UID]bool{}}
	now.Signers = join(now, signers.Items, k.before.Signers, k.before.CRDs, standing["bpfsigners"])
	now.Cluster = join(now, cluster.Items, k.before.Cluster, k.before.CRDs, standing["clusterbpfpolicies"])
	now.Namespaced = join(now, namespaced.Items, k.before.Namespaced, k.before.CRDs, standing["bpfpolicies"])
	return now, nil
}

// object is a pointer to a kind.
type object[T any] interface {
	*T
	client.Object
}

// join adds to the objects of one kind those before that are gone although the
// CRD they were of is not the one that stands, unless another bears their name.
// It notes in all what each is of.
func join[T any, P object[T]](all objects, now, before []T, of map[types.UID]types.UID, standing types.UID) []T {
	named := map[types.NamespacedName]bool{}
	for i := range now {
		o := P(&now[i])
		named[client.ObjectKeyFromObject(o)] = true
		noted, known := of[o.GetUID()]
		if !known {
			noted = standing
		}
		all.CRDs[o.GetUID()] = noted
	}
	for i := range before {
		o := P(&before[i])
		noted := of[o.GetUID()]
		if named[client.ObjectKeyFromObject(o)] || standing != "" && standing == noted {
			continue
		}
		all.CRDs[o.GetUID()], all.vanished[o.GetUID()] = noted, true
		now = append(now, before[i])
	}
	return now
}

// confirmed are the revisions that an admin of the cluster let through. A
// policy of a namespace is in the hands of those whom unload protection may hold.
func (in objects) confirmed() map[string]bool {
	confirmed := map[string]bool{}
	for _, o := range in.all() {
		if o.GetNamespace() != "" {
			continue
		}
		for revision := range strings.SplitSeq(o.GetAnnotations()[AnnotationConfirm], ",") {
			confirmed[strings.TrimSpace(revision)] = true
		}
	}
	delete(confirmed, "")
	return confirmed
}

func (in objects) all() []client.Object {
	var all []client.Object
	for i := range in.Signers {
		all = append(all, &in.Signers[i])
	}
	for i := range in.Cluster {
		all = append(all, &in.Cluster[i])
	}
	for i := range in.Namespaced {
		all = append(all, &in.Namespaced[i])
	}
	return all
}

// recall is what was active when a controller ran last. What no controller
// sealed is nothing: then it is as if the ConfigMap were not there.
func (k *Keeper) recall(ctx context.Context) (objects, error) {
	var (
		o  corev1.ConfigMap
		in objects
	)
	at := types.NamespacedName{Namespace: k.Namespace, Name: ConfigMapName}
	err := k.Direct.Get(ctx, at, &o)
	if apierrors.IsNotFound(err) {
		return in, nil
	}
	if err != nil {
		return in, fmt.Errorf("get ConfigMap %s: %w", at, err)
	}
	body, err := k.Keys().Trust.Verify(payloadType, intent.Envelope(o.Data[activeKey]))
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "the ConfigMap does not say what was active: no key that is trusted sealed it", "configMap", at.String())
		return in, nil
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return in, fmt.Errorf("read ConfigMap %s: %w", at, err)
	}
	return in, nil
}
