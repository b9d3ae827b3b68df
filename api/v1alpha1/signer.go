package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BpfSigner is a named party whose signatures count.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=bpfsigner,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Revoked",type=boolean,JSONPath=`.spec.revoked`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type BpfSigner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfSignerSpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BpfSignerStatus `json:"status,omitzero"`
}

// BpfSignerList is a list of BpfSigner.
//
// +kubebuilder:object:root=true
type BpfSignerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfSigner `json:"items"`
}

// BpfSignerSpec says how a signature is recognised as the signer's. Exactly
// one of Key and Keyless is given.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) != has(self.keyless)",message="exactly one of key and keyless is given"
type BpfSignerSpec struct {
	// Key is a public key.
	// +optional
	Key *KeySigner `json:"key,omitempty"`

	// Keyless is an identity that a certificate authority such as Fulcio
	// vouches for.
	// +optional
	Keyless *KeylessSigner `json:"keyless,omitempty"`

	// Annotations must all be in the signed payload for a signature to count.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Revoked takes the signer's trust away: its signatures count no more, and
	// what only they carried is unloaded.
	// +optional
	Revoked bool `json:"revoked,omitempty"`
}

// KeySigner is a party with a key pair.
type KeySigner struct {
	// PublicKey is PEM, as cosign.pub holds it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	PublicKey string `json:"publicKey"`
}

// KeylessSigner is a party known by the identity in its certificate.
type KeylessSigner struct {
	// TrustedRoot is the sigstore trusted root as JSON (media type
	// application/vnd.dev.sigstore.trustedroot+json;version=0.1): the
	// certificate authorities, transparency logs and timestamp authorities that
	// count. Nothing is fetched.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=524288
	TrustedRoot string `json:"trustedRoot"`

	// Identities lists who counts; one of them must match.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Identities []IdentityMatch `json:"identities"`

	// InsecureIgnoreTlog accepts signatures that no transparency log recorded.
	// +optional
	InsecureIgnoreTlog bool `json:"insecureIgnoreTlog,omitempty"`

	// InsecureIgnoreSCT accepts certificates without a certificate timestamp.
	// +optional
	InsecureIgnoreSCT bool `json:"insecureIgnoreSCT,omitempty"`
}

// IdentityMatch is a pair of issuer and subject, each exact or a regular
// expression that matches the whole string.
//
// +kubebuilder:validation:XValidation:rule="has(self.issuer) != has(self.issuerRegExp)",message="exactly one of issuer and issuerRegExp is given"
// +kubebuilder:validation:XValidation:rule="has(self.subject) != has(self.subjectRegExp)",message="exactly one of subject and subjectRegExp is given"
type IdentityMatch struct {
	// Issuer is the OIDC issuer, such as https://accounts.example.com.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Issuer string `json:"issuer,omitempty"`
	// IssuerRegExp is an RE2 expression for the issuer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	IssuerRegExp string `json:"issuerRegExp,omitempty"`
	// Subject is the certificate's subject alternative name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Subject string `json:"subject,omitempty"`
	// SubjectRegExp is an RE2 expression for the subject.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	SubjectRegExp string `json:"subjectRegExp,omitempty"`
}

// BpfSignerStatus is what Skep knows of a signer.
type BpfSignerStatus struct {
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
