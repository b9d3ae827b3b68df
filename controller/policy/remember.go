package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/limit"
)

// The bounds of what is remembered over restarts. An API server takes no ConfigMap of
// more than a mebibyte, which is so many bytes of JSON once it is an envelope.
const (
	maxRemembered         = (1<<20 - 16<<10) / 4 * 3
	maxNamespacedPolicies = 4096
)

// Remember writes down what is active, for the next start: signers, policies of the
// cluster, and policies of namespaces as far as there is room, which namespaces share.
func (k *Keeper) Remember(ctx context.Context) error {
	k.one.Lock()
	defer k.one.Unlock()
	if k.before == nil {
		return nil
	}
	in, lost, err := k.before.within(maxRemembered, maxNamespacedPolicies)
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", k.Namespace, ConfigMapName, err)
	}
	k.logLost(ctx, lost)
	sealed, err := k.seal(in)
	if err == nil {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: ConfigMapName}}
		_, err = controllerutil.CreateOrUpdate(ctx, k.Direct, o, func() error {
			o.Data = map[string]string{activeKey: string(sealed)}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", k.Namespace, ConfigMapName, err)
	}
	return nil
}

// logLost logs of each namespace how many of its policies are not remembered, where that
// is not what was logged last.
func (k *Keeper) logLost(ctx context.Context, lost map[string]int) {
	for _, namespace := range slices.Sorted(maps.Keys(lost)) {
		if lost[namespace] != k.forgotten[namespace] {
			ctrl.LoggerFrom(ctx).Info("not all policies of a namespace are kept over a restart, since it has the most of those that are kept: "+
				"those that are not stop applying if their CRD is deleted and the controller restarts",
				"namespace", namespace, "policies", lost[namespace])
		}
	}
	k.forgotten = lost
}

// seal is what is remembered as it is written down: the same for the same, as
// long as the key is.
func (k *Keeper) seal(in objects) (intent.Envelope, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return k.Keys().Sealer.Sign(payloadType, body)
}

// within is in as it is remembered, in so many bytes of JSON and with so many policies of
// namespaces. Signers and policies of the cluster are always part of it. Of the policies
// of namespaces, the largest of the namespaces with most give way: lost counts them.
func (in objects) within(bytes, count int) (remembered objects, lost map[string]int, err error) {
	out := objects{Signers: bare(in.Signers), Cluster: bare(in.Cluster)}
	out.CRDs = in.of(out.all())
	rest, err := json.Marshal(out)
	if err != nil {
		return objects{}, nil, err
	}
	all, err := in.measured()
	if err != nil {
		return objects{}, nil, err
	}
	kept, many := limit.Fit(all, count, func(p measured) (string, int) { return p.policy.Namespace, 1 })
	kept, large := limit.Fit(kept, bytes-len(rest), func(p measured) (string, int) { return p.policy.Namespace, p.bytes })
	lost = map[string]int{}
	for _, p := range slices.Concat(many, large) {
		lost[p.policy.Namespace]++
	}
	for _, p := range kept {
		out.Namespaced = append(out.Namespaced, p.policy)
	}
	slices.SortFunc(out.Namespaced, byKey[v1alpha1.BpfPolicy])
	out.CRDs = in.of(out.all())
	return out, lost, nil
}

// measured is a policy of a namespace, and how many bytes of JSON it takes to remember it.
type measured struct {
	policy v1alpha1.BpfPolicy
	bytes  int
}

// measured returns the policies of namespaces, the smallest first.
func (in objects) measured() ([]measured, error) {
	var all []measured
	for _, p := range bare(in.Namespaced) {
		one := objects{Namespaced: []v1alpha1.BpfPolicy{p}}
		one.CRDs = in.of(one.all())
		text, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		all = append(all, measured{p, len(text)})
	}
	slices.SortStableFunc(all, func(a, b measured) int { return cmp.Compare(a.bytes, b.bytes) })
	return all, nil
}

// of is what CRDs says of some objects.
func (in objects) of(some []client.Object) map[types.UID]types.UID {
	crds := map[types.UID]types.UID{}
	for _, o := range some {
		if crd, known := in.CRDs[o.GetUID()]; known {
			crds[o.GetUID()] = crd
		}
	}
	return crds
}

// bare returns objects of one kind by name, without what does not matter later.
func bare[T any, P object[T]](all []T) []T {
	all = slices.Clone(all)
	for i := range all {
		o := P(&all[i])
		o.SetAnnotations(nil)
		o.SetLabels(nil)
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
	}
	slices.SortFunc(all, byKey[T, P])
	return all
}

// byKey orders objects of one kind by namespace and name.
func byKey[T any, P object[T]](a, b T) int {
	x, y := P(&a), P(&b)
	return cmp.Or(strings.Compare(x.GetNamespace(), y.GetNamespace()), strings.Compare(x.GetName(), y.GetName()))
}
