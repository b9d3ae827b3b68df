// Package viewread is the format of requests of people to see what runs on a node, which the controller seals. It decides on no
// right, and describes no node.
package viewread

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
)

// PayloadType is the DSSE payload type of a request to see a node.
const PayloadType = "application/vnd.skep.view+json"

// MaxView bounds a NodeView as JSON, in bytes: an agent leaves out what does not fit, and says so in it.
const MaxView = 8 << 20

// Request is a request of a person to see what runs on a node. Its answer holds what is in the scope and nothing else.
type Request struct {
	noderequest.Header
	// Scope is what the person may see.
	Scope view.Scope `json:"scope,omitzero"`
	// Attachments asks for the attachments: each line of the answer is a BpfAttachment, in the order of their names. Without it,
	// the answer is a line with the NodeView.
	Attachments bool `json:"attachments,omitempty"`
}

// PayloadType implements noderequest.Request.
func (Request) PayloadType() string { return PayloadType }

// Check implements noderequest.Request.
func (r Request) Check() error {
	s := r.Scope
	switch {
	case s.Kind != "" && s.Kind != v1alpha1.KindBpfApplication && s.Kind != v1alpha1.KindClusterBpfApplication:
		return fmt.Errorf("kind %.32q is not known", s.Kind)
	case s.Namespace != "" && s.Kind != v1alpha1.KindBpfApplication, s.Name != "" && s.Kind == "":
		return errors.New("its scope has a name or namespace of no kind")
	case len(s.Namespace) > 63, len(s.Name) > 253:
		return errors.New("its scope has a name or namespace that is too long")
	}
	return nil
}
