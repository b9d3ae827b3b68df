package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BpfPolicy is Rego that restricts the applications of its own namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=bpfpol,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=`.spec.profile`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type BpfPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfPolicySpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BpfPolicyStatus `json:"status,omitzero"`
}

// BpfPolicyList is a list of BpfPolicy.
//
// +kubebuilder:object:root=true
type BpfPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfPolicy `json:"items"`
}

// ClusterBpfPolicy is Rego that restricts every application.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cbpfpol,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=`.spec.profile`
// +kubebuilder:printcolumn:name="Replaces",type=string,JSONPath=`.spec.replaces`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ClusterBpfPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterBpfPolicySpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BpfPolicyStatus `json:"status,omitzero"`
}

// ClusterBpfPolicyList is a list of ClusterBpfPolicy.
//
// +kubebuilder:object:root=true
type ClusterBpfPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterBpfPolicy `json:"items"`
}

// ClusterBpfPolicySpec is the body that both scopes share, and what an admin of
// the cluster alone may say.
//
// +kubebuilder:validation:XValidation:rule="!has(self.replaces) || !has(self.mode) || self.mode == 'Enforce'",message="a policy in mode Audit replaces nothing: take replaces out, or enforce it"
// +kubebuilder:validation:XValidation:rule="!has(self.replaces) || !has(self.match) || !has(self.match.selector)",message="a policy with match.selector replaces nothing, since authors choose labels: match namespaces"
type ClusterBpfPolicySpec struct {
	BpfPolicySpec `json:",inline"`

	// Replaces switches built-in policies off for what this policy matches. Every
	// other policy is added to them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1
	Replaces []BuiltinPolicy `json:"replaces,omitempty"`
}

// BuiltinPolicy is a policy that holds without any object.
//
// +kubebuilder:validation:Enum=baseline
type BuiltinPolicy string

// PolicyBaseline is the profile baseline.
const PolicyBaseline BuiltinPolicy = "baseline"

// BpfPolicySpec is the body both scopes share. Exactly one of Profile and Rego
// is given.
//
// +kubebuilder:validation:XValidation:rule="has(self.profile) != has(self.rego)",message="exactly one of profile and rego is given"
type BpfPolicySpec struct {
	// Profile names a policy that ships with Skep: baseline or restricted.
	// +optional
	// +kubebuilder:validation:Enum=baseline;restricted
	Profile string `json:"profile,omitempty"`

	// Rego is one module of package skep.policy with the partial sets deny and
	// warn. A member is a string or an object of msg, and of rule, path and fix,
	// which may be left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Rego string `json:"rego,omitempty"`

	// Parameters reach the Rego as input.parameters.
	// +optional
	Parameters map[string]apiextensionsv1.JSON `json:"parameters,omitempty"`

	// Match limits the applications the policy evaluates; absent means all that
	// its scope reaches.
	// +optional
	Match *PolicyMatch `json:"match,omitempty"`

	// Mode says what a deny does: Enforce (default) denies, Audit only records.
	// +optional
	// +kubebuilder:validation:Enum=Enforce;Audit
	Mode PolicyMode `json:"mode,omitempty"`

	// Admission says what the webhook does with a deny: Deny (default) or Warn,
	// which admits the object with a warning and never deploys it.
	// +optional
	// +kubebuilder:validation:Enum=Deny;Warn
	Admission AdmissionMode `json:"admission,omitempty"`

	// Running says what a new denial does to what already runs: Keep (default)
	// freezes it, Unload takes it away.
	// +optional
	// +kubebuilder:validation:Enum=Keep;Unload
	Running RunningMode `json:"running,omitempty"`
}

// PolicyMatch limits a policy to some applications; every field given must
// match.
type PolicyMatch struct {
	// Namespaces are globs of namespaces. A cluster-scoped application has
	// none and is matched only where Namespaces is absent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:items:MinLength=1
	Namespaces []string `json:"namespaces,omitempty"`

	// Selector matches the application's labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// PolicyMode says what a deny does.
type PolicyMode string

// AdmissionMode says what the webhook does with a deny.
type AdmissionMode string

// RunningMode says what a new denial does to what already runs.
type RunningMode string

// The values of PolicyMode, AdmissionMode and RunningMode; the first of each
// is the default.
const (
	PolicyEnforce PolicyMode = "Enforce"
	PolicyAudit   PolicyMode = "Audit"

	AdmissionDeny AdmissionMode = "Deny"
	AdmissionWarn AdmissionMode = "Warn"

	RunningKeep   RunningMode = "Keep"
	RunningUnload RunningMode = "Unload"
)

// BpfPolicyStatus is what Skep knows of a policy.
type BpfPolicyStatus struct {
	// ObservedGeneration is the generation the status speaks of; -1 before the
	// first look, since kstatus takes an empty status for a good one.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions follow kstatus.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// LastHandledReconcileAt is the newest reconcile.fluxcd.io/requestedAt that
	// was answered.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
}
