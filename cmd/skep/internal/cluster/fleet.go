package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Fleet is what the caller may read of applications, of who decides on them and of the nodes' reports.
type Fleet struct {
	Applications []Defined
	Nodes        []v1alpha1.BpfNode
	Signers      []v1alpha1.BpfSigner
	// ClusterPolicies are those of the cluster, Policies those of namespaces.
	ClusterPolicies []v1alpha1.ClusterBpfPolicy
	Policies        []v1alpha1.BpfPolicy
	// Needs are the rights without which something is missing.
	Needs []string
}

// Defined is an application with more of its definition.
type Defined struct {
	Application

	UID       string
	Meta      metav1.ObjectMeta
	Suspended bool
	// Programs are its functions, as HOOK NAME where the definition names the hook.
	Programs []string
}

// Fleet reads it. Without the right to read all namespaces, it has the caller's namespace alone.
func (c *Client) Fleet(ctx context.Context) (Fleet, error) {
	var f Fleet
	var s Status
	needs := &needed{}
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error { return c.applications(within, &s) })
	group.Go(func() error { return read(within, c, ours("", "bpfnodes", ""), &f.Nodes, needs) })
	group.Go(func() error { return read(within, c, ours("", "bpfsigners", ""), &f.Signers, needs) })
	group.Go(func() error { return read(within, c, ours("", "clusterbpfpolicies", ""), &f.ClusterPolicies, needs) })
	group.Go(func() error { return c.policies(within, &f.Policies, needs) })
	if err := group.Wait(); err != nil {
		return Fleet{}, err
	}
	for _, a := range s.Applications {
		f.Applications = append(f.Applications, a.from.defined(a))
	}
	slices.Sort(needs.rights)
	f.Needs = slices.Concat(s.Needs, needs.rights)
	return f, nil
}

// policies reads those of all namespaces, or of the caller's if that is what the caller chose or may read.
func (c *Client) policies(ctx context.Context, to *[]v1alpha1.BpfPolicy, needs *needed) error {
	const resource = "bpfpolicies"
	if !c.Chosen {
		var everywhere needed
		err := read(ctx, c, ours("", resource, ""), to, &everywhere)
		if err != nil || len(everywhere.rights) == 0 {
			return err
		}
		needs.add(everywhere.rights[0] + " in every namespace")
	}
	return read(ctx, c, ours(c.Namespace, resource, ""), to, needs)
}

// needed collects rights that the caller lacks.
type needed struct {
	mu     sync.Mutex
	rights []string
}

// add notes a right.
func (n *needed) add(right string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rights = append(n.rights, right)
}

// read reads a list; one that the caller may not read is empty.
func read[T any](ctx context.Context, c *Client, o object, to *[]T, needs *needed) error {
	all, err := list[T](ctx, c, o)
	if errors.Is(err, errForbidden) {
		needs.add(o.right())
		return nil
	}
	if err != nil {
		return c.explainAbsence(err)
	}
	*to = all
	return nil
}

// defined is an application with more of its definition.
func (s stored) defined(a Application) Defined {
	d := Defined{Application: a, UID: a.uid, Meta: s.ObjectMeta, Suspended: s.Spec.Suspend}
	for _, p := range s.Spec.Programs {
		name := p.Name
		if len(p.Attach) > 0 && p.Attach[0].Hook != "" {
			name = p.Attach[0].Hook + " " + name
		}
		d.Programs = append(d.Programs, name)
	}
	return d
}
