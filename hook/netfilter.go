package hook

// NetfilterHooks are the places of netfilter on the way of a packet, in the order of enum
// nf_inet_hooks (include/uapi/linux/netfilter.h).
func NetfilterHooks() []string {
	return []string{"PreRouting", "LocalIn", "Forward", "LocalOut", "PostRouting"}
}

// NetfilterFamilies are the protocol families of netfilter that take BPF programs, with the
// kernel's numbers of them (NFPROTO_ in include/uapi/linux/netfilter.h).
func NetfilterFamilies() map[string]uint32 { return map[string]uint32{"IPv4": 2, "IPv6": 10} }
