package ui

import (
	"context"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// Source is where the page's data come from: the socket of a host, or the API server of a cluster.
type Source interface {
	// Overview describes applications, nodes, signers and policies, as far as the user may see them.
	Overview(ctx context.Context) (Overview, error)
	// Node describes a node.
	Node(ctx context.Context, name string) (view.NodeView, error)
	// Application has nodes describe an application; the list's Continue is not empty if there are more than those.
	Application(ctx context.Context, id v1alpha1.Identity) (view.NodeViewList, error)
}

// Overview is what the page shows before anybody asks for a node.
type Overview struct {
	// Place names the host or the cluster, and Cluster says which it is.
	Place   string `json:"place"`
	Cluster bool   `json:"cluster"`
	// Origin is where definitions come from; empty in a cluster, where each application has its own.
	Origin Origin `json:"origin,omitzero"`

	Nodes        []Node        `json:"nodes"`
	Applications []Application `json:"applications"`
	Signers      []Signer      `json:"signers"`
	Policies     []Policy      `json:"policies"`
	// Needs are the rights without which something is missing, as "list bpfnodes.skep.dev".
	Needs []string `json:"needs,omitempty"`
	// Notes say what waits for a person, or could not be read, and why.
	Notes []string `json:"notes"`
}

// Origin is where definitions come from.
type Origin struct {
	Text     string `json:"text,omitempty"`
	Revision string `json:"revision,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Node is a row of the fleet.
type Node struct {
	Name      string `json:"name"`
	Kernel    string `json:"kernel,omitempty"`
	Agent     string `json:"agent,omitempty"`
	Loaded    int32  `json:"loaded"`
	Failed    int32  `json:"failed"`
	Programs  int32  `json:"programs"`
	Unmanaged int32  `json:"unmanaged"`
}

// Application is an application, with its way from a commit to the nodes.
type Application struct {
	v1alpha1.Identity

	Image   string   `json:"image,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Signers []string `json:"signers"`
	// Policies are those that decided; Skep names them in clusters.
	Policies []string          `json:"policies"`
	Reasons  []policies.Reason `json:"reasons"`
	Warnings []policies.Reason `json:"warnings"`
	Audited  []policies.Reason `json:"audited"`
	// Stages are its way, in order.
	Stages []Stage `json:"stages"`
	// Ready is the condition's status, and Why its reason.
	Ready string `json:"ready"`
	Why   string `json:"why,omitempty"`
	// States has a letter for each of the nodes, in their order.
	States string `json:"states"`
	// Messages are what nodes say, by their places, of at most maxMessages of them.
	Messages map[int]string `json:"messages,omitempty"`
	// Changed is when a condition changed last.
	Changed time.Time `json:"changed,omitzero"`
}

// Signer is a party whose signatures count.
type Signer struct {
	Name string `json:"name"`
	// Kind says how it is known: key or identity, and Detail more of it.
	Kind    string `json:"kind,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Revoked bool   `json:"revoked,omitempty"`
}

// Policy decides on applications.
type Policy struct {
	Name string `json:"name"`
	Mode string `json:"mode,omitempty"`
	// Scope is the namespaces that it evaluates.
	Scope string `json:"scope,omitempty"`
	Ready string `json:"ready,omitempty"`
}

// maxMessages bounds the messages of nodes on one application, maxMessage the bytes of each and maxAllMessages those of all.
const (
	maxMessages    = 200
	maxMessage     = 512
	maxAllMessages = 8 << 20
)

// letterOf is how a state stands in Application.States.
func letterOf(s v1alpha1.NodeState) byte {
	switch s {
	case v1alpha1.NodeLoaded:
		return 'L'
	case v1alpha1.NodePending:
		return 'P'
	case v1alpha1.NodeWaiting:
		return 'W'
	case v1alpha1.NodeFailed:
		return 'F'
	case v1alpha1.NodeUnsupported:
		return 'U'
	case v1alpha1.NodeRetained:
		return 'R'
	case v1alpha1.NodeNotSelected:
		return 'N'
	case v1alpha1.NodeRemoved:
		return 'X'
	}
	return unreported
}

// unreported is the letter of a node that reports nothing of an application.
const unreported = '.'
