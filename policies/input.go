// Package policies decides: it compiles the admins' Rego, evaluates it over one
// document, and says which rule denied what, where, and what would fix it.
//
// It is the only package that imports OPA. It fetches nothing and reads no clock:
// everything a policy may know is in Input.
//
// Size: the engine, its protocol and its workers share the types of compiled programs and
// of verdicts. Nothing else may see these types.
package policies

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/signing"
)

// InputVersion is the version of the Input document.
const InputVersion = "v1"

// Input is the one document Rego sees, the same at every entry point. Its JSON schema
// is published beside the policies.
type Input struct {
	// Version is InputVersion.
	Version string `json:"version"`
	// Application is the definition with its defaults filled in.
	Application Application `json:"application"`
	// Requester is who last changed the definition, as far as the caller knows.
	Requester Requester `json:"requester"`
	// Namespace is the application's; empty for a cluster-scoped one.
	Namespace Namespace `json:"namespace"`
	// Image is where the bytecode came from.
	Image Image `json:"image"`
	// Signatures and Attestations are those that count.
	Signatures   []signing.Signature   `json:"signatures"`
	Attestations []signing.Attestation `json:"attestations"`
	// Bytecode is what the object itself says, with the maps that the definition has loaded.
	Bytecode bytecode.Facts `json:"bytecode"`
	// Object is Bytecode with all maps, which the labels of the image are about; nil where Bytecode has all.
	Object *bytecode.Facts `json:"-"`
	// Parameters are the policy's own; the engine sets them per policy.
	Parameters map[string]json.RawMessage `json:"parameters"`
	// Now is the time of the decision; the engine sets it. A policy that reads
	// it is decided again at every interval.
	Now time.Time `json:"now"`
}

// Application is the definition as policies see it.
type Application struct {
	Kind     string   `json:"kind"`
	Metadata Metadata `json:"metadata"`
	// Spec has every attachment's hook and priority filled in.
	Spec v1alpha1.BpfApplicationSpec `json:"spec"`
}

// Metadata is the part of an object's metadata that policies see.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Requester is a user as the API server authenticated it; in node mode the
// git committer's name.
type Requester struct {
	Username string   `json:"username"`
	Groups   []string `json:"groups"`
}

// Namespace is a namespace and its labels.
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// Image is where the bytecode came from.
type Image struct {
	// Registry is the host, empty for an OCI layout on disk.
	Registry   string `json:"registry"`
	Repository string `json:"repository"`
	Tag        string `json:"tag,omitempty"`
	// Digest is the image's, as sha256:….
	Digest string `json:"digest"`
	// Size is that of the object in bytes.
	Size int64 `json:"size"`
	// Labels are the image's own: claims, not facts.
	Labels map[string]string `json:"labels"`
	// Mismatches are the claims of Labels that the object contradicts; the
	// engine sets it.
	Mismatches []bytecode.Mismatch `json:"mismatches"`
}

// Reason is one denial or warning.
type Reason struct {
	// Rule is policy/rule, such as baseline/signed. A policy that does not
	// compile, fails or takes too long denies by the rule policy/error.
	Rule string `json:"rule"`
	// Path is the field of the definition it is about, such as
	// spec.programs[0].attach[1].hook; empty where it is about the image.
	Path string `json:"path"`
	// Message says what is wrong, Fix what would fix it.
	Message string `json:"message"`
	Fix     string `json:"fix"`
	// Failed is true where the policy could not be evaluated: that it denies is no
	// word about the application.
	Failed bool `json:"failed,omitempty"`
}

// Rules are those of the reasons, sorted, each once.
func Rules(reasons []Reason) []string {
	rules := make([]string, 0, len(reasons))
	for _, r := range reasons {
		rules = append(rules, r.Rule)
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// Decision is what a set of policies says of one Input.
type Decision struct {
	// Denied lists the reasons to deny; empty means allowed.
	Denied []Reason `json:"denied"`
	// Warnings do not deny.
	Warnings []Reason `json:"warnings"`
	// Audited are denials of policies in Audit mode.
	Audited []Reason `json:"audited,omitempty"`
	// AdmissionWarn is true where every denying policy says admission: Warn.
	AdmissionWarn bool `json:"admissionWarn,omitempty"`
	// Unload is true where a policy that denies by a rule of its own, and not
	// by failing, says running: Unload.
	Unload bool `json:"unload,omitempty"`
	// UnloadUndefined is true where one of those neither reads labels,
	// annotations or the requester nor is matched by a selector: it would deny
	// what runs as well where its definition cannot be read.
	UnloadUndefined bool `json:"unloadUndefined,omitempty"`
	// UnloadByCluster and UnloadUndefinedByCluster are true where one of those is of the
	// cluster, and not of the application's namespace.
	UnloadByCluster          bool `json:"-"`
	UnloadUndefinedByCluster bool `json:"-"`
	// EvidenceDenies is true where a policy that denies reads attestations, or more of the
	// signatures than whether there are any: more evidence may end that.
	EvidenceDenies bool `json:"-"`
	// TimeDependent is true where a policy that was evaluated reads input.now,
	// or did not finish in time: the same input may be decided otherwise later.
	TimeDependent bool `json:"timeDependent,omitempty"`
	// AllEvidence is true where a policy that was evaluated reads attestations,
	// or more of the signatures than whether there are any: more evidence may
	// make it deny or warn, so that an answer about a part of it is none.
	AllEvidence bool `json:"allEvidence,omitempty"`
	// Foregone is true where the definition alone is denied: parts of the input were
	// unknown, and there may be more reasons.
	Foregone bool `json:"foregone,omitempty"`
	// Policies names the policies that were evaluated, sorted.
	Policies []string `json:"policies"`
}

// Unloads reports whether what runs is to be unloaded, and whether a policy of the cluster
// says so, not only those of its namespace. Where its definition cannot be read it has no
// labels: defined is false, and a policy that asks for one does not unload it for that.
func (d Decision) Unloads(defined bool) (unloads, byCluster bool) {
	if defined {
		return d.Unload, d.UnloadByCluster
	}
	return d.UnloadUndefined, d.UnloadUndefinedByCluster
}

// Allowed reports whether nothing denied.
func (d Decision) Allowed() bool { return len(d.Denied) == 0 }

// Known reports whether the policies that could be evaluated answer: they deny, or
// every policy was evaluated. Otherwise it is unknown what those say that failed.
func (d Decision) Known() bool {
	return d.Allowed() || slices.ContainsFunc(d.Denied, func(r Reason) bool { return !r.Failed })
}
