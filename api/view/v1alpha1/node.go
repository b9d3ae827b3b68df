package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// NodeView describes a node: what runs on it, where, in which order and at what cost. Its name is the node's; on a host, the host's.
type NodeView struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Observed is when the agent looked.
	Observed metav1.Time `json:"observed"`
	// Scope is the part of the node that is described.
	Scope Scope `json:"scope,omitzero"`
	// Agent is the agent that looked, and Kernel what the node's kernel can do.
	Agent  v1alpha1.AgentInfo     `json:"agent,omitzero"`
	Kernel v1alpha1.KernelProfile `json:"kernel,omitzero"`

	// Applications are those that have an intent for the node or run on it, in the order of their names.
	Applications []Application `json:"applications"`
	// Interfaces are the hooks of network devices where programs run in an order, programs of others included. A Scope leaves them out.
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Programs are those of the kernel, by id: all, or those of the Scope.
	Programs []Program `json:"programs,omitempty"`
	// Loads are those under way or waiting, in their order. A Scope leaves others' out.
	Loads []Load `json:"loads,omitempty"`
	// Others counts what a Scope leaves out.
	Others *Others `json:"others,omitempty"`
	// LeftOut says what did not fit or could not be read, one sentence each.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Scope is what a reader may see. The zero value is the whole node.
type Scope struct {
	// Kind and Namespace leave the applications of one kind or one namespace. Namespace needs Kind BpfApplication.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Name leaves one application, and needs Kind.
	Name string `json:"name,omitempty"`
}

// IsWhole reports whether the scope is the whole node.
func (s Scope) IsWhole() bool { return s == Scope{} }

// Has reports whether an application is in the scope.
func (s Scope) Has(id v1alpha1.Identity) bool {
	return (s.Kind == "" || s.Kind == id.Kind) && (s.Namespace == "" || s.Namespace == id.Namespace) && (s.Name == "" || s.Name == id.Name)
}

// Others counts what a reader does not see by name.
type Others struct {
	// Applications counts applications, and Programs the programs in the kernel, of Skep's or not.
	Applications int `json:"applications"`
	Programs     int `json:"programs"`
}

// Application is an application on the node.
type Application struct {
	v1alpha1.Identity `json:",inline"`
	UID               string `json:"uid"`
	// Serial is that of the newest intent, and Version the serial of the intent that first sealed what should run here.
	Serial  int64 `json:"serial"`
	Version int64 `json:"version"`
	// State is that of the BpfNode, and Message says why.
	State   v1alpha1.NodeState `json:"state"`
	Message string             `json:"message,omitempty"`
	// Image is the reference as written, Digest what it resolved to, and Signers whose signatures counted.
	Image   string   `json:"image,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Signers []string `json:"signers,omitempty"`
	// Retained reports that a rollout left the previous version here.
	Retained bool `json:"retained,omitempty"`
	// Pods are the pods of this node that it chooses, as NAMESPACE/NAME, in that order.
	Pods []string `json:"pods,omitempty"`
	// Attachments are in the order of programs, hooks and targets.
	Attachments []Attachment `json:"attachments"`
	// Conditions hold Deployed.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Error is the last one, and VerifierLog all that the verifier said at the last rejection.
	Error       string `json:"error,omitempty"`
	VerifierLog string `json:"verifierLog,omitempty"`
}

// StateAttached is the state of an Attachment that runs.
const StateAttached = "Attached"

// Attachment is a program of an application at one place.
type Attachment struct {
	// Program is the name of the function.
	Program string `json:"program"`
	// ProgramID is the kernel's id of the program; 0 if it is not loaded. A program of a chain runs in the chain's.
	ProgramID uint32 `json:"programId,omitempty"`
	// LinkID is the kernel's id of the link; 0 without one.
	LinkID uint32 `json:"linkId,omitempty"`
	// Hook is the name of libbpf's section, such as tcx/ingress.
	Hook string `json:"hook"`
	// Target is where it is attached.
	Target Target `json:"target"`
	// State is Attached, Waiting, Failed, NoPods, Ran, Skipped, SwitchedOff or DriftConflict. In lists, an application that has no
	// attachment has one without a program, with its own state: Failed, Unsupported, Waiting or Pending.
	State string `json:"state"`
	// Message says why it has this state.
	Message string `json:"message,omitempty"`
	// Position is its place in the order at this hook and target, from 1, programs of others included; 0 where the kernel keeps no order.
	Position int `json:"position,omitempty"`
	// Of is how many programs there are in the order.
	Of int `json:"of,omitempty"`
	// Priority is the definition's.
	Priority int32 `json:"priority,omitempty"`
	// Mode is how an interface runs an XDP program: Native, Generic or Offload.
	Mode v1alpha1.XDPMode `json:"mode,omitempty"`
	// Notes say what the reader has to know, such as which programs of others run before it.
	Notes []string `json:"notes,omitempty"`
	// Runs counts since it was attached; absent where nothing counts.
	Runs *uint64 `json:"runs,omitempty"`
	// Verdicts counts what it returned, by name; absent where nothing counts.
	Verdicts map[string]uint64 `json:"verdicts,omitempty"`
}

// Target is where a program is attached.
type Target struct {
	// Text is all of it for people, such as: eth0 in pod team-a/web.
	Text string `json:"text"`
	// Interface is a network device.
	Interface string `json:"interface,omitempty"`
	// Ifindex is the index of the network device.
	Ifindex int `json:"ifindex,omitempty"`
	// NetworkNamespace is the inode of the device's network namespace where that is not the agent's.
	NetworkNamespace uint64 `json:"networkNamespace,omitempty"`
	// Pod is NAMESPACE/NAME.
	Pod string `json:"pod,omitempty"`
	// Container is the container's name in the pod, or the runtime's id where the name is not known.
	Container string `json:"container,omitempty"`
	// Function is one of the kernel.
	Function string `json:"function,omitempty"`
	// Tracepoint is a tracepoint of the kernel, such as syscalls/sys_enter_execve.
	Tracepoint string `json:"tracepoint,omitempty"`
	// Cgroup is a path below the mount of cgroup2.
	Cgroup string `json:"cgroup,omitempty"`
	// Binary is a file.
	Binary string `json:"binary,omitempty"`
	// Symbol is a function or a probe in the file.
	Symbol string `json:"symbol,omitempty"`
}

// Interface is a hook of a network device, where programs run in an order.
type Interface struct {
	Target Target `json:"target"`
	Hook   string `json:"hook"`
	// Mode is how it runs an XDP chain, and ModeReason says why not by its driver, where that was tried.
	Mode       v1alpha1.XDPMode `json:"mode,omitempty"`
	ModeReason string           `json:"modeReason,omitempty"`
	// LinkID and ProgramID are those of an XDP chain; on other hooks, each member has its own.
	LinkID    uint32 `json:"linkId,omitempty"`
	ProgramID uint32 `json:"programId,omitempty"`
	// Members are in the order in which a packet meets them.
	Members []Member `json:"members"`
	// RoomLeft is what the kernel's limits leave to further programs of an XDP chain.
	RoomLeft *Room `json:"roomLeft,omitempty"`
	// Error says what of it is not known.
	Error string `json:"error,omitempty"`
}

// Room is what the kernel's limits leave to a chain.
type Room struct {
	// Maps counts maps, and Subprograms functions.
	Maps        int `json:"maps"`
	Subprograms int `json:"subprograms"`
}

// Member is a program of an Interface.
type Member struct {
	// Application is empty of a program that Skep did not attach: it is unmanaged.
	Application *v1alpha1.Identity `json:"application,omitempty"`
	Program     string             `json:"program,omitempty"`
	ProgramID   uint32             `json:"programId,omitempty"`
	Priority    int32              `json:"priority,omitempty"`
	// Preference is that of a filter of clsact.
	Preference uint16 `json:"preference,omitempty"`
	// ProceedOn are the verdicts of an XDP program after which the next one runs.
	ProceedOn []string `json:"proceedOn,omitempty"`
	// SwitchedOff members do not run.
	SwitchedOff bool              `json:"switchedOff,omitempty"`
	Notes       []string          `json:"notes,omitempty"`
	Runs        *uint64           `json:"runs,omitempty"`
	Verdicts    map[string]uint64 `json:"verdicts,omitempty"`
}

// Program is a program in the kernel.
type Program struct {
	// ID is the kernel's, Type its type as cilium/ebpf names it, such as XDP, Name the function's or what its loader called it, and Tag
	// the kernel's hash of its instructions.
	ID   uint32 `json:"id"`
	Type string `json:"type"`
	Name string `json:"name,omitempty"`
	Tag  string `json:"tag,omitempty"`
	// Application is whose it is; nil of a program that is not Skep's. Chain says that it is Skep's, and of several applications.
	Application *v1alpha1.Identity `json:"application,omitempty"`
	Chain       bool               `json:"chain,omitempty"`
	// Holders are the processes that have a descriptor of a program that is not Skep's, and Pins its paths in the BPF file system.
	Holders []Process `json:"holders,omitempty"`
	Pins    []string  `json:"pins,omitempty"`
	// Attached are its places, as HOOK@TARGET.
	Attached []string `json:"attached,omitempty"`
	// LoadedAt is when it was loaded.
	LoadedAt metav1.Time `json:"loadedAt,omitzero"`
	// MemoryBytes is what the kernel charges for the program and the maps that it alone uses, and JITBytes the size of its machine code.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	JITBytes    uint32 `json:"jitBytes,omitempty"`
	// Cost is what it cost in the last window that measured; nil if none did.
	Cost *Cost `json:"cost,omitempty"`
}

// Process is a process that holds a program.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// Cost is what a program cost in a window, measured by the kernel (BPF_ENABLE_STATS).
type Cost struct {
	// Measured is the end of the window, and WindowSeconds its length.
	Measured      metav1.Time `json:"measured"`
	WindowSeconds float64     `json:"windowSeconds"`
	// Runs are those in the window, and Nanoseconds the time of all of them.
	Runs        uint64 `json:"runs"`
	Nanoseconds uint64 `json:"nanoseconds"`
}

// RunsPerSecond is the rate of runs.
func (c Cost) RunsPerSecond() float64 {
	if c.WindowSeconds <= 0 {
		return 0
	}
	return float64(c.Runs) / c.WindowSeconds
}

// NanosecondsPerRun is the mean time of a run; 0 without one.
func (c Cost) NanosecondsPerRun() float64 {
	if c.Runs == 0 {
		return 0
	}
	return float64(c.Nanoseconds) / float64(c.Runs)
}

// CPUShare is the share of one CPU: 1 is all of one.
func (c Cost) CPUShare() float64 {
	if c.WindowSeconds <= 0 {
		return 0
	}
	return float64(c.Nanoseconds) / 1e9 / c.WindowSeconds
}

// Load is a load of a version into the kernel.
type Load struct {
	Application v1alpha1.Identity `json:"application"`
	// Since is when it began, or began to wait, and Waiting says for what it waits; empty while it loads.
	Since   metav1.Time `json:"since,omitzero"`
	Waiting string      `json:"waiting,omitempty"`
}
