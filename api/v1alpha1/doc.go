// Package v1alpha1 holds the kinds of the API group skep.dev: what users and
// admins write, and the conditions Skep reports on it.
//
// It owns the shape of the data and nothing else. It validates nothing beyond
// what its markers say, and imports only apimachinery: the rules that join
// fields to hooks live in package gate, the CUE twin of these types in package
// schemas.
//
// +kubebuilder:object:generate=true
// +groupName=skep.dev
package v1alpha1

//go:generate go run -modfile=../../tools.mod sigs.k8s.io/controller-tools/cmd/controller-gen object paths=.
//go:generate go run -modfile=../../tools.mod sigs.k8s.io/controller-tools/cmd/controller-gen crd:generateEmbeddedObjectMeta=false paths=. output:crd:dir=../../charts/skep/files/crds
//go:generate go run ./gencrds ../../charts/skep/files/crds
//go:generate go run ./genpage ../../charts/skep/files/crds ../../docs/api.md
//go:generate go run ./genjsonschema ../../charts/skep/files/crds ../../schemas/jsonschema/skep.dev.json

// Group is the API group of every kind in this package.
const Group = "skep.dev"

// Version is the version of every kind in this package.
const Version = "v1alpha1"

// APIVersion is the apiVersion that every object of this package carries.
const APIVersion = Group + "/" + Version

// The kinds of the group that users and admins write.
const (
	KindBpfApplication        = "BpfApplication"
	KindClusterBpfApplication = "ClusterBpfApplication"
	KindBpfPolicy             = "BpfPolicy"
	KindClusterBpfPolicy      = "ClusterBpfPolicy"
	KindBpfSigner             = "BpfSigner"
	// KindCueArtifact is of the cluster alone, and not of a source of definitions.
	KindCueArtifact = "CueArtifact"
)

// The kinds that only Skep itself writes.
const (
	KindBpfImage  = "BpfImage"
	KindBpfIntent = "BpfIntent"
	KindBpfNode   = "BpfNode"
)
