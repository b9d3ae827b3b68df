package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CueArtifact renders CUE, YAML and JSON of a Flux source, checks all of it against the
// schema, and publishes the definitions as a Flux ExternalArtifact of its own name and
// namespace, which a Flux Kustomization applies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.artifact.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type CueArtifact struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CueArtifactSpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status CueArtifactStatus `json:"status,omitzero"`
}

// CueArtifactList is a list of CueArtifact.
//
// +kubebuilder:object:root=true
type CueArtifactList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CueArtifact `json:"items"`
}

// CueArtifactSpec says what is rendered, from which source, and when it is published.
type CueArtifactSpec struct {
	// SourceRef names the Flux source.
	SourceRef CueArtifactSource `json:"sourceRef"`

	// Path is the folder or the file in the source that is rendered.
	// +optional
	// +kubebuilder:default:="./"
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`

	// Package renders the CUE package of that name in the folder alone: no other package,
	// no folder below, no YAML and no JSON.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(_|[A-Za-z][A-Za-z0-9_]*)$`
	Package string `json:"package,omitempty"`

	// Expressions are CUE expressions of the package, such as apps.edge. Only what they
	// give is rendered.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	Expressions []string `json:"expressions,omitempty"`

	// Tags are values of fields with an attribute @tag in CUE. At most 16 of them have
	// valueFrom.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.filter(t, has(t.valueFrom)).size() <= 16",message="at most 16 tags have valueFrom: put several values into one, or give them by value"
	// +listType=map
	// +listMapKey=name
	Tags []CueTag `json:"tags,omitempty"`

	// Interval is how often the source's status, and ConfigMaps and Secrets of tags, are
	// looked at without an event; less than 5s is 5s. A change of the source is seen at once.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}([.][0-9]{1,9})?(ms|s|m|h)){1,3}$`
	Interval metav1.Duration `json:"interval"`

	// RetryInterval is how long after a failure that may pass another attempt is made.
	// Absent means the interval; less than 5s is 5s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}([.][0-9]{1,9})?(ms|s|m|h)){1,3}$`
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// Timeout is how long fetching, rendering and evaluating may take together, five minutes
	// at most. Applications that are not evaluated by then are listed as Unknown.
	// +optional
	// +kubebuilder:default:="60s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}([.][0-9]{1,9})?(ms|s|m)){1,3}$`
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Suspend keeps what is published as it is.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// RequireVerifiedSource renders a source only while its condition SourceVerified is
	// True, for its present generation.
	// +optional
	RequireVerifiedSource bool `json:"requireVerifiedSource,omitempty"`

	// RequireAllowed publishes nothing new while any application in it is denied, or is
	// not evaluated yet. What was published stays.
	// +optional
	RequireAllowed bool `json:"requireAllowed,omitempty"`
}

// CueArtifactSource names a Flux source.
type CueArtifactSource struct {
	// APIVersion is the API version of the source.
	// +optional
	// +kubebuilder:validation:Enum=source.toolkit.fluxcd.io/v1
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind is the kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact
	Kind string `json:"kind"`

	// Name is the name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Namespace is the namespace of the source, by default the CueArtifact's. The controller
	// may be set to read no other namespace (--no-cross-namespace-refs).
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// CueTag is a value for fields with an attribute @tag.
//
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.valueFrom)",message="at most one of value and valueFrom is given"
type CueTag struct {
	// Name is the name of the tag.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`

	// Value is the value of the tag. Without value and valueFrom it is a boolean tag, which is true.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value *string `json:"value,omitempty"`

	// ValueFrom takes the value from a ConfigMap or a Secret of the CueArtifact's own
	// namespace. The author of the CUE can put a Secret's value into a definition.
	// +optional
	ValueFrom *CueTagSource `json:"valueFrom,omitempty"`
}

// CueTagSource is where the value of a tag is.
//
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) != has(self.secretKeyRef)",message="exactly one of configMapKeyRef and secretKeyRef is given"
type CueTagSource struct {
	// ConfigMapKeyRef is a key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *CueKeyRef `json:"configMapKeyRef,omitempty"`
	// SecretKeyRef is a key of a Secret.
	// +optional
	SecretKeyRef *CueKeyRef `json:"secretKeyRef,omitempty"`
}

// CueKeyRef is a key of a ConfigMap or a Secret in the CueArtifact's own namespace.
type CueKeyRef struct {
	// Name is the name of the ConfigMap or Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key is the key in it, of at most 4096 bytes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// CueArtifactStatus is the result of the last rendering.
type CueArtifactStatus struct {
	// ObservedGeneration is the generation that the status describes; -1 before the
	// first reconcile, since kstatus takes an empty status for a good one.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions follow kstatus.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Artifact is the published archive. It stays published while a newer revision cannot be rendered.
	// +optional
	Artifact *PublishedArtifact `json:"artifact,omitempty"`

	// LastAttemptedRevision is the revision of the source at the last attempt to render,
	// successful or not.
	// +optional
	LastAttemptedRevision string `json:"lastAttemptedRevision,omitempty"`

	// LastHandledReconcileAt is the newest reconcile.fluxcd.io/requestedAt that
	// was answered.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`

	// Applications are the applications of the last rendering, with the answers of the policies: first
	// denied ones, then those without a verdict. At most 500 applications and 192 KiB are listed; the
	// message of Ready counts the others. If a tag has its value from a Secret, it counts all of them.
	// +optional
	// +kubebuilder:validation:MaxItems=500
	// +listType=atomic
	Applications []RenderedApplication `json:"applications,omitempty"`
}

// PublishedArtifact describes the published archive: the fields of Flux's Artifact that a
// CueArtifact sets.
type PublishedArtifact struct {
	// Revision is REVISION/sha256:DIGEST: the source's revision when this content was
	// rendered first, and the digest of the content. Equal content is no new revision.
	Revision string `json:"revision"`
	// Digest is the digest of the archive, as sha256:….
	Digest string `json:"digest"`
	// URL is where the archive is served.
	URL string `json:"url"`
	// Path is the path of the archive below the root of the server.
	Path string `json:"path"`
	// Size is the size of the archive in bytes.
	// +optional
	Size int64 `json:"size,omitempty"`
	// LastUpdateTime is when this revision was published.
	LastUpdateTime metav1.Time `json:"lastUpdateTime"`
}

// RenderedApplication is a rendered application with the answer of the policies. It is not in the
// cluster yet: a policy that reads who applied it may answer differently there.
type RenderedApplication struct {
	// Kind is BpfApplication or ClusterBpfApplication.
	Kind string `json:"kind"`
	// Namespace is the namespace of the application; default, if the definition names none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the name of the application.
	Name string `json:"name"`
	// Allowed is Unknown until the application is evaluated.
	// +kubebuilder:validation:Enum=True;False;Unknown
	Allowed metav1.ConditionStatus `json:"allowed"`
	// Rules are the rules that deny the application, at most 8.
	// +optional
	// +listType=atomic
	Rules []string `json:"rules,omitempty"`
	// Message is the first reason and its fix, or why there is no verdict.
	// +optional
	Message string `json:"message,omitempty"`
}
