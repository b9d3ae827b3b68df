package bytecode

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
)

// The labels of bpfman's bytecode image format; package image, which may import
// this one, exports those that are written. The last two are those of its first
// version, for images with a single program.
const (
	labelPrograms = "io.ebpf.programs"
	labelMaps     = "io.ebpf.maps"
	labelFunction = "io.ebpf.bpf_function_name"
	labelType     = "io.ebpf.program_type"
)

// Mismatch is one claim of an image's labels that the object contradicts.
type Mismatch struct {
	// Path is the label and the name in it, such as
	// io.ebpf.programs["count_packets"].
	Path string `json:"path"`
	// Claimed is what the label says, Actual what the object says; empty where
	// the object does not have the name.
	Claimed string `json:"claimed"`
	Actual  string `json:"actual"`
	// Message says what is wrong, Fix what would fix it.
	Message string `json:"message"`
	Fix     string `json:"fix"`
}

// Labels are the labels of bpfman's bytecode image format that tell the truth
// about an object: the names and types of its programs, and of its maps without
// the data sections, which bpfman's tools leave out as well.
func Labels(f Facts) map[string]string {
	programs, maps := map[string]string{}, map[string]string{}
	for _, p := range f.Programs {
		if names := programLabels(p); len(names) > 0 {
			programs[p.Name] = names[0]
		}
	}
	for _, m := range f.Maps {
		if !dataSection(m.Name) {
			maps[m.Name] = mapLabels(m)[0]
		}
	}
	return map[string]string{labelPrograms: object(programs), labelMaps: object(maps)}
}

// maxMismatches bounds what CompareLabels finds: labels are anybody's to write.
const maxMismatches = 64

// mismatches are the first that were found, and how many more there are.
type mismatches struct {
	first []Mismatch
	more  int
}

func (m *mismatches) add(one Mismatch) {
	if len(m.first) == maxMismatches {
		m.more++
		return
	}
	m.first = append(m.first, one)
}

// list is all that is told, the last of it how much is not.
func (m *mismatches) list() []Mismatch {
	if m.more == 0 {
		return m.first
	}
	return append(m.first, Mismatch{Path: "labels", Message: fmt.Sprintf("the object contradicts %d more claims of the labels", m.more), Fix: rebuild})
}

// CompareLabels finds what an image's labels claim and its object contradicts,
// in the order of label and name, up to 64 of it and one that counts the rest.
// What labels leave out they do not claim: bpfman's builder lists neither every
// program nor every map. Other tools' spellings, such as percpu_array or probe,
// count as what they mean.
func CompareLabels(labels map[string]string, f Facts) []Mismatch {
	programs, maps := map[string][]string{}, map[string][]string{}
	for _, p := range f.Programs {
		programs[p.Name] = programLabels(p)
	}
	for _, m := range f.Maps {
		maps[m.Name] = mapLabels(m)
	}
	var found mismatches
	found.inLabel(labels, labelPrograms, "program", programs)
	found.inLabel(labels, labelMaps, "map", maps)
	found.inFirstVersion(labels, programs)
	return found.list()
}

// inLabel compares one JSON label with what the object has.
func (m *mismatches) inLabel(labels map[string]string, label, kind string, actual map[string][]string) {
	text, ok := labels[label]
	if !ok {
		return
	}
	claims := map[string]string{}
	if err := json.Unmarshal([]byte(text), &claims); err != nil {
		m.add(Mismatch{
			Path:    label,
			Message: fmt.Sprintf("label %s is not a JSON object of %s names and types", label, kind),
			Fix:     rebuild,
		})
		return
	}
	for _, name := range sortedKeys(claims) {
		if one, bad := compareClaim(label, kind, name, claims[name], actual); bad {
			m.add(one)
		}
	}
}

// rebuild fixes every mismatch: the labels are made from the object then.
const rebuild = "build the image with skep image build, which writes the labels from the object"

// compareClaim compares one name's claimed type with the object's.
func compareClaim(label, kind, name, claim string, actual map[string][]string) (Mismatch, bool) {
	types, exists := actual[name]
	m := Mismatch{Path: at(label, name), Claimed: claim, Fix: rebuild}
	if !exists {
		m.Message = fmt.Sprintf("label %s claims a %s %s that the object does not have", label, kind, printable(name))
		return m, true
	}
	for _, t := range types {
		if spelling(t) == spelling(claim) {
			return Mismatch{}, false
		}
	}
	if len(types) > 0 {
		m.Actual = types[0]
	}
	m.Message = fmt.Sprintf("label %s claims that %s %s is of type %s, but the object makes it %q",
		label, kind, name, printable(claim), m.Actual)
	return m, true
}

// inFirstVersion compares the labels of the format's first version.
func (m *mismatches) inFirstVersion(labels map[string]string, programs map[string][]string) {
	name, named := labels[labelFunction]
	claim, typed := labels[labelType]
	if !named || !typed {
		return
	}
	if one, bad := compareClaim(labelType, "program", name, claim, programs); bad {
		m.add(one)
	}
}

// at is the path of a name within a label.
func at(label, name string) string { return label + "[" + printable(name) + "]" }

// spelling is a type's name without what tools disagree about: case and
// separators.
func spelling(name string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(name))
}

// object is a map as a JSON object with sorted keys.
func object(m map[string]string) string {
	b, err := json.Marshal(m)
	if err != nil {
		return "{}" // a map of strings always marshals
	}
	return string(b)
}

// dataSection reports whether a map backs global variables.
func dataSection(name string) bool { return strings.HasPrefix(name, ".") }

// programLabels are the names that label writers use for a program's type, the
// one to write first: the attachment that bpfman knows it by, or else the
// kernel's program type as bpfman's own tool prints it. A program of no known
// type has none.
func programLabels(p Program) []string {
	kernel := kernelTypeLabel(p.Type)
	family, _, _ := strings.Cut(p.Hook, ".")
	switch {
	case kernel == "":
		return nil
	case p.Hook == "socket":
		// What the object says, and what Skep loads it as.
		return []string{kernelTypeLabel(ebpf.SocketFilter.String()), kernel, "tcx"}
	case strings.HasPrefix(p.Hook, "tcx/"):
		return []string{"tcx", kernel}
	case kernel == "tc":
		return []string{kernel, "tcx"}
	}
	switch family {
	case "kprobe", "kretprobe", "uprobe", "uretprobe", "fentry", "fexit":
		return []string{family, kernel}
	case "tp_btf":
		return []string{kernel, family, "tracepoint"}
	}
	return []string{kernel, family}
}

// kernelTypeLabel is the name that bpfman's tool prints for a program type;
// its types.rs is the source of the list.
func kernelTypeLabel(t string) string {
	return map[string]string{
		"SocketFilter": "socket_filter", "Kprobe": "probe", "SchedCLS": "tc", "SchedACT": "sched_act",
		"TracePoint": "tracepoint", "XDP": "xdp", "PerfEvent": "perf_event", "CGroupSKB": "cgroup_skb",
		"CGroupSock": "cgroup_sock", "LWTIn": "lwt_in", "LWTOut": "lwt_out", "LWTXmit": "lwt_xmit",
		"SockOps": "sock_ops", "SkSKB": "sk_skb", "CGroupDevice": "cgroup_device", "SkMsg": "sk_msg",
		"RawTracepoint": "raw_tracepoint", "CGroupSockAddr": "cgroup_sock_addr",
		"LWTSeg6Local": "lwt_seg6local", "LircMode2": "lirc_mode2", "SkReuseport": "sk_reuseport",
		"FlowDissector": "flow_dissector", "CGroupSysctl": "cgroup_sysctl",
		"RawTracepointWritable": "raw_tracepoint_writable", "CGroupSockopt": "cgroup_sockopt",
		"Tracing": "tracing", "StructOps": "struct_ops", "Extension": "ext", "LSM": "lsm",
		"SkLookup": "sk_lookup", "Syscall": "syscall", "Netfilter": "netfilter",
	}[t]
}

// mapLabels are the names that label writers use for a map's type, the one to
// write first.
func mapLabels(m Map) []string {
	if names := mapTypeLabels(m.Type); len(names) > 0 {
		return names
	}
	return []string{strings.ToLower(m.Type)}
}

// mapTypeLabels are the names for a map type: the one that bpfman's tool
// prints, from the same source, and what else is in use.
func mapTypeLabels(t string) []string {
	return map[string][]string{
		"Hash": {"hash"}, "Array": {"array"}, "ProgramArray": {"prog_array", "program_array"},
		"PerfEventArray": {"perf_event_array"}, "PerCPUHash": {"per_cpu_hash"},
		"PerCPUArray": {"per_cpu_array"}, "StackTrace": {"stack_trace"}, "CGroupArray": {"cgroup_array"},
		"LRUHash": {"lru_hash"}, "LRUCPUHash": {"lru_per_cpu_hash"}, "LPMTrie": {"lpm_trie"},
		"ArrayOfMaps": {"array_of_maps"}, "HashOfMaps": {"hash_of_maps"}, "DevMap": {"devmap"},
		"SockMap": {"sockmap"}, "CPUMap": {"cpumap"}, "XSKMap": {"xskmap"}, "SockHash": {"sockhash"},
		"CGroupStorage": {"cgroup_storage"}, "ReusePortSockArray": {"reuseport_sockarray"},
		"PerCPUCGroupStorage": {"per_cpu_cgroup_storage"}, "Queue": {"queue"}, "Stack": {"stack"},
		"SkStorage": {"sk_storage"}, "DevMapHash": {"devmap_hash"}, "StructOpsMap": {"struct_ops"},
		"RingBuf": {"ringbuf", "ring_buffer"}, "InodeStorage": {"inode_storage"},
		"TaskStorage": {"task_storage"}, "BloomFilter": {"bloom_filter"}, "UserRingbuf": {"user_ringbuf"},
		"CgroupStorage": {"cgrp_storage"}, "Arena": {"arena"},
	}[t]
}
