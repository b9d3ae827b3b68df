package hook_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

func TestFromSection(t *testing.T) {
	for section, want := range map[string]struct{ hook, target string }{
		"xdp":                                   {"xdp", ""},
		"xdp.frags":                             {"xdp", ""},
		"xdp/count":                             {"xdp", "count"},
		"tc/ingress":                            {"tcx/ingress", ""},
		"tcx/egress":                            {"tcx/egress", ""},
		"tracepoint/syscalls/sys_enter_execve":  {"tracepoint", "syscalls/sys_enter_execve"},
		"tp/sched/sched_switch":                 {"tracepoint", "sched/sched_switch"},
		"tp_btf/sched_switch":                   {"tp_btf", "sched_switch"},
		"raw_tp.w/foo":                          {"raw_tp.w", "foo"},
		"?uprobe.s//bin/bash:readline":          {"uprobe", "/bin/bash:readline"},
		"uprobe.multi//bin/true:*":              {"uprobe.multi", "/bin/true:*"},
		"usdt//usr/bin/python3:python:line":     {"usdt", "/usr/bin/python3:python:line"},
		"cgroup/connect4":                       {"cgroup/connect4", ""},
		"cgroup/sock":                           {"cgroup/sock_create", ""},
		"cgroup_skb/ingress":                    {"cgroup_skb/ingress", ""},
		"lsm.s/file_open":                       {"lsm", "file_open"},
		"iter.s/task":                           {"iter", "task"},
		"sk_lookup":                             {"sk_lookup", ""},
		"sk_lookup/redirect":                    {"sk_lookup", "redirect"},
		"kprobe.multi/tcp_*":                    {"kprobe.multi", "tcp_*"},
		"tracepointless/syscalls":               {"", ""},
		"uprobe.session.s//bin/bash:read*":      {"uprobe.session", "/bin/bash:read*"},
		"fsession/tcp_connect":                  {"fsession", "tcp_connect"},
		"syscalls":                              {"", ""},
		"classifier":                            {"", ""},
		"":                                      {"", ""},
		".text":                                 {"", ""},
		"xdpx":                                  {"", ""},
		"xdp/devmap":                            {"", ""},
		"xdp.frags/devmap":                      {"", ""},
		"?xdp/cpumap":                           {"", ""},
		"xdp.frags/cpumap":                      {"", ""},
		"xdp_devmap/egress":                     {"", ""},
		"xdp/device":                            {"xdp", "device"},
		"raw_tracepoint/sched_process_exec":     {"raw_tp", "sched_process_exec"},
		"fentry.s/bpf_fentry_test":              {"fentry", "bpf_fentry_test"},
		"tracepoint.s/syscalls/sys_enter_write": {"tracepoint", "syscalls/sys_enter_write"},
	} {
		h, target, ok := hook.FromSection(section)
		if h.Name != want.hook || target != want.target || ok != (want.hook != "") {
			t.Errorf("FromSection(%q) = %q, %q, %v; want %q, %q", section, h.Name, target, ok, want.hook, want.target)
		}
	}
}

func TestSectionsForMapEntries(t *testing.T) {
	for section, want := range map[string]string{
		"xdp/devmap": "devmap", "xdp.frags/devmap": "devmap", "?xdp/cpumap": "cpumap", "xdp.frags/cpumap": "cpumap",
		"xdp_devmap/egress": "devmap", "xdp_cpumap/x": "cpumap", "xdp": "", "xdp/device": "", "tc/devmap": "", "": "",
	} {
		if kind, ok := hook.ForMapEntries(section); kind != want || ok != (want != "") {
			t.Errorf("ForMapEntries(%q) = %q, %v; want %q", section, kind, ok, want)
		}
	}
}

func TestFirstKernelsAreThoseOfLinks(t *testing.T) {
	// The first kernels with a bpf_link for programs of a type, and for attach types
	// that came later.
	firstLinks := map[ebpf.ProgramType]string{
		ebpf.XDP: "5.9", ebpf.TracePoint: "5.15", ebpf.RawTracepoint: "5.7", ebpf.RawTracepointWritable: "5.7", ebpf.Kprobe: "5.15",
		ebpf.Tracing: "5.7", ebpf.Extension: "5.7", ebpf.LSM: "5.7", ebpf.CGroupSKB: "5.7", ebpf.CGroupSock: "5.7", ebpf.CGroupSockAddr: "5.7",
		ebpf.CGroupSysctl: "5.7", ebpf.CGroupSockopt: "5.7", ebpf.CGroupDevice: "5.7", ebpf.SockOps: "5.7", ebpf.SkLookup: "5.8",
		ebpf.FlowDissector: "5.8", ebpf.Netfilter: "6.4", ebpf.PerfEvent: "5.15", ebpf.SkSKB: "6.10", ebpf.SkMsg: "6.10", ebpf.StructOps: "6.4",
	}
	later := map[ebpf.AttachType]string{
		ebpf.AttachTCXIngress: "6.6", ebpf.AttachTCXEgress: "6.6", ebpf.AttachNetkitPrimary: "6.7", ebpf.AttachNetkitPeer: "6.7",
		ebpf.AttachTraceKprobeMulti: "5.18", ebpf.AttachTraceUprobeMulti: "6.6", ebpf.AttachTraceKprobeSession: "6.10",
		ebpf.AttachTraceIter: "5.8", ebpf.AttachLSMCgroup: "6.0", ebpf.AttachSkLookup: "5.9", ebpf.AttachCgroupInetSockRelease: "5.9",
		ebpf.AttachCgroupInet4GetPeername: "5.8", ebpf.AttachCgroupInet6GetPeername: "5.8", ebpf.AttachCgroupInet4GetSockname: "5.8",
		ebpf.AttachCgroupInet6GetSockname: "5.8", ebpf.AttachCgroupUnixConnect: "6.7", ebpf.AttachCgroupUnixSendmsg: "6.7",
		ebpf.AttachCgroupUnixRecvmsg: "6.7", ebpf.AttachCgroupUnixGetpeername: "6.7", ebpf.AttachCgroupUnixGetsockname: "6.7",
	}
	// Held by no link: their first kernel is that of the program type.
	unlinked := map[string]string{"tc/ingress": "4.5", "tc/egress": "4.5", "socket": "3.19", "lirc_mode2": "4.18",
		"sk_skb": "4.14", "sk_reuseport": "4.19", "sk_reuseport/migrate": "5.14", "lwt_in": "4.10", "lwt_out": "4.10", "lwt_xmit": "4.10", "lwt_seg6local": "4.18",
		"syscall":        "5.14",
		"uprobe.session": "6.13", "fsession": "7.0"}
	for _, h := range hook.All() {
		want, special := unlinked[h.Name]
		if !special {
			want, special = later[h.AttachType]
		}
		if !special {
			want = firstLinks[h.ProgramType]
		}
		if h.MinKernel != want {
			t.Errorf("hook %s: first kernel %s, want %s", h.Name, h.MinKernel, want)
		}
	}
}

func TestTableIsWhole(t *testing.T) {
	kernel := regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	seen := map[string]bool{}
	for _, h := range hook.All() {
		if seen[h.Name] {
			t.Errorf("%s stands twice", h.Name)
		}
		seen[h.Name] = true
		if !kernel.MatchString(h.MinKernel) {
			t.Errorf("%s: minKernel %q is not major.minor", h.Name, h.MinKernel)
		}
		for _, s := range h.Sections {
			if got, _, _ := hook.FromSection(s); got.Name != h.Name {
				t.Errorf("section %q of %s resolves to %s", s, h.Name, got.Name)
			}
		}
		if h.Shape == "" || h.Sharing == "" || h.Replace == "" || h.Risk == "" {
			t.Errorf("%s: a column is empty", h.Name)
		}
		if why, instead := h.Obstacle(); (why == "") != h.Attachable || (instead == "") != h.Attachable {
			t.Errorf("%s: attachable: %v, obstacle %q, instead %q", h.Name, h.Attachable, why, instead)
		}
	}
	for _, must := range []string{
		"xdp", "tcx/ingress", "tcx/egress", "tracepoint", "raw_tp", "tp_btf", "uprobe", "uretprobe", "cgroup/connect4", "cgroup/bind6", "cgroup/sendmsg4",
		"cgroup/getsockopt", "cgroup/sock_create", "cgroup_skb/ingress", "cgroup_skb/egress", "sk_lookup", "iter",
	} {
		if h, ok := hook.Lookup(must); !ok || !h.Attachable {
			t.Errorf("%s must be attachable", must)
		}
	}
}

// TestEachHookOfANamespaceHasARow looks for every hook that a namespace may have in the table of the threat model that
// says whose task runs it, and for no other hook.
func TestEachHookOfANamespaceHasARow(t *testing.T) {
	body, err := os.ReadFile("../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(body), "### Each hook of a namespace\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := map[string]int{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 8 || strings.TrimSpace(cells[6]) == "" {
			t.Errorf("a row without a test: %s", line)
		}
		for pattern := range strings.SplitSeq(cells[1], ",") {
			pattern = strings.Trim(pattern, " `")
			found := false
			for _, h := range hook.All() {
				is, err := path.Match(pattern, h.Name)
				if err != nil {
					t.Fatal(err)
				}
				// What the glob of a family has beside hooks of a namespace is none of the table's.
				if is && h.Namespaceable {
					found = true
					rows[h.Name]++
				}
			}
			if !found {
				t.Errorf("%s is no hook of a namespace", pattern)
			}
		}
	}
	for _, h := range hook.All() {
		if h.Namespaceable && rows[h.Name] != 1 {
			t.Errorf("%s has %d rows: say whose task runs it, what it can do and what that costs others", h.Name, rows[h.Name])
		}
	}
}

// TestANamespaceHoldsNoHookOnEveryPodOfANode: what a hook on a cgroup, a user
// binary or a network namespace attaches to is any path of the node.
func TestANamespaceReachesItsOwnPods(t *testing.T) {
	for _, h := range hook.All() {
		inPod := h.Shape == hook.NetworkDevice || h.Shape == hook.Cgroup || h.Shape == hook.NetworkNamespace
		if h.Namespaceable && inPod == h.Guardable() {
			t.Errorf("a namespace can hold %s: its target %s has to be a Pod's own, or its programs guarded", h.Name, h.Shape)
		}
		if (h.TakesContainers() || h.ReachesNode()) && !h.Namespaceable {
			t.Errorf("%s takes no pods, and chooses containers or reaches the node from a namespace", h.Name)
		}
		if h.Namespaceable && !h.Attachable {
			t.Errorf("a namespace can hold %s, which is not attached", h.Name)
		}
	}
}
