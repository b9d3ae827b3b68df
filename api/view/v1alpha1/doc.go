// Package v1alpha1 is the API group view.skep.dev: what the agent of a node sees there now. It is read by people and programs without a right on
// the node, from the socket of a host and from the API server of a cluster. It holds no contents of maps, no values of variables and no secrets,
// and nothing of it is stored.
//
// +groupName=view.skep.dev
package v1alpha1

import "github.com/skep-dev/skep/api/v1alpha1"

//go:generate sh -c "go run -modfile=../../../tools.mod sigs.k8s.io/controller-tools/cmd/controller-gen crd:allowDangerousTypes=true,generateEmbeddedObjectMeta=false paths=. output:crd:stdout | go run ./genopenapi ../../../controller/views/openapi.json"

// Group and Version are those of the API, and GroupVersion is both.
const (
	Group        = "view." + v1alpha1.Group
	Version      = "v1alpha1"
	GroupVersion = Group + "/" + Version
)

// The kinds of the API.
const (
	KindNodeView             = "NodeView"
	KindBpfAttachment        = "BpfAttachment"
	KindClusterBpfAttachment = "ClusterBpfAttachment"
)
