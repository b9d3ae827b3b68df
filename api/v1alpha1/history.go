package v1alpha1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The bounds of status.history.
const (
	// MaxHistory is how many versions it has, and MaxHistoryBytes how many bytes as JSON; the oldest are left out.
	MaxHistory      = 10
	MaxHistoryBytes = 8 << 10
	// MaxChanges is how many changes of a version it names.
	MaxChanges = 10
)

// VersionResult is what became of a version.
//
// +kubebuilder:validation:Enum=Allowed;Denied;Deployed;Failed;RolledBack;Unloaded
type VersionResult string

// The results of a version.
const (
	// VersionAllowed: it is sealed, and on its way to the nodes; or another version replaced it before it was deployed.
	VersionAllowed VersionResult = "Allowed"
	// VersionDenied: it was never sealed.
	VersionDenied VersionResult = "Denied"
	// VersionDeployed: it was loaded on each node where it should run.
	VersionDeployed VersionResult = "Deployed"
	// VersionFailed: a node could not load it.
	VersionFailed VersionResult = "Failed"
	// VersionRolledBack: an earlier version replaced it.
	VersionRolledBack VersionResult = "RolledBack"
	// VersionUnloaded: it was unloaded, and nothing replaced it.
	VersionUnloaded VersionResult = "Unloaded"
)

// ApplicationVersion is one version of an application, as its history records it. It is for people. Nothing decides by it: the
// sealed record is the BpfIntent.
type ApplicationVersion struct {
	// Version counts the versions of the application, from 1.
	Version int64 `json:"version"`
	// Time is when it was sealed, or denied.
	Time metav1.Time `json:"time"`
	// Generation is metadata.generation at that time. On a host, Revision is that of the source: a commit.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Revision string `json:"revision,omitempty"`
	// Definition is a hash of what the definition asks nodes for: equal for equal definitions.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Definition string `json:"definition,omitempty"`
	// Serial is the serial of the intent that first sealed it; absent if it was denied.
	// +optional
	Serial int64 `json:"serial,omitempty"`
	// Image is the reference as written, and Digest what it resolved to.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Digest string `json:"digest,omitempty"`
	// Changes name what differs from the version that ran before, such as "variable sampling"; never values. Of more than ten,
	// the last entry counts the others. It is absent from the first version.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=11
	// +kubebuilder:validation:items:MaxLength=128
	Changes []string `json:"changes,omitempty"`
	// RolledBackTo is the version of this list that came back.
	// +optional
	RolledBackTo int64 `json:"rolledBackTo,omitempty"`
	// SignedBy are the signers whose signatures counted, in one line: the first three, and how many more there are.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	SignedBy string `json:"signedBy,omitempty"`
	// Policies is the revision of the policies that allowed it.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Policies string `json:"policies,omitempty"`
	// Result is what became of it.
	Result VersionResult `json:"result"`
	// Message names the rules that denied it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// Summary says in a sentence what the version changed.
func (v ApplicationVersion) Summary() string {
	said := fmt.Sprintf("version %d", v.Version)
	switch {
	case v.RolledBackTo > 0:
		said += fmt.Sprintf(": version %d is back", v.RolledBackTo)
	case len(v.Changes) > 0:
		said += ": " + strings.Join(v.Changes, ", ") + " changed"
	}
	const digest = "image digest"
	if len(v.Changes) > 0 && v.Changes[0] != digest {
		said += "; " + digest + " same"
	}
	return said
}

// CurrentVersion is the newest version that was sealed; nil without one.
func (s *BpfApplicationStatus) CurrentVersion() *ApplicationVersion {
	for i := range s.History {
		if s.History[i].Serial > 0 {
			return &s.History[i]
		}
	}
	return nil
}
