package bytecode

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/test/harness/need"
)

// squeezed is a helper's name without what cilium/ebpf's spelling leaves out:
// FnMapLookupElem stands for bpf_map_lookup_elem.
func squeezed(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "bpf_"), "Fn")
	return strings.ToLower(strings.ReplaceAll(name, "_", ""))
}

func TestHelpersAreThoseOfCiliumEBPF(t *testing.T) {
	for i, h := range Helpers() {
		if h.ID != uint32(i+1) {
			t.Fatalf("helper %d stands at place %d", h.ID, i+1)
		}
		if got := asm.BuiltinFunc(h.ID).String(); squeezed(got) != squeezed(h.Name) {
			t.Errorf("helper %d is %s here and %s there", h.ID, h.Name, got)
		}
	}
	next := asm.BuiltinFunc(len(Helpers()) + 1).String()
	if !strings.HasPrefix(next, "BuiltinFunc(") {
		t.Errorf("cilium/ebpf knows one more helper, %s: add it with its kernel, licence and risk", next)
	}
}

func TestHelperTableIsWhole(t *testing.T) {
	newest := firstKernel
	for _, h := range Helpers() {
		if !strings.HasPrefix(h.Name, "bpf_") {
			t.Errorf("%s is no kernel name", h.Name)
		}
		if Older(h.MinKernel, newest) {
			t.Errorf("%s came with %s, but a helper of a lower number with %s: ids are given in order", h.Name, h.MinKernel, newest)
		}
		newest = h.MinKernel
		if found, ok := LookupHelper(h.Name); !ok || found != h {
			t.Errorf("LookupHelper(%s) = %+v", h.Name, found)
		}
	}
	if _, ok := LookupHelper("bpf_no_such_helper"); ok {
		t.Error("found a helper that is none")
	}
}

func TestRiskClasses(t *testing.T) {
	want := map[string]Risk{
		"bpf_probe_write_user":     WritesUserMemory,
		"bpf_override_return":      OverridesReturn,
		"bpf_send_signal":          SendsSignals,
		"bpf_send_signal_thread":   SendsSignals,
		"bpf_probe_read":           ReadsKernelMemory,
		"bpf_probe_read_str":       ReadsKernelMemory,
		"bpf_probe_read_kernel":    ReadsKernelMemory,
		"bpf_get_current_task":     ReadsKernelMemory,
		"bpf_kallsyms_lookup_name": ReadsKernelMemory,
		"bpf_probe_read_user":      ReadsUserMemory,
		"bpf_copy_from_user":       ReadsUserMemory,
		"bpf_sys_bpf":              MakesSystemCalls,
		"bpf_map_lookup_elem":      NoRisk,
		"bpf_xdp_adjust_head":      NoRisk,
	}
	for name, risk := range want {
		if h, ok := LookupHelper(name); !ok || h.Risk != risk {
			t.Errorf("%s has risk %q, want %q", name, h.Risk, risk)
		}
	}
	for _, h := range Helpers() {
		for _, part := range []string{"write_user", "override", "send_signal"} {
			if strings.Contains(h.Name, part) && h.Risk == NoRisk {
				t.Errorf("%s has no risk class", h.Name)
			}
		}
	}
}

func TestHelpersAreACopy(t *testing.T) {
	Helpers()[0].Name = "changed"
	if Helpers()[0].Name != "bpf_map_lookup_elem" {
		t.Error("a caller can change the table")
	}
}

func TestRiskyKfuncs(t *testing.T) {
	last := ""
	for _, k := range RiskyKfuncs() {
		if k.Name <= last || k.Risk == NoRisk || k.MinKernel == "" {
			t.Errorf("%+v after %q: not sorted, or a column is empty", k, last)
		}
		last = k.Name
	}
	if len(RiskyKfuncs()) < 14 {
		t.Errorf("only %d risky kfuncs", len(RiskyKfuncs()))
	}
}

// TestRiskyKfuncsAreThoseOfTheKernel looks through this machine's kernel for
// kfuncs whose names promise harm.
func TestRiskyKfuncsAreThoseOfTheKernel(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skipf("SKIPPED: needs a kernel with BTF: %v", err)
	}
	known := map[string]bool{}
	for _, k := range RiskyKfuncs() {
		known[k.Name] = true
	}
	kfuncs := 0
	for typ, err := range types.All() {
		if err != nil {
			t.Fatal(err)
		}
		f, ok := typ.(*btf.Func)
		if !ok || !slices.Contains(f.Tags, "bpf_kfunc") {
			continue
		}
		kfuncs++
		for _, part := range []string{
			"signal_task", "probe_read", "copy_from_user", "copy_to_user", "probe_write", "override", "crash", "set_dentry", "remove_dentry", "reboot", "panic",
		} {
			if strings.Contains(f.Name, part) && !known[f.Name] {
				t.Errorf("kfunc %s has no risk class", f.Name)
			}
		}
	}
	if kfuncs < 50 {
		t.Skipf("SKIPPED: this kernel marks only %d kfuncs in its BTF", kfuncs)
	}
}

// TestHelpersAgreeWithTheKernel asks the verifier of this machine about every
// helper in every program type it has: the names in its rejections, and whether
// it rejects a proprietary program for its licence.
func TestHelpersAgreeWithTheKernel(t *testing.T) {
	need.Kernel(t)
	asked, gpl, answered := 0, 0, map[string]bool{}
	for _, spec := range probeSpecs() {
		for _, h := range Helpers() {
			// A tracing program costs a look through the kernel's BTF: ask only
			// about what no other type has.
			if spec.Type == ebpf.Tracing && answered[h.Name] {
				continue
			}
			log, ok := verifierLog(t, spec, h)
			if !ok {
				break // this kernel has no such program type
			}
			asked++
			if name, named := nameInLog(log, h.ID); named && name != h.Name {
				t.Errorf("the kernel calls helper %d %s, not %s", h.ID, name, h.Name)
			}
			if unavailable(log) {
				continue
			}
			answered[h.Name] = true
			refused := strings.Contains(log, "GPL")
			if refused {
				gpl++
			}
			if refused != h.gplOnlyIn(spec.Type) {
				t.Errorf("%s in %s: the kernel wants the GPL: %v; the table says %v", h.Name, spec.Type, refused, !refused)
			}
		}
	}
	if asked < 10*len(helperTable) || gpl < 100 {
		t.Errorf("the kernel answered %d times, %d times about licences: too few to mean anything", asked, gpl)
	}
}

// probeSpecs are a program of each type that loads without a target, and of
// tracing programs, at the end.
func probeSpecs() []ebpf.ProgramSpec {
	specs := []ebpf.ProgramSpec{
		{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect},
		{Type: ebpf.CGroupSockopt, AttachType: ebpf.AttachCGroupSetsockopt},
		{Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup},
		{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter},
		{Type: ebpf.Syscall, Flags: flagSleepable},
	}
	for _, t := range []ebpf.ProgramType{
		ebpf.SocketFilter, ebpf.Kprobe, ebpf.SchedCLS, ebpf.SchedACT, ebpf.TracePoint, ebpf.XDP,
		ebpf.PerfEvent, ebpf.CGroupSKB, ebpf.CGroupSock, ebpf.LWTIn, ebpf.LWTOut, ebpf.LWTXmit,
		ebpf.SockOps, ebpf.SkSKB, ebpf.CGroupDevice, ebpf.SkMsg, ebpf.RawTracepoint,
		ebpf.LWTSeg6Local, ebpf.LircMode2, ebpf.SkReuseport, ebpf.FlowDissector,
		ebpf.CGroupSysctl, ebpf.RawTracepointWritable,
	} {
		specs = append(specs, ebpf.ProgramSpec{Type: t})
	}
	return append(specs,
		ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "sched_switch"},
		ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "task"},
	)
}
