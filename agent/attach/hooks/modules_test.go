package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
)

// reload unloads a module and loads it again, as only a virtual machine of test/kernel lets
// a test.
func reload(t *testing.T, module string) func() {
	t.Helper()
	files, _ := filepath.Glob("/modules/*-" + module + ".ko")
	if len(files) != 1 {
		t.Skip("SKIPPED: this machine's modules are not to be unloaded; see test/kernel")
	}
	body, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		world.Until(t, "the module to be unloaded", time.Minute, func() bool {
			err := unix.DeleteModule(module, unix.O_NONBLOCK)
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) {
				t.Fatal(err)
			}
			return err == nil
		})
		if err := unix.InitModule(body, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAProbeOfAModuleThatIsLoadedAgainRuns unloads the module while the agent runs, and
// while it does not.
func TestAProbeOfAModuleThatIsLoadedAgainRuns(t *testing.T) {
	need.Kernel(t)
	again := reload(t, "veth")
	w := world.New(t)
	a, stop := w.Start()
	at := v1alpha1.Attachment{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{"veth_newlink"}}}
	runs := func(version uint32) {
		t.Helper()
		world.Until(t, fmt.Sprintf("version %d to run", version), 30*time.Second, func() bool {
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ag0"}, PeerName: "ag1"}
			if err := errors.Join(netlink.LinkAdd(l), netlink.LinkDel(l)); err != nil {
				t.Fatal(err)
			}
			s := a.Status()
			return len(s) == 1 && s[0].Error == "" && len(s[0].Programs) == 1 && lastRun(t, a) == version
		})
	}
	update := func(version uint32) {
		t.Helper()
		if err := w.Accept(a, world.Version(w, fmt.Sprint(version), at)); err != nil {
			t.Fatal(err)
		}
	}
	replaced := func(before uint32) {
		t.Helper()
		world.Until(t, "the dead link to be replaced", time.Minute, func() bool {
			s := a.Status()
			if len(s) != 1 || s[0].Error != "" || len(s[0].Programs) != 1 {
				return false
			}
			_, l := world.One(t, a)
			return l.ID != before && l.State == agent.Attached
		})
	}
	update(1)
	runs(1)
	_, before := world.One(t, a)
	again()
	a.Reconcile(t.Context())
	replaced(before.ID)
	update(2)
	runs(2)
	_, before = world.One(t, a)
	stop()
	again()
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	replaced(before.ID)
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
	update(3)
	runs(3)
}

// TestAnEventOfACPUThatComesBackIsOpenedAnew takes a CPU away while the agent does not run.
func TestAnEventOfACPUThatComesBackIsOpenedAnew(t *testing.T) {
	need.Kernel(t)
	if _, err := os.Stat("/modules"); err != nil {
		t.Skip("SKIPPED: this machine's CPUs are not to be taken away; see test/kernel")
	}
	w := world.New(t)
	a, stop := w.Start()
	if err := w.Accept(a, world.Version(w, "1", sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: 99}))); err != nil {
		t.Fatal(err)
	}
	before := a.Status()[0].Programs[0].Links
	stop()
	for _, online := range []string{"0", "1"} {
		if err := os.WriteFile("/sys/devices/system/cpu/cpu1/online", []byte(online), 0); err != nil {
			t.Fatal(err)
		}
	}
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	after := a.Status()[0].Programs[0].Links
	if len(before) != 2 || len(after) != 2 || after[0].ID != before[0].ID || after[1].ID == before[1].ID {
		t.Errorf("links before: %+v; after: %+v", before, after)
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// TestAKprobeIsOnTheFunctionThatIsNamedOrNone names the function of a system call as the
// kernel does not.
func TestAKprobeIsOnTheFunctionThatIsNamedOrNone(t *testing.T) {
	need.Kernel(t)
	for _, name := range []string{"kprobe", "kretprobe"} {
		world.NeedHook(t, name)
		w := world.New(t)
		a, _ := w.Start()
		err := w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{Hook: name, Functions: &v1alpha1.Functions{Names: []string{"sys_getpgid"}}}))
		if err == nil || !strings.Contains(err.Error(), "the kernel has no function sys_getpgid") || !strings.Contains(err.Error(), "near it") ||
			!strings.Contains(err.Error(), "hook ksyscall") {
			t.Errorf("the agent says %v", err)
		}
	}
}

// TestWhatIsNotTracedFiresNothing names a function of the kernel that ftrace has no place in. The kernel
// says that it is busy.
func TestWhatIsNotTracedFiresNothing(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "fentry")
	const untraced = "blk_account_io_done"
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var function *btf.Func
	traced, err := os.ReadFile("/sys/kernel/tracing/available_filter_functions")
	if err != nil || types.TypeByName(untraced, &function) != nil || strings.Contains(string(traced), "\n"+untraced+"\n") {
		t.Skipf("SKIPPED: this kernel has no function %s that cannot be traced: %v", untraced, err)
	}
	w := world.New(t)
	a, _ := w.Start()
	w.Give(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "fentry", Functions: &v1alpha1.Functions{Names: []string{untraced}}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The first reconcile may have looked at the functions of the kernel for long enough.
	err = await.Until(ctx, 10*time.Millisecond, func() error {
		if err := a.Settled(ctx); err == nil || !strings.Contains(err.Error(), "the kernel has a function "+untraced+" and cannot trace it") {
			return fmt.Errorf("the agent says %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAFunctionOfAModuleIsFoundThere names the module of a function, and one that it is not of.
func TestAFunctionOfAModuleIsFoundThere(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "fentry")
	if _, err := os.Stat("/sys/module/veth"); err != nil {
		t.Skip("SKIPPED: this kernel has no module veth")
	}
	for module, want := range map[string]string{"veth": "", "nf_defrag_ipv4": "the kernel has no function veth_newlink"} {
		w := world.New(t)
		a, _ := w.Start()
		err := w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "fentry", Functions: &v1alpha1.Functions{Names: []string{"veth_newlink"},
			Module: module}}))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("of module %s the agent says %v", module, err)
		}
	}
}
