package policies

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Policy is one BpfPolicy or ClusterBpfPolicy, seen alike.
type Policy struct {
	// Name is the object's.
	Name string
	// Namespace is empty for a ClusterBpfPolicy. A policy with a namespace
	// evaluates the applications of that namespace and no others.
	Namespace string
	// File is where the Rego was read from, for the positions of errors; empty
	// means the policy's name with the ending .rego.
	File string
	// Spec is the object's.
	Spec v1alpha1.BpfPolicySpec
	// Replaces names the built-in policies that are switched off for what the policy
	// matches. Only a cluster-wide policy that enforces, without a selector, has any.
	Replaces []v1alpha1.BuiltinPolicy
	// Unusable is why the policy cannot be used. Where it is not empty the policy
	// is not compiled, and denies all that it matches, or all that it may reach
	// where its match cannot be read.
	Unusable string
	// Passing tells that it cannot be used for a moment only, whoever wrote it.
	Passing bool
}

// String is name for a ClusterBpfPolicy and namespace/name for a BpfPolicy. It
// is the first part of the ids of the policy's rules.
func (p Policy) String() string {
	return v1alpha1.Identity{Namespace: p.Namespace, Name: p.Name}.String()
}

// file is the name that errors give the policy's Rego.
func (p Policy) file() string {
	if p.File != "" {
		return p.File
	}
	return p.String() + ".rego"
}

// FromObjects turns the objects of both scopes into policies, in no particular
// order: Compile sorts them.
func FromObjects(cluster []v1alpha1.ClusterBpfPolicy, namespaced []v1alpha1.BpfPolicy) []Policy {
	all := make([]Policy, 0, len(cluster)+len(namespaced))
	for _, o := range cluster {
		all = append(all, Policy{Name: o.Name, Spec: o.Spec.BpfPolicySpec, Replaces: o.Spec.Replaces})
	}
	for _, o := range namespaced {
		all = append(all, Policy{Name: o.Name, Namespace: o.Namespace, Spec: o.Spec})
	}
	return all
}

// configures reports whether the policy is the built-in baseline with parameters of
// an admin's own, for what it matches: it is called baseline, has the profile, and
// enforces it. One with a selector does not, since authors choose labels.
func (p Policy) configures() bool {
	return p.Namespace == "" && p.Name == ProfileBaseline && p.Spec.Profile == ProfileBaseline &&
		p.Spec.Mode != v1alpha1.PolicyAudit && (p.Spec.Match == nil || p.Spec.Match.Selector == nil)
}

// Cautions are what whoever wrote the policy may not have meant, in sentences: that
// it switches a built-in policy off, or is called as one and does not configure it.
func (p Policy) Cautions() []string {
	var all []string
	for _, name := range p.Replaces {
		where := "for every application"
		if p.Spec.Match != nil && len(p.Spec.Match.Namespaces) > 0 {
			where = "in namespaces " + strings.Join(p.Spec.Match.Namespaces, ", ")
		}
		all = append(all,
			fmt.Sprintf("policy %s replaces %s %s: what %[2]s denies, such as an image that nobody known signed, is allowed there unless another policy denies it",
				p, name, where))
	}
	if p.Namespace == "" && p.Name == ProfileBaseline && !p.configures() {
		all = append(all, "a policy called baseline sets the parameters of the built-in policy only with profile: baseline, "+
			"in mode Enforce and without match.selector; "+
			"this one is evaluated beside it")
	}
	if _, has := p.Spec.Parameters[paramSharedTargets]; has && !p.configures() {
		all = append(all, fmt.Sprintf("policy %s grants nothing by its parameter %s: only the ClusterBpfPolicy called baseline, which sets the parameters of "+
			"the built-in policy, does", p, paramSharedTargets))
	}
	return all
}

// scope decides which applications a policy evaluates.
type scope struct {
	namespace  string
	namespaces []string
	selector   labels.Selector
}

// newScope reads a policy's match. Where the match itself is broken, the scope
// that comes with the error is all the policy could reach, so that a policy
// that denies by being broken fails closed.
func newScope(p Policy) (scope, error) {
	whole := scope{namespace: p.Namespace}
	match := p.Spec.Match
	if match == nil {
		return whole, nil
	}
	s := scope{namespace: p.Namespace, namespaces: slices.Clone(match.Namespaces)}
	for i, glob := range s.namespaces {
		if _, err := path.Match(glob, ""); err != nil {
			return whole, fmt.Errorf("spec.match.namespaces[%d]: glob %q: %w", i, glob, err)
		}
	}
	if match.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(match.Selector)
		if err != nil {
			return whole, fmt.Errorf("spec.match.selector: %w", err)
		}
		s.selector = selector
	}
	return s, nil
}

// covers reports whether the policy evaluates the application.
func (s scope) covers(app Application) bool {
	if s.namespace != "" && s.namespace != app.Metadata.Namespace {
		return false
	}
	if len(s.namespaces) > 0 && !s.coversNamespace(app.Metadata.Namespace) {
		return false
	}
	return s.selector == nil || s.selector.Matches(labels.Set(app.Metadata.Labels))
}

// coversNamespace never matches a cluster-scoped application, not even by "*":
// it has no namespace.
func (s scope) coversNamespace(namespace string) bool {
	if namespace == "" {
		return false
	}
	return slices.ContainsFunc(s.namespaces, func(glob string) bool {
		ok, err := path.Match(glob, namespace)
		return ok && err == nil
	})
}

// check denies what the fields of a spec cannot mean, before any Rego is read.
func (p Policy) check() error {
	spec := p.Spec
	switch {
	case p.Name == "":
		return errors.New("metadata.name: a policy needs a name")
	case spec.Profile == "" && spec.Rego == "":
		return errors.New("spec: give profile or rego")
	case spec.Profile != "" && spec.Rego != "":
		return errors.New("spec: profile and rego exclude each other; put one of them into a policy of its own")
	case spec.Profile != "" && !slices.Contains(Profiles(), spec.Profile):
		return fmt.Errorf("spec.profile: no profile is named %q; there are %v", spec.Profile, Profiles())
	case len(spec.Rego) > maxRegoBytes:
		return fmt.Errorf("spec.rego: %d bytes, at most %d are read", len(spec.Rego), maxRegoBytes)
	case !oneOf(spec.Mode, v1alpha1.PolicyEnforce, v1alpha1.PolicyAudit):
		return fmt.Errorf("spec.mode: %q is neither Enforce nor Audit", spec.Mode)
	case !oneOf(spec.Admission, v1alpha1.AdmissionDeny, v1alpha1.AdmissionWarn):
		return fmt.Errorf("spec.admission: %q is neither Deny nor Warn", spec.Admission)
	case !oneOf(spec.Running, v1alpha1.RunningKeep, v1alpha1.RunningUnload):
		return fmt.Errorf("spec.running: %q is neither Keep nor Unload", spec.Running)
	}
	return p.checkReplaces()
}

// checkReplaces denies what would let somebody else than an admin of the cluster
// switch a built-in policy off, and what would do so by mistake.
func (p Policy) checkReplaces() error {
	if len(p.Replaces) == 0 {
		return nil
	}
	for _, name := range p.Replaces {
		if name != v1alpha1.PolicyBaseline {
			return fmt.Errorf("spec.replaces: no built-in policy is named %q; there is %s", name, v1alpha1.PolicyBaseline)
		}
	}
	switch {
	case p.Namespace != "":
		return errors.New("spec.replaces: a policy of a namespace replaces nothing; have an admin write a " + v1alpha1.KindClusterBpfPolicy)
	case p.Spec.Mode == v1alpha1.PolicyAudit:
		return errors.New("spec.replaces: a policy in mode Audit replaces nothing; take replaces out, or enforce it")
	case p.Spec.Match != nil && p.Spec.Match.Selector != nil:
		return errors.New("spec.replaces: a policy with match.selector replaces nothing, since authors choose labels; match namespaces")
	}
	return nil
}

// oneOf reports whether v is absent or one of the values.
func oneOf[T ~string](v T, values ...T) bool { return v == "" || slices.Contains(values, v) }
