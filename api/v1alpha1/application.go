package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BpfApplication is the eBPF programs one team wants on its nodes: the bytecode
// they come from, the values they are given and the places they attach to. Its
// hooks are limited to those a namespace can hold; see package hook.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=bpfapp,categories=skep
type BpfApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BpfApplicationSpec   `json:"spec"`
	Status BpfApplicationStatus `json:"status,omitzero"`
}

// ClusterBpfApplication is a BpfApplication that belongs to no namespace and
// may use every hook.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cbpfapp,categories=skep
type ClusterBpfApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BpfApplicationSpec   `json:"spec"`
	Status BpfApplicationStatus `json:"status,omitzero"`
}

// BpfApplicationSpec is the body both scopes share.
type BpfApplicationSpec struct {
	// Bytecode is where the object comes from.
	Bytecode Bytecode `json:"bytecode"`

	// NodeSelector chooses the nodes; absent means every node.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Variables are values for the object's global variables, by name, checked
	// against the object's own BTF. Integers above 2^53 are written as decimal
	// or 0x strings, because JSON numbers lose bits there.
	// +optional
	Variables map[string]apiextensionsv1.JSON `json:"variables,omitempty"`

	// Maps overrides what the object says of its maps, by name.
	// +optional
	Maps map[string]Map `json:"maps,omitempty"`

	// Programs are the functions of the object to load, each named once.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Programs []Program `json:"programs"`

	// Suspend freezes the application as it is: nothing is loaded, updated or
	// unloaded until it is lifted.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// Bytecode names an OCI image that holds one eBPF object.
type Bytecode struct {
	// Image is a reference with a tag or a digest: registry/repository:tag,
	// registry/repository@sha256:…, or, in node mode, oci:DIR for an OCI layout
	// on disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
}

// Map overrides the definition of one map of the object.
type Map struct {
	// MaxEntries replaces the object's max_entries.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxEntries *uint32 `json:"maxEntries,omitempty"`
}

// Program is one function of the object and the places it attaches to.
type Program struct {
	// Name is the function's name in the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// Attach lists where the program attaches. Absent, the program attaches
	// once, as its section says.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Attach []Attachment `json:"attach,omitempty"`
}

// Attachment is one hook and the fields of its target shape. Which fields a
// hook takes is decided by its row in hook.Table.
type Attachment struct {
	// Hook is a name of hook.Table, in libbpf's section vocabulary: xdp,
	// tcx/ingress, tracepoint, uprobe, cgroup/connect4. Absent, it is the one
	// the program's section names.
	// +optional
	Hook string `json:"hook,omitempty"`

	// Interfaces chooses network devices (shape NetworkDevice).
	// +optional
	Interfaces *Interfaces `json:"interfaces,omitempty"`

	// Priority orders programs on an ordered hook: lower runs first. Range 0
	// to 1000, default 500.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Priority *int32 `json:"priority,omitempty"`

	// ProceedOn lists the verdicts after which the next program of an XDP chain
	// runs: Aborted, Drop, Pass, Tx, Redirect. Default Pass.
	// +optional
	ProceedOn []string `json:"proceedOn,omitempty"`

	// Function is a kernel function (shape KernelFunction).
	// +optional
	Function string `json:"function,omitempty"`

	// Tracepoint is category/name for tracepoint, and a name for raw_tp and
	// tp_btf (shape Tracepoint).
	// +optional
	Tracepoint string `json:"tracepoint,omitempty"`

	// Cgroup is the path of a cgroup below the cgroup2 mount; "/" is its root
	// (shape Cgroup).
	// +optional
	Cgroup string `json:"cgroup,omitempty"`

	// Binary is an executable or library and a place in it (shape UserBinary).
	// +optional
	Binary *UserBinary `json:"binary,omitempty"`

	// NetworkNamespace is the path of a network namespace, such as
	// /run/netns/blue; absent means the node's own (shape NetworkNamespace).
	// +optional
	NetworkNamespace string `json:"networkNamespace,omitempty"`
}

// Interfaces chooses network devices of a node. At least one of Names and
// Primary is given.
type Interfaces struct {
	// Names are interface names or globs in path.Match syntax, such as eth*.
	// +optional
	Names []string `json:"names,omitempty"`

	// Exclude takes away what Names and Primary chose; same syntax.
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// Primary chooses the interface of the default route.
	// +optional
	Primary bool `json:"primary,omitempty"`
}

// UserBinary is a place in an executable or a shared library.
type UserBinary struct {
	// Path is absolute, in the node's file system.
	Path string `json:"path"`

	// Symbol is a function of the binary. Symbol or Offset is given, or both,
	// and then Offset counts from the symbol.
	// +optional
	Symbol string `json:"symbol,omitempty"`

	// Offset is in bytes.
	// +optional
	Offset uint64 `json:"offset,omitempty"`

	// PID limits the probe to one process; 0 means every process.
	// +optional
	PID int32 `json:"pid,omitempty"`
}

// BpfApplicationStatus is what Skep knows of an application.
type BpfApplicationStatus struct {
	// ObservedGeneration is the generation the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions follow kstatus (Ready, Reconciling, Stalled) and the pipeline
	// (Verified, Allowed, Deployed).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Digest is what the image reference resolved to, as sha256:….
	// +optional
	Digest string `json:"digest,omitempty"`

	// Signers are the names of the signers whose signatures counted.
	// +optional
	Signers []string `json:"signers,omitempty"`
}

// Application is either scope's application, seen alike. It is what every door
// hands to the gate.
//
// +kubebuilder:object:generate=false
type Application interface {
	metav1.Object
	// Identity tells kind, namespace and name.
	Identity() Identity
	// Body returns the shared spec, to be read and not written.
	Body() *BpfApplicationSpec
}

// Identity names one application across kinds and namespaces.
type Identity struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is namespace/name for a BpfApplication and name for a
// ClusterBpfApplication.
func (i Identity) String() string {
	if i.Namespace == "" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// Identity implements Application.
func (a *BpfApplication) Identity() Identity {
	return Identity{Kind: KindBpfApplication, Namespace: a.Namespace, Name: a.Name}
}

// Body implements Application.
func (a *BpfApplication) Body() *BpfApplicationSpec { return &a.Spec }

// Identity implements Application.
func (a *ClusterBpfApplication) Identity() Identity {
	return Identity{Kind: KindClusterBpfApplication, Name: a.Name}
}

// Body implements Application.
func (a *ClusterBpfApplication) Body() *BpfApplicationSpec { return &a.Spec }

// DefaultPriority is the priority of an attachment that names none.
const DefaultPriority int32 = 500

// The conditions of an application, in the order of the pipeline.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
	ConditionVerified    = "Verified"
	ConditionAllowed     = "Allowed"
	ConditionDeployed    = "Deployed"
)
