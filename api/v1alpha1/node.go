package v1alpha1

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BpfNode is the report of a node's agent: what the kernel supports, the state of
// every application on the node, and the BPF programs in the kernel, Skep's or
// not. It has the node's name and is owned by the Node. Only the node's agent
// writes it.
//
// It has no status subresource, so that one patch carries all changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bpfnode,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.agent.version`
// +kubebuilder:printcolumn:name="Kernel",type=string,JSONPath=`.status.kernel.release`
// +kubebuilder:printcolumn:name="Loaded",type=integer,JSONPath=`.status.counts.loaded`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.counts.failed`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.counts.pods`
// +kubebuilder:printcolumn:name="Programs",type=integer,JSONPath=`.status.counts.programs`
// +kubebuilder:printcolumn:name="Unmanaged",type=integer,JSONPath=`.status.counts.unmanaged`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BpfNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status BpfNodeStatus `json:"status,omitzero"`
}

// BpfNodeList is a list of BpfNode.
//
// +kubebuilder:object:root=true
type BpfNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfNode `json:"items"`
}

// MaxBpfNodeBytes bounds a BpfNode as JSON. What does not fit is counted and
// left to the agent's local socket.
const MaxBpfNodeBytes = 32 << 10

// MaxUnmanagedPrograms bounds the unmanaged programs a BpfNode lists.
const MaxUnmanagedPrograms = 100

// MaxNamespaceShares bounds the namespaces a BpfNode lists.
const MaxNamespaceShares = 64

// BpfNodeStatus is all one agent reports.
type BpfNodeStatus struct {
	// Agent is who reports.
	// +optional
	Agent AgentInfo `json:"agent,omitzero"`

	// Kernel is what the node's kernel can do.
	// +optional
	Kernel KernelProfile `json:"kernel,omitzero"`

	// Counts sums up what follows, and what did not fit.
	// +optional
	Counts NodeCounts `json:"counts,omitzero"`

	// Conditions hold Ready: False if an application failed on the node. The agent alone writes it, and what a node that cannot be
	// reached reported last stays: status.nodes.unreachable of applications counts such nodes.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=4
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Applications tells how each application is doing on the node.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=512
	Applications []NodeApplication `json:"applications,omitempty"`

	// Loaded takes the applications that are Loaded and have nothing more to say
	// out of the list above, where they do not all fit in full: uid:serial.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=160
	Loaded []string `json:"loaded,omitempty"`

	// Unmanaged lists the first hundred programs in the kernel that are not
	// Skep's, by id.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Unmanaged []UnmanagedProgram `json:"unmanaged,omitempty"`

	// SharedTargets has, for each namespace, what its applications use of its bounds
	// at targets that tasks of others run, too. Of more than 64 namespaces it lists
	// those that are nearest to their bounds.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=64
	SharedTargets []NamespaceShare `json:"sharedTargets,omitempty"`
}

// NamespaceShare is what the applications of a namespace have together on a node
// at tracepoints, functions and places in files, and what they may have.
type NamespaceShare struct {
	// Namespace is the namespace of these applications.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Programs counts those at the target that has the most of them, of at most
	// ProgramsLimit.
	Programs      int32 `json:"programs"`
	ProgramsLimit int32 `json:"programsLimit"`
	// TextPages counts the pages with probes of the file that has the most of
	// them, of at most TextPagesLimit.
	TextPages      int32 `json:"textPages"`
	TextPagesLimit int32 `json:"textPagesLimit"`
	// LeftOut counts the attachments that have no room.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
}

// Fullness is how much of what it may have a namespace has, in thousandths: of the
// programs or of the pages, whichever is more, and more where something is left out.
func (s NamespaceShare) Fullness() int32 {
	if s.LeftOut > 0 {
		return 1000 + s.LeftOut
	}
	return max(1000*s.Programs/max(1, s.ProgramsLimit), 1000*s.TextPages/max(1, s.TextPagesLimit))
}

// LoadedAs is the short form of an application that is Loaded.
func LoadedAs(uid string, serial int64) string { return uid + ":" + strconv.FormatInt(serial, 10) }

// Of is what the node says of one application, in full or in short; nil where it
// says nothing.
func (s *BpfNodeStatus) Of(uid string) *NodeApplication {
	for i := range s.Applications {
		if s.Applications[i].UID == uid {
			return &s.Applications[i]
		}
	}
	for _, one := range s.Loaded {
		rest, ok := strings.CutPrefix(one, uid+":")
		if !ok {
			continue
		}
		if serial, err := strconv.ParseInt(rest, 10, 64); err == nil {
			return &NodeApplication{UID: uid, Serial: serial, State: NodeLoaded}
		}
	}
	return nil
}

// AgentInfo is the agent that reports.
type AgentInfo struct {
	// Version is the build's.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// IntentFormat is the newest format of sealed intents that the agent reads.
	// +optional
	IntentFormat int `json:"intentFormat,omitempty"`
}

// KernelProfile is what a kernel can do, probed by loading where it can be.
type KernelProfile struct {
	// Release is as uname -r has it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Release string `json:"release,omitempty"`

	// Architecture is as Go names it: amd64, arm64.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Architecture string `json:"architecture,omitempty"`

	// BTF reports whether the kernel describes its own types.
	// +optional
	BTF bool `json:"btf,omitempty"`

	// Lockdown is none, integrity or confidentiality; empty where the kernel
	// does not say.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Lockdown string `json:"lockdown,omitempty"`

	// LSMs are the security modules active, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	LSMs []string `json:"lsms,omitempty"`

	// Hooks are the names of the hooks that the agent can attach here.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	Hooks []string `json:"hooks,omitempty"`

	// Denied are the hooks that the kernel has and the agent may not attach to.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Denied []DeniedHooks `json:"denied,omitempty"`

	// ProgramTypes are the program types the kernel can load, or may be able to,
	// as bytecode's facts name them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	ProgramTypes []string `json:"programTypes,omitempty"`

	// MapTypes are the map types the kernel can make, or may be able to, as
	// bytecode's facts name them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	MapTypes []string `json:"mapTypes,omitempty"`
}

// DeniedHooks are hooks that an agent may not attach to, all for one reason.
type DeniedHooks struct {
	// Hooks are names in libbpf's section vocabulary.
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=64
	Hooks []string `json:"hooks"`
	// Reason says what the agent lacks.
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason"`
}

// The reasons of Ready of a BpfNode.
const (
	ReasonAgentReporting     = "AgentReporting"
	ReasonApplicationsFailed = "ApplicationsFailed"
)

// NodeCounts are sums over a node.
type NodeCounts struct {
	// Loaded and Failed count applications.
	Loaded int32 `json:"loaded"`
	Failed int32 `json:"failed"`
	// NotReported counts the applications for the node that did not fit even so.
	// +optional
	NotReported int32 `json:"notReported,omitempty"`
	// Pods counts the pods in which programs are attached. If nothing else changes, it is up to five minutes old.
	// +optional
	Pods int32 `json:"pods,omitempty"`
	// Programs counts the BPF programs in the kernel, Unmanaged those of them
	// that are not Skep's.
	Programs  int32 `json:"programs"`
	Unmanaged int32 `json:"unmanaged"`
}

// NodeApplication is one application on one node.
type NodeApplication struct {
	// Kind, Namespace and Name name the application.
	// +kubebuilder:validation:Enum=BpfApplication;ClusterBpfApplication
	Kind string `json:"kind"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID is the application's.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
	// Serial is the serial of the intent that first sealed the version in State.
	// A step of the rollout on other nodes does not change it, and a node that
	// the rollout has not reached reports the previous version. For State Removed
	// it is the serial of the tombstone, which the node thereby acknowledges. If
	// the API server lost the intent that the node accepted, it is the serial of
	// that intent.
	Serial int64 `json:"serial"`
	// Revision is what runs; empty where nothing does.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Revision string `json:"revision,omitempty"`
	// State says how it is doing.
	State NodeState `json:"state"`
	// Message says why, in the kernel's own words where they are its.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Skipped says what the definition leaves to the node and the node is without.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Skipped string `json:"skipped,omitempty"`
}

// NodeState says how an application is doing on a node.
//
// +kubebuilder:validation:Enum=Loaded;Pending;Waiting;Failed;Unsupported;Retained;NotSelected;Removed
type NodeState string

// The states of an application on a node.
const (
	// NodeLoaded: every program is in the kernel and attached as wanted.
	NodeLoaded NodeState = "Loaded"
	// NodePending: it is being worked on.
	NodePending NodeState = "Pending"
	// NodeWaiting: a target of its, such as an interface, is not there yet.
	NodeWaiting NodeState = "Waiting"
	// NodeFailed: the node tried and could not; Message says why.
	NodeFailed NodeState = "Failed"
	// NodeUnsupported: the node's kernel cannot hold it.
	NodeUnsupported NodeState = "Unsupported"
	// NodeRetained: the node keeps the version before, until its rollout step comes.
	// The controller counts so; the node itself speaks of that version.
	NodeRetained NodeState = "Retained"
	// NodeNotSelected: the node selector does not choose this node.
	NodeNotSelected NodeState = "NotSelected"
	// NodeRemoved: it was unloaded.
	NodeRemoved NodeState = "Removed"
)

// UnmanagedProgram is a program in the kernel that is not Skep's.
type UnmanagedProgram struct {
	// ID is the kernel's.
	ID int64 `json:"id"`
	// Type is the program type, as cilium/ebpf names it: XDP, SchedCLS.
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type"`
	// Name is what the loader called it; may be empty.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`
	// LoadedBy is the loader's command, where a process holds it.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	LoadedBy string `json:"loadedBy,omitempty"`
}
