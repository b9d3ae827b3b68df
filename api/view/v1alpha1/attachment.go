package v1alpha1

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The labels of a BpfAttachment, where their values may be those of labels; field selectors have all values.
const (
	LabelNode        = Group + "/node"
	LabelApplication = Group + "/application"
	LabelProgram     = Group + "/program"
)

// BpfAttachment is an attachment of a BpfApplication on a node, as kubectl get shows it, in the application's namespace. A
// ClusterBpfAttachment has the same fields and no namespace. Its name is made of the node, the application and the place, and stays
// while the attachment does.
type BpfAttachment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Node is the node's name.
	Node string `json:"node"`
	// Application is whose attachment it is.
	Application v1alpha1.Identity `json:"application"`
	// ApplicationUID tells it from one of the same name that was deleted, and is still being unloaded; empty from an agent of an older version.
	ApplicationUID string `json:"applicationUID,omitempty"`

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

// Attachments are the attachments of a node, in the order of their names. An application that should run and has none is listed, too: with its
// own state and message, and no program.
func Attachments(n NodeView) []BpfAttachment {
	var all []BpfAttachment
	seen := map[string]int{}
	for _, a := range n.Applications {
		for _, at := range orItself(a) {
			b := NewAttachment(n.Name, a.Identity, at)
			b.ApplicationUID = a.UID
			if seen[b.Name]++; seen[b.Name] > 1 {
				b.Name = attachmentName(b, seen[b.Name])
			}
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b BpfAttachment) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// orItself are the attachments of an application, or itself where it should have some.
func orItself(a Application) []Attachment {
	if len(a.Attachments) > 0 {
		return a.Attachments
	}
	switch a.State {
	case v1alpha1.NodeFailed, v1alpha1.NodeUnsupported, v1alpha1.NodePending, v1alpha1.NodeWaiting:
		return []Attachment{{State: string(a.State), Message: a.Message}}
	case v1alpha1.NodeLoaded, v1alpha1.NodeRetained, v1alpha1.NodeNotSelected, v1alpha1.NodeRemoved:
	}
	return nil
}

// NewAttachment is an attachment of an application on a node.
func NewAttachment(node string, application v1alpha1.Identity, a Attachment) BpfAttachment {
	b := BpfAttachment{TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion, Kind: KindClusterBpfAttachment}, Node: node, Application: application, Attachment: a}
	if application.Kind == v1alpha1.KindBpfApplication {
		b.Kind, b.Namespace = KindBpfAttachment, application.Namespace
	}
	b.Name = attachmentName(b, 1)
	b.Labels = map[string]string{}
	for label, value := range map[string]string{LabelNode: node, LabelApplication: application.Name, LabelProgram: a.Program} {
		if value != "" && len(validation.IsValidLabelValue(value)) == 0 {
			b.Labels[label] = value
		}
	}
	return b
}

// The parts of the name of an attachment: of the application's and the node's names, so many bytes count. The name of an object has
// at most 253.
const (
	maxNodePart        = 160
	maxApplicationPart = 80
	hashPart           = 10
)

// attachmentName is APPLICATION.NODE.HASH, where the hash is of the application, the program and the place, and of which of several
// equal ones it is.
func attachmentName(b BpfAttachment, nth int) string {
	target, _ := json.Marshal(b.Target) // It is of texts and numbers.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%d", b.Application, b.Program, b.Hook, target, nth))
	application := strings.TrimRight(b.Application.Name[:min(len(b.Application.Name), maxApplicationPart)], ".-")
	return application + NodePart(b.Node) + "." + hex.EncodeToString(sum[:])[:hashPart]
}

// NodePart is what the name of an attachment on the node has between the application's name and the hash.
func NodePart(node string) string {
	return "." + strings.TrimRight(node[:min(len(node), maxNodePart)], ".-")
}

// IsOn reports whether the name of an attachment may be one on the node.
func IsOn(name, node string) bool {
	hash := len(name) - hashPart - 1
	return hash > 0 && name[hash] == '.' && strings.HasSuffix(name[:hash], NodePart(node))
}
