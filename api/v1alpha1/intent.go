package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BpfIntent is the sealed verdict that agents act on, one per application and
// one write per change. Its name is the application's UID. Only the
// controller writes it, and an agent trusts only its seal.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bpfintent,categories=skep
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.application.kind`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.application.namespace`
// +kubebuilder:printcolumn:name="Application",type=string,JSONPath=`.spec.application.name`
// +kubebuilder:printcolumn:name="Serial",type=integer,JSONPath=`.spec.serial`
// +kubebuilder:printcolumn:name="Tombstone",type=boolean,JSONPath=`.spec.tombstone`
// +kubebuilder:printcolumn:name="Digest",type=string,JSONPath=`.spec.digest`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BpfIntent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfIntentSpec `json:"spec"`
}

// BpfIntentList is a list of BpfIntent.
//
// +kubebuilder:object:root=true
type BpfIntentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfIntent `json:"items"`
}

// BpfIntentSpec has the sealed intent, and fields of its contents for people to read.
type BpfIntentSpec struct {
	// Envelope is the sealed intent: a DSSE envelope as JSON.
	Envelope []byte `json:"envelope"`

	// Application, Serial, Tombstone and Digest repeat what the envelope says,
	// for people. Nothing acts on them.
	Application Identity `json:"application"`
	Serial      int64    `json:"serial"`
	// +optional
	Tombstone bool `json:"tombstone,omitempty"`
	// +optional
	Digest string `json:"digest,omitempty"`
}
