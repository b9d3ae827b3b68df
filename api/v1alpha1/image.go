package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BpfImage is what Skep learned of one image digest: who signed it and what its
// bytecode does. Its name is the digest, with '-' for ':'. Only the
// controller writes it; every replica answers from it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bpfimage,categories=skep
// +kubebuilder:printcolumn:name="Repository",type=string,JSONPath=`.spec.repository`
// +kubebuilder:printcolumn:name="Signers",type=string,JSONPath=`.spec.signers`
// +kubebuilder:printcolumn:name="Programs",type=string,JSONPath=`.spec.programs`
// +kubebuilder:printcolumn:name="Helpers",type=string,JSONPath=`.spec.helpers`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BpfImage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfImageSpec `json:"spec"`
}

// BpfImageList is a list of BpfImage.
//
// +kubebuilder:object:root=true
type BpfImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfImage `json:"items"`
}

// BpfImageSpec has what registries stored next to the image, and fields of it for
// people to read.
type BpfImageSpec struct {
	// Memory holds what was collected of each repository that has the image, in
	// gzip. signatures.* are its signatures as JSON, not sealed: who reads them
	// tries every one again, and believes none of another digest. image.* is a DSSE
	// envelope of the controller's with the image itself.
	// +optional
	Memory map[string][]byte `json:"memory,omitempty"`

	// Repository, Signers, Programs and Helpers repeat what was learned, for
	// people. Nothing acts on them.
	// +optional
	Repository string `json:"repository,omitempty"`
	// +optional
	// +listType=atomic
	Signers []string `json:"signers,omitempty"`
	// +optional
	// +listType=atomic
	Programs []string `json:"programs,omitempty"`
	// +optional
	// +listType=atomic
	Helpers []string `json:"helpers,omitempty"`
}
