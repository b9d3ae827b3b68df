package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/policies"
)

// Status is what the caller may read of a cluster, as skep status -o json prints it.
type Status struct {
	// Cluster is what was asked.
	Cluster string `json:"cluster"`
	// Health is how the parts of Skep do.
	Health []Part `json:"health"`
	// Namespace is the one whose applications are listed; empty if all are.
	Namespace string `json:"namespace,omitempty"`
	// Needs are the rights without which applications are missing.
	Needs []string `json:"needs,omitempty"`
	// Applications are in the order of namespaces and names, those of the cluster first.
	Applications []Application `json:"applications"`
}

// Application is an application of a cluster.
type Application struct {
	v1alpha1.Identity `json:",inline"`
	// Image is the definition's.
	Image string `json:"image"`
	// Denied are the reasons of a denial.
	Denied []policies.Reason `json:"denied"`
	// Status is as the controller wrote it.
	Status v1alpha1.BpfApplicationStatus `json:"status"`

	uid string
	// from is the object that it was read from.
	from stored
}

// condition is one of the application; its status is Unknown if it has none of that type.
func (a Application) condition(kind string) metav1.Condition {
	if c := meta.FindStatusCondition(a.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: "NotEvaluated", Message: "the controller has not looked at it yet"}
}

// stored is what is read of an application of either kind.
type stored struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Bytecode struct {
			Image string `json:"image"`
		} `json:"bytecode"`
		Suspend  bool `json:"suspend"`
		Programs []struct {
			Name   string `json:"name"`
			Attach []struct {
				Hook string `json:"hook"`
			} `json:"attach"`
		} `json:"programs"`
	} `json:"spec"`
	Status v1alpha1.BpfApplicationStatus `json:"status"`
}

// application describes it for printing.
func (s stored) application(kind string) Application {
	a := Application{Identity: v1alpha1.Identity{Kind: kind, Namespace: s.Namespace, Name: s.Name}, Image: s.Spec.Bytecode.Image, Denied: []policies.Reason{},
		Status: s.Status, uid: string(s.UID), from: s}
	if c := a.condition(v1alpha1.ConditionAllowed); c.Status == metav1.ConditionFalse {
		a.Denied = append(a.Denied, reasons(c.Message)...)
	}
	return a
}

// The resources of applications.
const (
	namespaced  = "bpfapplications"
	clusterWide = "clusterbpfapplications"
)

// Status reads how Skep does and the applications that the caller may read, or those of the names alone.
func (c *Client) Status(ctx context.Context, names []string) (Status, error) {
	s := Status{Cluster: c.Place, Applications: []Application{}}
	// Without applications there is no answer: nothing waits for a cluster that is away.
	group, within := errgroup.WithContext(ctx)
	var namespace string
	group.Go(func() error {
		s.Health, namespace = c.Health(within)
		return nil
	})
	group.Go(func() error { return c.applications(within, &s) })
	if err := group.Wait(); err != nil {
		return Status{}, err
	}
	s.Health = append(s.Health, c.registries(ctx, namespace, s.Applications), protection(s.Applications, len(s.Needs) > 0 || c.Chosen))
	// In a namespace that the caller chose, a name alone is one of it.
	is := func(a Application, name string) bool {
		return a.Identity.String() == name || c.Chosen && a.Name == name
	}
	for _, name := range names {
		if !slices.ContainsFunc(s.Applications, func(a Application) bool { return is(a, name) }) {
			return s, exit.Absent("show status of %s: there is no such application, or you may not read it; skep status lists all, those of namespaces as "+
				"NAMESPACE/NAME", name)
		}
	}
	if len(names) > 0 {
		s.Applications = slices.DeleteFunc(s.Applications, func(a Application) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return is(a, name) })
		})
	}
	return s, nil
}

// applications reads those of the cluster and of all namespaces, or of the caller's if that is what the caller chose or may read.
func (c *Client) applications(ctx context.Context, s *Status) error {
	add := func(o object, kind string) error {
		all, err := list[stored](ctx, c, o)
		for _, one := range all {
			s.Applications = append(s.Applications, one.application(kind))
		}
		return err
	}
	everywhere, everyNamespace := ours("", clusterWide, ""), ours("", namespaced, "")
	if c.Chosen {
		everyNamespace.namespace, s.Namespace = c.Namespace, c.Namespace
	} else if err := add(everywhere, v1alpha1.KindClusterBpfApplication); errors.Is(err, errForbidden) {
		s.Needs = append(s.Needs, everywhere.right())
	} else if err != nil {
		return c.explainAbsence(err)
	}
	err := add(everyNamespace, v1alpha1.KindBpfApplication)
	if errors.Is(err, errForbidden) && !c.Chosen {
		s.Needs, s.Namespace = append(s.Needs, everyNamespace.right()+" in every namespace"), c.Namespace
		everyNamespace.namespace = c.Namespace
		err = add(everyNamespace, v1alpha1.KindBpfApplication)
	}
	if errors.Is(err, errForbidden) {
		s.Needs, err = append(s.Needs, everyNamespace.right()), nil
	}
	slices.SortFunc(s.Applications, func(x, y Application) int { return x.Identity.Compare(y.Identity) })
	return c.explainAbsence(err)
}

// explainAbsence says of a cluster without the API that Skep is not there.
func (c *Client) explainAbsence(err error) error {
	if isAbsent(err) {
		return fmt.Errorf("%s has no API %s: Skep is not installed there", c.Place, v1alpha1.APIVersion)
	}
	return err
}

// confirm begins what the message of an application says that unload protection keeps.
const confirm = v1alpha1.Group + "/confirm="

// protection names what unload protection keeps, of what was read; partly reports whether there may be other applications.
func protection(all []Application, partly bool) Part {
	p := Part{Name: "unload protection", State: OK, Message: "holds nothing back"}
	if partly {
		p.Message += ", of what is shown"
	}
	kept := map[string][]string{}
	for _, a := range all {
		_, revision, found := strings.Cut(a.condition(v1alpha1.ConditionReady).Message, confirm)
		if !found {
			continue
		}
		revision = strings.TrimRight(strings.Fields(revision + " ")[0], ";,.")
		kept[revision] = append(kept[revision], a.Identity.String())
	}
	if len(kept) == 0 {
		return p
	}
	p.State, p.Message = Warning, ""
	for _, revision := range sorted(kept) {
		p.Message += fmt.Sprintf("keeps %s; to unload, annotate any ClusterBpfPolicy or BpfSigner with %s%s; ", first(kept[revision]), confirm, revision)
	}
	p.Message = strings.TrimSuffix(p.Message, "; ")
	return p
}
