package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// BpfApplication is a BpfApplication of skep.dev as kubectl describe shows it: its status, and where its programs are attached. A
// ClusterBpfApplication has the same fields and no namespace. Kind, name and UID are those of the application, so that kubectl finds its events.
type BpfApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Status is that of the application.
	Status v1alpha1.BpfApplicationStatus `json:"status,omitzero"`
	// Attachments are at most a hundred, by node: nodes where the application failed or waits come first, and on each node what is not
	// attached. A list has none.
	Attachments []NodeAttachment `json:"attachments,omitempty"`
	// LeftOut says what is not shown, such as that of nodes that did not answer, one sentence each.
	LeftOut []string `json:"leftOut,omitempty"`
}

// NodeAttachment is an attachment on a node.
type NodeAttachment struct {
	// Node is the node's name.
	Node       string `json:"node"`
	Attachment `json:",inline"`
}

// BpfApplicationList is a list of either kind, without attachments.
type BpfApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []BpfApplication `json:"items"`
}
