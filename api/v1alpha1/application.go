package v1alpha1

import (
	"cmp"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// BpfApplication is the eBPF programs one team wants on its nodes: the bytecode
// they come from, the values they are given and the places they attach to. Its
// hooks are limited to those that a namespace can hold.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=bpfapp,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Loaded",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Signers",type=string,JSONPath=`.status.signedBy`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type BpfApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfApplicationSpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BpfApplicationStatus `json:"status,omitzero"`
}

// BpfApplicationList is a list of BpfApplication.
//
// +kubebuilder:object:root=true
type BpfApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BpfApplication `json:"items"`
}

// ClusterBpfApplication is a BpfApplication that belongs to no namespace and
// may use every hook.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cbpfapp,categories=skep
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Loaded",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Signers",type=string,JSONPath=`.status.signedBy`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ClusterBpfApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BpfApplicationSpec `json:"spec"`
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BpfApplicationStatus `json:"status,omitzero"`
}

// ClusterBpfApplicationList is a list of ClusterBpfApplication.
//
// +kubebuilder:object:root=true
type ClusterBpfApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterBpfApplication `json:"items"`
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
	// +kubebuilder:validation:MaxProperties=256
	Variables map[string]apiextensionsv1.JSON `json:"variables,omitempty"`

	// Maps overrides what the object says of its maps, by name.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name != '')",message="a map has no name; name it as the object does"
	// +kubebuilder:validation:XValidation:rule="self.map(name, has(self[name].contents) ? size(self[name].contents) : 0).sum() <= 6553",message="the contents of all maps list more than 6553 entries; list fewer entries, or have a program of yours write them"
	Maps map[string]Map `json:"maps,omitempty"`

	// Programs are the functions of the object to load, each named once. Their
	// lists of attachments hold at most 256 in all, and where there are more than 64
	// programs, at most 4 each.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.map(p, has(p.attach) ? size(p.attach) : 0).sum() <= 256",message="more than 256 attachments are listed; list at most 256 in one application"
	// +listType=map
	// +listMapKey=name
	Programs []Program `json:"programs"`

	// Alternatives are programs of which a node runs one set: the first that its kernel
	// supports.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Alternatives []Alternative `json:"alternatives,omitempty"`

	// Rollout is how a new version comes to the nodes; absent, it comes to one
	// node first and then to all. On one host it has no effect.
	// +optional
	Rollout *Rollout `json:"rollout,omitempty"`

	// Suspend freezes the application as it is: nothing is loaded, updated or
	// unloaded until it is lifted.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// Rollout brings a new version to the nodes in steps. A step ends when every
// node of it runs the version; one that fails stops the rollout, and the other
// nodes keep the version before.
type Rollout struct {
	// Steps are how many nodes run the new version before more do: numbers, or
	// shares of the nodes that the node selector chooses, from 1% to 100%,
	// rounded up. After the last step it comes to all. Absent means one step of
	// one node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Steps []intstr.IntOrString `json:"steps,omitempty"`

	// Pause is the shortest time from the beginning of one step to that of the
	// next, such as 30s, 5m or 1h30m. Absent means none.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}([.][0-9]{1,9})?(ms|s|m|h)){1,3}$`
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// Bytecode names an OCI image that holds one eBPF object.
type Bytecode struct {
	// Image is a reference with a tag or a digest: registry/repository:tag,
	// registry/repository@sha256:…, or, in node mode, oci:DIR for an OCI layout
	// on disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	Image string `json:"image"`

	// ImagePullSecrets name Secrets of type kubernetes.io/dockerconfigjson with
	// which the image is pulled: those of the application's namespace, for a
	// ClusterBpfApplication those of Skep's own. Nodes see none of them. In node
	// mode the host's own registry credentials serve.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []LocalSecret `json:"imagePullSecrets,omitempty"`
}

// LocalSecret names a Secret.
type LocalSecret struct {
	// Name is the Secret's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// Map overrides the definition of one map of the object.
//
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !(has(self.maxEntries) || has(self.valueSize) || has(self.contents) || has(self.onUpdate) || has(self.sharedWith) || has(self.export) || has(self.metrics))",message="a map with from is another application's, whose definition says the rest; set from alone"
type Map struct {
	// MaxEntries replaces the object's max_entries.
	// +optional
	// +kubebuilder:validation:Format=int64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	MaxEntries *uint32 `json:"maxEntries,omitempty"`
	// ValueSize is the size of a value in bytes, for maps whose object leaves it
	// to its loader. The object's own value size cannot be replaced.
	// +optional
	// +kubebuilder:validation:Format=int64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	ValueSize *uint32 `json:"valueSize,omitempty"`
	// Contents are the entries, each with key and value, that the map has when it
	// is made, before a program runs. A map that an update keeps gets none of them.
	// See maps.md. All contents of an application have at most 128 KiB as JSON.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Contents []MapEntry `json:"contents,omitempty"`
	// OnUpdate says what becomes of the map when a new version replaces one that
	// runs. Keep, the default, keeps the map and what is in it, if its type, sizes
	// and layout are the same. Reset makes it anew, with its initial contents.
	// +optional
	OnUpdate MapUpdate `json:"onUpdate,omitempty"`
	// SharedWith names the applications of the same kind and namespace that may use
	// this map by from. Absent, the map is this application's alone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	SharedWith []string `json:"sharedWith,omitempty"`
	// Export grants the map to readers outside of programs: to pods, or on a host to
	// groups. sharedWith and from give it to programs, which the gate has read; what a
	// reader does with it is not seen. Absent, only root of a node opens the map. A grant
	// that is taken back ends on each node at once, and waits for no rollout. With export
	// alone, an entry has no map made.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Export []MapExport `json:"export,omitempty"`
	// Metrics has the agent export the entries of the map as series for Prometheus, on
	// the /metrics of each node. Nothing is loaded anew for a change of them.
	// +optional
	Metrics *MapMetrics `json:"metrics,omitempty"`
	// From is the map of another application that takes the place of this one. The
	// programs wait on each node until it is there, and it has to be of the same type,
	// sizes, flags and layout. That application lists this one in sharedWith.
	// +optional
	From *MapSource `json:"from,omitempty"`
}

// MapExport is one grant of a map.
type MapExport struct {
	// Access is what a reader may do: Read looks entries up and lists them, Write changes
	// them as well, and Consume takes the records of a ring buffer, which one reader at a
	// time may.
	Access MapAccess `json:"access"`
	// Namespaces are those whose pods have the grant. A BpfApplication exports to its own
	// namespace alone, also where the list is absent. On a host they grant nothing.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespaces []string `json:"namespaces,omitempty"`
	// ServiceAccounts are those that such pods run as. Absent, all of them have the grant.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Groups are those of a host whose members have the grant, by name or number. In a
	// cluster they grant nothing.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^([a-z_][a-z0-9_-]*|[0-9]+)$`
	Groups []string `json:"groups,omitempty"`
}

// MapAccess is what a reader of a map may do.
//
// +kubebuilder:validation:Enum=Read;Write;Consume
type MapAccess string

// The values of MapExport.Access.
const (
	MapRead    MapAccess = "Read"
	MapWrite   MapAccess = "Write"
	MapConsume MapAccess = "Consume"
)

// MapMetrics says how entries of a map become series.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && has(self.values))",message="set value or values, not both"
type MapMetrics struct {
	// Name of the series is skep_map_ and this name, with the labels kind, namespace and
	// application of the definition. It is the application's alone. That of a Counter ends
	// in _total, and others do not. The series of a Histogram are skep_histogram_, this name,
	// and _bucket, _sum and _count.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	Name string `json:"name"`
	// Type is Counter for what only grows, Histogram for counts by buckets, and Gauge for
	// anything else.
	Type MapMetricsType `json:"type"`
	// Help is the text that Prometheus shows.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Help string `json:"help,omitempty"`
	// Labels are made from the key of an entry. Values of entries whose labels are the same
	// are added up.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Labels []MapLabel `json:"labels,omitempty"`
	// Value is the number in the value of an entry, such as stats.packets. Absent, the value
	// is a number itself. Those of all CPUs are added up, unless a label is of the decoder CPU.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Value string `json:"value,omitempty"`
	// Values are several numbers of a value, by what follows Name and _ in the name of each
	// series.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	Values map[string]MapField `json:"values,omitempty"`
	// Buckets says which bucket of a Histogram an entry counts. The value of the entry is
	// how often.
	// +optional
	Buckets *MapBuckets `json:"buckets,omitempty"`
}

// MapBuckets are those of a histogram, by a number in the key of each entry. The entry
// of the number after Max is the sum of what was observed; without one, the sum is 0.
type MapBuckets struct {
	// Field is the number in the key, such as bucket. Absent, the key is a number itself.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Field string `json:"field,omitempty"`
	// Type says what is in a bucket: with Exp2, what is at most 2 to the power of its number;
	// with Exp2Zero, zero in bucket 0 and then what is at most 2 to the power of its number
	// less one; with Linear, what is at most its number.
	Type MapBucketType `json:"type"`
	// Min and Max are the first and the last bucket. There are at most 128.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Min int32 `json:"min,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Max int32 `json:"max"`
	// Multiplier turns the unit of buckets and sum into that of the series, such as
	// "0.000001" for microseconds that are shown as seconds. Absent, it is 1.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
	Multiplier string `json:"multiplier,omitempty"`
}

// MapBucketType is how buckets of a histogram grow.
//
// +kubebuilder:validation:Enum=Exp2;Exp2Zero;Linear
type MapBucketType string

// The values of MapBuckets.Type.
const (
	BucketsExp2     MapBucketType = "Exp2"
	BucketsExp2Zero MapBucketType = "Exp2Zero"
	BucketsLinear   MapBucketType = "Linear"
)

// MapField is a field of a key or value: names of members, with dots between.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=128
type MapField string

// MapMetricsType is the type of series.
//
// +kubebuilder:validation:Enum=Counter;Gauge;Histogram
type MapMetricsType string

// The values of MapMetrics.Type.
const (
	MapCounter   MapMetricsType = "Counter"
	MapGauge     MapMetricsType = "Gauge"
	MapHistogram MapMetricsType = "Histogram"
)

// MapLabel is a label that is made from the key of an entry.
type MapLabel struct {
	// Name is that of the label. kind, namespace, application, job, instance, le and quantile,
	// and names that begin with __, are taken.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	Name string `json:"name"`
	// Field is a field of the key, such as flow.port. Absent, the label is made from the
	// whole key.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Field string `json:"field,omitempty"`
	// Decoder says what the bytes are, where their type does not: InetIP an address of 4 or 16
	// bytes, MAC one of 6, String text that ends with a zero, Dname a name of DNS, Hex digits,
	// Errno, Ifname and Device (a block device) the name of a number, Uint the number of an
	// enum, and CPU the CPU that the value is of, in maps with values for each.
	// +optional
	Decoder MapDecoder `json:"decoder,omitempty"`
}

// MapDecoder is how bytes become text.
//
// +kubebuilder:validation:Enum=InetIP;MAC;String;Dname;Hex;Errno;Ifname;Device;Uint;CPU
type MapDecoder string

// The values of MapLabel.Decoder. Empty is what the type says.
const (
	DecodeInetIP MapDecoder = "InetIP"
	DecodeMAC    MapDecoder = "MAC"
	DecodeString MapDecoder = "String"
	DecodeDname  MapDecoder = "Dname"
	DecodeHex    MapDecoder = "Hex"
	DecodeErrno  MapDecoder = "Errno"
	DecodeIfname MapDecoder = "Ifname"
	DecodeDevice MapDecoder = "Device"
	DecodeUint   MapDecoder = "Uint"
	DecodeCPU    MapDecoder = "CPU"
)

// MapSource names a map of another application on the same node.
type MapSource struct {
	// Application is the name of the application whose map it is, of the same kind
	// and namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Application string `json:"application"`
	// Map is the name of the map in that application's object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Map string `json:"map"`
}

// MapUpdate is what becomes of a map when a new version comes.
//
// +kubebuilder:validation:Enum=Keep;Reset
type MapUpdate string

// The values of Map.OnUpdate. Empty means MapKeep.
const (
	MapKeep  MapUpdate = "Keep"
	MapReset MapUpdate = "Reset"
)

// MapEntry is one entry of a map. Key and value are written as variables are, by the
// types that the object's BTF gives them; without BTF, as the hex digits of their
// bytes. The value of a prog array is the name of a program of the object, that of
// a map of maps the name of a map.
type MapEntry struct {
	// Key of the entry; of an array, its index.
	Key apiextensionsv1.JSON `json:"key"`
	// Value of the entry; of a per-CPU map, that of every CPU.
	Value apiextensionsv1.JSON `json:"value"`
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
	// +kubebuilder:validation:MaxItems=16
	Attach []Attachment `json:"attach,omitempty"`

	// Optional programs are left out on nodes whose kernel does not support them. The
	// status says so, and the application does not fail.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// Alternative is one task that several sets of programs can do, such as fentry and fexit
// programs on newer kernels, and kprobe and kretprobe programs on others.
type Alternative struct {
	// Name is what the sets do, such as connect.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// AnyOf are the sets, the best first. A node loads the first one that its kernel
	// supports, and none of the others.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=8
	AnyOf []ProgramSet `json:"anyOf"`
}

// ProgramSet is programs that are loaded together or not at all.
type ProgramSet struct {
	// Programs are names of spec.programs, each in one set of one alternative.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Programs []string `json:"programs"`
}

// The bounds of an application. Whatever an API server has to validate is bounded,
// since it does so for everybody; see api/v1alpha1/gencrds.
const (
	// MaxPrograms bounds the programs of an application.
	MaxPrograms = 256
	// MaxProgramsOfMany bounds those where one lists more than MaxFewAttachments. An API
	// server validates every attachment before it adds them up: as many of the one as of
	// the other.
	MaxProgramsOfMany = 64
	// MaxFewAttachments bounds the attachments of one of more than MaxProgramsOfMany programs.
	MaxFewAttachments = MaxProgramsOfMany * MaxProgramAttachments / MaxPrograms
	// MaxProgramAttachments bounds the attachments that one program lists.
	MaxProgramAttachments = 16
	// MaxAttachments bounds the attachments that all programs of an application
	// list together.
	MaxAttachments = 256
	// MaxMapEntries bounds the contents that a definition gives one map, in entries.
	MaxMapEntries = 1024
	// MaxSharedWith bounds the applications that may use one map.
	MaxSharedWith = 16
	// MaxExports bounds the grants of one map, and MaxExportNames what one of them lists of a kind.
	MaxExports     = 4
	MaxExportNames = 8
	// MaxMapLabels bounds the labels that are made from the keys of one map.
	MaxMapLabels = 8
	// MaxMapValues bounds the series of one entry of a map.
	MaxMapValues = 4
	// MaxMapBuckets bounds the buckets of a histogram.
	MaxMapBuckets = 128
	// MaxMapContents bounds the contents of all maps of an application, in bytes of
	// JSON. An intent has the version before as well, and those that nodes may run still.
	MaxMapContents = 128 << 10
	// MaxContents bounds the entries of all maps together: no more fit into MaxMapContents.
	MaxContents = MaxMapContents / len(`{"key":1,"value":1},`)
	// MaxAlternatives bounds the alternatives of an application.
	MaxAlternatives = 16
	// MaxAnyOf bounds the sets of an alternative.
	MaxAnyOf = 8
	// MaxProgramSet bounds the programs of a set.
	MaxProgramSet = 16
	// MaxSelectorRequirements bounds the matchExpressions of a label selector.
	MaxSelectorRequirements = 60
	// MaxSelectorValues bounds the values of one of them.
	MaxSelectorValues = 256
	// MaxPodLabels bounds the labels of a selector of Pods. Every attachment may have two
	// such selectors.
	MaxPodLabels = 8
	// MaxPodRequirements bounds the matchExpressions of a selector of Pods.
	MaxPodRequirements = 2
	// MaxPodValues bounds the values of one of them.
	MaxPodValues = 4
	// MaxPodContainers bounds the names and globs of containers.
	MaxPodContainers = 4
	// MaxFunctions is the greatest limit of a choice of functions.
	MaxFunctions = 10000
	// MaxSymbolNames bounds the bytes of all names and globs of one choice of symbols
	// together: the agent keeps them beside the pin of the link.
	MaxSymbolNames = 2048
)

// Attachment is one hook and the fields of its target shape. The
// hook decides which fields it takes.
type Attachment struct {
	// Hook is a name in libbpf's section vocabulary: xdp, tcx/ingress, tracepoint,
	// uprobe, cgroup/connect4. Absent, it is the one that the program's section
	// names.
	// +optional
	Hook string `json:"hook,omitempty"`

	// Pods attaches the program in Pods of the node, and not in the node itself: to
	// their network devices, cgroups, network namespaces or files, or to what their
	// processes do. A BpfApplication reaches the Pods of its own namespace alone.
	// +optional
	Pods *Pods `json:"pods,omitempty"`

	// Interfaces chooses network devices (shape NetworkDevice); with pods those of the
	// Pods, eth0 unless named.
	// +optional
	Interfaces *Interfaces `json:"interfaces,omitempty"`

	// Priority orders programs on an ordered hook: lower runs first. Range 0
	// to 1000, default 500. Those of a ClusterBpfApplication run before those of
	// namespaces, whatever their priorities are.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Priority *int32 `json:"priority,omitempty"`

	// AfterNamespaces has the program of a ClusterBpfApplication run after those
	// of namespaces on an ordered hook: it sees what they made of a packet, unless
	// they drop it.
	// +optional
	AfterNamespaces bool `json:"afterNamespaces,omitempty"`

	// Position is First or Last: all programs of Skep's on the hook of the
	// interface run before those of others, or behind them. For tcx/ingress and
	// tcx/egress of a ClusterBpfApplication, on a kernel with TCX. Absent, a program
	// comes behind what is there when it is attached.
	// +optional
	Position Position `json:"position,omitempty"`

	// ProceedOn lists the verdicts after which the next program of an XDP chain
	// runs: Aborted, Drop, Pass, Tx, Redirect. Default Pass.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=5
	ProceedOn []string `json:"proceedOn,omitempty"`

	// XDPMode is how an XDP program runs on the interface: Native in its driver
	// (xdpdrv of ip-link(8)), Generic behind it (xdpgeneric), or Auto, in the driver
	// where that takes the program, else generically. Default Auto. The programs of
	// an interface run in one mode.
	// +optional
	XDPMode XDPMode `json:"xdpMode,omitempty"`

	// Functions chooses functions of the kernel (shape KernelFunction, and
	// lsm_cgroup).
	// +optional
	Functions *Functions `json:"functions,omitempty"`

	// Tracepoint is category/name for tracepoint, and a name for raw_tp, raw_tp.w
	// and tp_btf (shape Tracepoint).
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)?$`
	Tracepoint string `json:"tracepoint,omitempty"`

	// Cgroup is the path of a cgroup below the cgroup2 mount; "/" is its root
	// (shape Cgroup).
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^(/|(/([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+))+)$`
	Cgroup string `json:"cgroup,omitempty"`

	// Binary is an executable or library and a place in it (shape UserBinary).
	// +optional
	Binary *UserBinary `json:"binary,omitempty"`

	// NetworkNamespace is the path of a network namespace, such as
	// /run/netns/blue; absent means the node's own (shape NetworkNamespace).
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^(/|(/([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+))+)$`
	NetworkNamespace string `json:"networkNamespace,omitempty"`

	// Netfilter is a place of netfilter in the network namespace (hook netfilter).
	// +optional
	Netfilter *Netfilter `json:"netfilter,omitempty"`

	// PerfEvent is a counter of the processor or the kernel, and how often it is
	// sampled (shape PerfEvent).
	// +optional
	PerfEvent *PerfEvent `json:"perfEvent,omitempty"`

	// Optional attachments are left out on nodes that lack the hook or the target. The
	// status says so, and the application does not fail.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// PodInterface is the network device of a Pod that is meant where none is named.
const PodInterface = "eth0"

// Pods chooses Pods that run on a node, by what the node's container runtime recorded
// when they were started. Nothing of it is believed from the Pods themselves.
type Pods struct {
	// Selector chooses Pods by their labels; absent or empty means every Pod.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// NamespaceSelector chooses the namespaces of Pods by their labels, in a
	// ClusterBpfApplication alone; absent or empty means every namespace.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Containers chooses containers of the Pods by names or globs in path.Match syntax;
	// absent means all of them. Hooks on network devices and namespaces, which a Pod's
	// containers share, do not take it.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9*?\[\]^-]+$`
	Containers []string `json:"containers,omitempty"`
}

// Interfaces chooses network devices of a node or a Pod. At least one of Names and
// Primary is given.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) && size(self.names) > 0 || has(self.primary) && self.primary",message="none of names and primary is given; give one, such as names: ['*'] for all"
type Interfaces struct {
	// Names are interface names or globs in path.Match syntax, such as eth*.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[^\s/]+$`
	Names []string `json:"names,omitempty"`

	// Exclude takes away what Names and Primary chose; same syntax.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[^\s/]+$`
	Exclude []string `json:"exclude,omitempty"`

	// Primary chooses the interface of the default route.
	// +optional
	Primary bool `json:"primary,omitempty"`

	// Kinds keeps, of what Names and Primary chose, the interfaces of these link types
	// of ip-link(8), such as bond, bridge, veth and vlan. The kind physical is that of
	// devices on a bus, such as network cards and those of a virtual machine.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9_]+$`
	Kinds []string `json:"kinds,omitempty"`

	// MemberOf keeps, of what Names and Primary chose, the members of this bond, team,
	// bridge or VRF.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/]+$`
	MemberOf string `json:"memberOf,omitempty"`

	// Regex keeps, of what Names and Primary chose, the interfaces whose whole name this
	// regular expression matches, in the syntax of RE2.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Regex string `json:"regex,omitempty"`
}

// KindPhysical is the kind of network devices on a bus.
const KindPhysical = "physical"

// Position is where the programs of Skep's run among those of others.
//
// +kubebuilder:validation:Enum=First;Last
type Position string

// The positions.
const (
	// PositionFirst is before all programs of others.
	PositionFirst Position = "First"
	// PositionLast is behind all programs of others.
	PositionLast Position = "Last"
)

// XDPMode is how an XDP program runs on an interface.
// +kubebuilder:validation:Enum=Auto;Native;Generic
type XDPMode string

// The modes of XDP.
const (
	// XDPAuto is Native where the driver takes the program, else Generic.
	XDPAuto XDPMode = "Auto"
	// XDPNative runs in the driver.
	XDPNative XDPMode = "Native"
	// XDPGeneric runs behind the driver, on socket buffers.
	XDPGeneric XDPMode = "Generic"
)

// DefaultFunctions is how many functions may be chosen where no limit is given.
const DefaultFunctions = 100

// Functions chooses functions of a node's kernel and its modules. For ksyscall and
// kretsyscall they are system calls, and for lsm and lsm_cgroup LSM hooks.
type Functions struct {
	// Names are names of functions, such as tcp_connect. Hooks of kprobes take
	// globs in path.Match syntax, too, such as tcp_*, which choose among the
	// functions that the kernel can trace and that have a name of their own.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_.*?\[\]^-]+$`
	Names []string `json:"names"`

	// Exclude takes away what Names chose; same syntax.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_.*?\[\]^-]+$`
	Exclude []string `json:"exclude,omitempty"`

	// Module is the kernel module that has the functions, such as nf_conntrack.
	// Absent, they are the kernel's own and those of every module.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_]*$`
	Module string `json:"module,omitempty"`

	// Offset is the place of a kprobe in the function, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1048576
	Offset uint64 `json:"offset,omitempty"`

	// Limit is how many functions may be chosen on a node; more is an error.
	// Range 1 to 10000, default 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Limit *int32 `json:"limit,omitempty"`
}

// UserBinary is a place in an executable or a shared library, or several places. The
// hook decides which of symbol, with or without offset, symbols and usdt it takes.
//
// +kubebuilder:validation:XValidation:rule="has(self.symbol) || has(self.offset) && self.offset > 0 || has(self.symbols) || has(self.usdt)",message="none of symbol, offset, symbols and usdt is given; give one"
// +kubebuilder:validation:XValidation:rule="(has(self.symbols) ? 1 : 0) + (has(self.usdt) ? 1 : 0) + (has(self.symbol) || has(self.offset) ? 1 : 0) <= 1",message="several of symbol, symbols and usdt are given; give one of them"
type UserBinary struct {
	// Path is absolute, in the node's file system; with pods in that of a container. A
	// name without slashes is looked for as libbpf does: one with .so in it in the
	// folders of libraries, another in those of programs.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^(/|(/([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+))+|[^/.][^/]*)$`
	Path string `json:"path"`

	// Symbol is a function of the binary. Symbol or Offset is given, or both,
	// and then Offset counts from the symbol.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Symbol string `json:"symbol,omitempty"`

	// Offset is in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Offset uint64 `json:"offset,omitempty"`

	// Symbols chooses many functions of the binary for uprobe.multi and
	// uretprobe.multi.
	// +optional
	Symbols *Symbols `json:"symbols,omitempty"`

	// USDT is a probe that the binary declares, for the hook usdt: every place of it.
	// +optional
	USDT *USDT `json:"usdt,omitempty"`

	// PID limits the probe to one process; 0 means every process.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PID int32 `json:"pid,omitempty"`
}

// USDT names a probe of a binary, as bpftrace -l and readelf -n list it.
type USDT struct {
	// Provider is what the probe belongs to, such as python.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[^\s:]+$`
	Provider string `json:"provider"`

	// Name is the probe's, such as function__entry.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[^\s:]+$`
	Name string `json:"name"`
}

// Symbols chooses functions of a binary by name.
type Symbols struct {
	// Names are names of functions or globs, such as SSL_*: * stands for any
	// characters, ? for one. One that chooses no function is an error.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[^\s!<]\S*$`
	Names []string `json:"names"`

	// Exclude takes away what Names chose; same syntax.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[^\s!<]\S*$`
	Exclude []string `json:"exclude,omitempty"`

	// Limit is how many functions may be chosen; more is an error. Range 1 to
	// 10000, default 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Limit *int32 `json:"limit,omitempty"`
}

// The bounds of a perf event.
const (
	// MaxPeriod bounds PerfEvent.Period.
	MaxPeriod = 1_000_000_000_000
	// MaxFrequency bounds PerfEvent.Frequency: as many samples a second as Linux
	// allows unless its administrator allows more.
	MaxFrequency = 100_000
)

// PerfEvent is what a program samples: on every CPU, or in the threads of one
// process. Either Period or Frequency is given.
//
// +kubebuilder:validation:XValidation:rule="has(self.period) != has(self.frequency)",message="give either period or frequency"
type PerfEvent struct {
	// Event is a name of perf(1), such as cpu-clock, page-faults or cache-misses.
	Event string `json:"event"`

	// Period runs the program once for so many events; for cpu-clock and
	// task-clock, once for so many nanoseconds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	Period int64 `json:"period,omitempty"`

	// Frequency runs the program about so many times a second.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Frequency int32 `json:"frequency,omitempty"`

	// PID limits sampling to the threads of one process; 0 means every CPU.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PID int32 `json:"pid,omitempty"`
}

// BpfApplicationStatus is what Skep knows of an application.
type BpfApplicationStatus struct {
	// ObservedGeneration is the generation the status speaks of; -1 before the
	// first look, since kstatus takes an empty status for a good one.
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

	// Version names what is sealed for the nodes, for kubectl get: the tag of its image, or the first digits of its digest.
	// +optional
	Version string `json:"version,omitempty"`

	// Signers are the names of the signers whose signatures counted.
	// +optional
	// +listType=atomic
	Signers []string `json:"signers,omitempty"`

	// SignedBy is Signers in one line, for kubectl get: the first three, and how
	// many more there are.
	// +optional
	SignedBy string `json:"signedBy,omitempty"`

	// Policies are those that decided.
	// +optional
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`

	// Serial is the serial of the newest sealed intent.
	// +optional
	Serial int64 `json:"serial,omitempty"`

	// Nodes counts the nodes that the application was meant for.
	// +optional
	Nodes *NodesStatus `json:"nodes,omitempty"`

	// Rollout is how far the newest version has come; absent where it is
	// everywhere.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`

	// PreviousDigest is the image of the version before, which skep rollout undo
	// brings back; empty where there is none.
	// +optional
	PreviousDigest string `json:"previousDigest,omitempty"`

	// LastHandledReconcileAt is the newest reconcile.fluxcd.io/requestedAt that
	// was answered.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`

	// History has the last ten versions, the newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	History []ApplicationVersion `json:"history,omitempty"`
}

// RolloutState is how a rollout is doing.
//
// +kubebuilder:validation:Enum=Progressing;Paused;Stopped;NoMatchingNodes;RolledBack
type RolloutState string

// The states of a rollout.
const (
	// RolloutProgressing waits for nodes of its step.
	RolloutProgressing RolloutState = "Progressing"
	// RolloutPaused runs on every node of its step, until the pause is over.
	RolloutPaused RolloutState = "Paused"
	// RolloutStopped failed on a node of its step, and goes no further.
	RolloutStopped RolloutState = "Stopped"
	// RolloutNoMatchingNodes comes to no node where something runs, and waits for one.
	RolloutNoMatchingNodes RolloutState = "NoMatchingNodes"
	// RolloutRolledBack was undone: every node has the version before.
	RolloutRolledBack RolloutState = "RolledBack"
)

// RolloutStatus is how far a version has come.
type RolloutStatus struct {
	State RolloutState `json:"state"`
	// Step counts from 1; with the last of Steps the version is everywhere.
	// +optional
	Step int32 `json:"step,omitempty"`
	// +optional
	Steps int32 `json:"steps,omitempty"`
	// Nodes is how many of the selected nodes are to run the version by now.
	// +optional
	Nodes int32 `json:"nodes,omitempty"`
	// Message says what it waits for, or why it goes no further.
	// +optional
	Message string `json:"message,omitempty"`
	// BlockedDefinition names the definition, but for suspend and rollout, that waits for people:
	// an undo of it cannot be done, or its intent was lost. 0 where none does.
	// +optional
	BlockedDefinition int64 `json:"blockedDefinition,omitempty"`
}

// The annotations by which people steer a rollout; skep rollout sets them.
const (
	// AnnotationResume, with the serial of the newest intent (status.serial),
	// has the next step begin: past the pause, past nodes that fail.
	AnnotationResume = Group + "/rollout-resume"
	// AnnotationUndo, with the application's metadata.generation, brings the
	// version before back to every node, until what the spec asks nodes for changes.
	AnnotationUndo = Group + "/rollout-undo"
)

// AnnotationRequester says who last changed an application's spec, as JSON. The
// API server's admission writes it over whatever a user put there.
const AnnotationRequester = Group + "/requester"

// MaxFailingNodes bounds the nodes that a status names.
const MaxFailingNodes = 10

// NodesStatus counts the nodes that the node selector chooses, each once.
type NodesStatus struct {
	// Summary is loaded/selected, such as 2/3.
	Summary string `json:"summary"`
	// Selected is the sum of all counts below.
	Selected int32 `json:"selected"`
	Loaded   int32 `json:"loaded"`
	// Pending nodes have not answered yet, or wait for a target to appear.
	// +optional
	Pending int32 `json:"pending,omitempty"`
	// FirstPending is the first pending node by name that waits for no target.
	// +optional
	FirstPending string `json:"firstPending,omitempty"`
	// Retained nodes keep the version before until their rollout step comes.
	// +optional
	Retained int32 `json:"retained,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Unsupported nodes have a kernel that cannot hold it.
	// +optional
	Unsupported int32 `json:"unsupported,omitempty"`
	// Unreachable nodes are not ready, or no agent runs there.
	// +optional
	Unreachable int32 `json:"unreachable,omitempty"`
	// FirstUnreachable is the first unreachable node by name.
	// +optional
	FirstUnreachable string `json:"firstUnreachable,omitempty"`
	// NotReported nodes have so many applications that their report has no room for
	// this one.
	// +optional
	NotReported int32 `json:"notReported,omitempty"`
	// Waiting names the first node that has no target for it yet, or no map of another
	// application, with what it waits for, and counts the others.
	// +optional
	Waiting string `json:"waiting,omitempty"`
	// KernelWarning names the first node that does not run it and whose kernel is older
	// than a helper that it calls, and counts the others. Nothing is held back
	// for that.
	// +optional
	KernelWarning string `json:"kernelWarning,omitempty"`
	// Skipped names the first node that runs it without an optional program or attachment,
	// or with a later set of an alternative, with the reason, and counts the others.
	// +optional
	Skipped string `json:"skipped,omitempty"`
	// Notice names the first node that runs it and says more than that, such as that the
	// application is gone whose map it uses, and counts the others.
	// +optional
	Notice string `json:"notice,omitempty"`
	// Failing names the first ten nodes that failed or cannot hold it, with the
	// kernel's own words.
	// +optional
	// +listType=atomic
	Failing []NodeFailure `json:"failing,omitempty"`
}

// NodeFailure is why one node does not run an application.
type NodeFailure struct {
	Node    string    `json:"node"`
	State   NodeState `json:"state"`
	Message string    `json:"message"`
}

// Application is either scope's application, seen alike. It is what every entry point
// hands to the gate.
//
// +kubebuilder:object:generate=false
type Application interface {
	metav1.Object
	// Identity tells kind, namespace and name.
	Identity() Identity
	// Body returns the shared spec, to be read and not written.
	Body() *BpfApplicationSpec
	// Report returns the shared status, to be written in place.
	Report() *BpfApplicationStatus
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

// Compare orders by namespace, name and kind, as people look for them.
func (i Identity) Compare(o Identity) int {
	return cmp.Or(cmp.Compare(i.Namespace, o.Namespace), cmp.Compare(i.Name, o.Name), cmp.Compare(i.Kind, o.Kind))
}

// IsNamespaced reports whether it is a namespace's application, which reaches the pods of that namespace alone.
func (i Identity) IsNamespaced() bool { return i.Kind == KindBpfApplication }

// Identity implements Application.
func (a *BpfApplication) Identity() Identity {
	return Identity{Kind: KindBpfApplication, Namespace: a.Namespace, Name: a.Name}
}

// Body implements Application.
func (a *BpfApplication) Body() *BpfApplicationSpec { return &a.Spec }

// Report implements Application.
func (a *BpfApplication) Report() *BpfApplicationStatus { return &a.Status }

// Identity implements Application.
func (a *ClusterBpfApplication) Identity() Identity {
	return Identity{Kind: KindClusterBpfApplication, Name: a.Name}
}

// Body implements Application.
func (a *ClusterBpfApplication) Body() *BpfApplicationSpec { return &a.Spec }

// Report implements Application.
func (a *ClusterBpfApplication) Report() *BpfApplicationStatus { return &a.Status }

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
