package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// BpfAttachment is an attachment of a BpfApplication on a node, as kubectl get shows it, in the application's namespace. A
// ClusterBpfAttachment has the same fields and no namespace. Its name is made of the node, the application and the place, and stays
// while the attachment does.
type BpfAttachment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Node is the node, and Application whose attachment it is.
	Node        string            `json:"node"`
	Application v1alpha1.Identity `json:"application"`

	Attachment `json:",inline"`
}

// BpfAttachmentList is a list of either kind. Nodes that did not answer are named by warnings of the response.
type BpfAttachmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []BpfAttachment `json:"items"`
}

// NodeViewList is a list of nodes, or of one application on several nodes.
type NodeViewList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []NodeView `json:"items"`
}
