package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BpfSigner is a named party whose signatures count.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=bpfsigner,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Revoked",type=boolean,JSONPath=`.spec.revoked`
// +kubebuilder:printcolumn:name="Revoked after",type=string,JSONPath=`.spec.revokedAfter`,priority=1
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

// BpfSignerSpec says how a signature is recognised as the signer's, and which of them
// count. Exactly one of Key and Keyless is given.
//
// A trusted time is one at which a transparency log or a timestamp authority (RFC 3161)
// of the signer's trusted root saw the signature; the earliest where there are several.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) != has(self.keyless)",message="exactly one of key and keyless is given"
// +kubebuilder:validation:XValidation:rule="!has(self.notBefore) || !has(self.notAfter) || self.notBefore < self.notAfter",message="notBefore is earlier than notAfter"
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

	// CountAttestations has an attestation of the signer count as a signature as well,
	// whatever it says of the image: the provenance of a build service signs an image
	// that nothing else signs.
	// +optional
	CountAttestations bool `json:"countAttestations,omitempty"`

	// Repository has signatures of the signer, too, in addition to the repository of the
	// image, such as registry.example.com/signatures: the value of COSIGN_REPOSITORY
	// when they were made. No more than four repositories of all signers are read, in alphabetical
	// order, with Skep's own credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`
	Repository string `json:"repository,omitempty"`

	// NotBefore is the time from which on a signature counts, by its trusted time. One
	// without a trusted time does not count.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$`
	NotBefore *metav1.Time `json:"notBefore,omitempty"`

	// NotAfter is the time from which on a signature counts no more, by its trusted
	// time. One without a trusted time does not count.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$`
	NotAfter *metav1.Time `json:"notAfter,omitempty"`

	// Revoked takes the signer's trust away: its signatures count no more, and
	// what only they carried is unloaded.
	// +optional
	Revoked bool `json:"revoked,omitempty"`

	// RevokedAfter takes the signer's trust away from a time on: signatures with a
	// trusted time before it stay valid. Those at or after it, and those without a
	// trusted time, are revoked as by revoked.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$`
	RevokedAfter *metav1.Time `json:"revokedAfter,omitempty"`
}

// KeySigner is a party with a key pair.
//
// +kubebuilder:validation:XValidation:rule="has(self.trustedRoot) || !has(self.transparencyLog)",message="transparencyLog needs trustedRoot, which names the logs that count"
// +kubebuilder:validation:XValidation:rule="has(self.trustedRoot) || !has(self.timestamp)",message="timestamp needs trustedRoot, which names the timestamp authorities that count"
type KeySigner struct {
	// PublicKey is PEM, as cosign.pub holds it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	PublicKey string `json:"publicKey"`

	// TrustedRoot is a sigstore trusted root as in KeylessSigner, for its transparency
	// logs and timestamp authorities: they give signatures a trusted time. Without it
	// none of the key's signatures has one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=524288
	TrustedRoot string `json:"trustedRoot,omitempty"`

	// TransparencyLog Required: only what a transparency log of TrustedRoot recorded
	// counts.
	// +optional
	TransparencyLog Demand `json:"transparencyLog,omitempty"`

	// Timestamp Required: only what a timestamp authority of TrustedRoot stamped
	// counts.
	// +optional
	Timestamp Demand `json:"timestamp,omitempty"`
}

// Demand says what a signer asks for. Absent means that it is not asked for.
//
// +kubebuilder:validation:Enum=Required
type Demand string

// DemandRequired says that nothing counts without it.
const DemandRequired Demand = "Required"

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
	// Claims of the certificate that must match as well, all of them: what the
	// certificate authority learned from the CI that runs the build.
	// +optional
	// +kubebuilder:validation:MaxItems=19
	// +listType=map
	// +listMapKey=name
	Claims []ClaimMatch `json:"claims,omitempty"`
}

// ClaimMatch is what a claim of a certificate must be: exact, or a regular expression
// that matches the whole string. A claim that the certificate does not make matches
// nothing.
//
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueRegExp)",message="exactly one of value and valueRegExp is given"
type ClaimMatch struct {
	// Name is the claim, by the name that Fulcio gives its extension
	// (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md).
	// +kubebuilder:validation:Enum=buildSignerURI;buildSignerDigest;runnerEnvironment;sourceRepositoryURI;sourceRepositoryDigest;sourceRepositoryRef;sourceRepositoryIdentifier;sourceRepositoryOwnerURI;sourceRepositoryOwnerIdentifier;buildConfigURI;buildConfigDigest;buildTrigger;runInvocationURI;sourceRepositoryVisibilityAtSigning;githubWorkflowTrigger;githubWorkflowSHA;githubWorkflowName;githubWorkflowRepository;githubWorkflowRef
	Name string `json:"name"`
	// Value is what the claim must be.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`
	// ValueRegExp is an RE2 expression for the claim.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ValueRegExp string `json:"valueRegExp,omitempty"`
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
