package v1alpha1

// DefragmentPriority is the priority at which netfilter defragments packets
// (NF_IP_PRI_CONNTRACK_DEFRAG).
const DefragmentPriority = -400

// Netfilter is a place of netfilter.
//
// +kubebuilder:validation:XValidation:rule="!has(self.defragment) || !self.defragment || !has(self.priority) || self.priority > -400",message="packets are defragmented at priority -400; give a higher priority, or remove defragment"
type Netfilter struct {
	// Family is IPv4 or IPv6.
	// +kubebuilder:validation:Enum=IPv4;IPv6
	Family string `json:"family"`

	// Hook is where on the way of a packet: PreRouting, LocalIn, Forward, LocalOut
	// or PostRouting.
	// +kubebuilder:validation:Enum=PreRouting;LocalIn;Forward;LocalOut;PostRouting
	Hook string `json:"hook"`

	// Priority is netfilter's own, among all its hooks and rules: lower runs first,
	// and a BPF program has its priority alone. Absent means 0, that of filters.
	// +optional
	// +kubebuilder:validation:Minimum=-2147483647
	// +kubebuilder:validation:Maximum=2147483646
	Priority int32 `json:"priority,omitempty"`

	// Defragment has the program see whole packets. It needs a priority above -400.
	// +optional
	Defragment bool `json:"defragment,omitempty"`
}
