package inventory_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

const bpffs = "/sys/fs/bpf"

// host is a network namespace of the test's own with one interface, and a
// directory to pin in.
type host struct {
	device netlink.Link
	pins   string
	cgroup string
}

func newHost(t *testing.T) host {
	t.Helper()
	need.Kernel(t)
	leaks.NetworkNamespace(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inv0"}, PeerName: "inv1"}))
	device, err := netlink.LinkByName("inv0")
	must(t, err)
	must(t, netlink.LinkSetUp(device))
	pins := filepath.Join(bpffs, "inventory-test-"+rand.Text())
	must(t, os.Mkdir(pins, 0o700))
	t.Cleanup(func() { must(t, os.RemoveAll(pins)) })
	return host{device: device, pins: pins, cgroup: newCgroup(t)}
}

// newCgroup makes a cgroup below the root of the tests' own.
func newCgroup(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(leaks.CgroupRoot(), "inventory-test-"+rand.Text())
	must(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() { must(t, os.Remove(dir)) })
	return dir
}

// netns is what the list calls this thread's network namespace: the kernel's
// word, unless the thread is the one the process goes by.
func netns(t *testing.T) string {
	t.Helper()
	const process = "/proc/self/ns/net"
	name, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	main, err := os.Readlink(process)
	must(t, err)
	if main == name {
		return process
	}
	return name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// load loads one of the project's test objects.
func load(t *testing.T, name string) *ebpf.Collection {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(name)))
	must(t, err)
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load %s: %+v", name, err)
	}
	t.Cleanup(coll.Close)
	return coll
}

// only is the one program of a collection, or the first by name.
func only(t *testing.T, coll *ebpf.Collection) *ebpf.Program {
	t.Helper()
	names := slices.Sorted(maps.Keys(coll.Programs))
	if len(names) == 0 {
		t.Fatal("no program")
	}
	return coll.Programs[names[0]]
}

func idOf(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	must(t, err)
	id, ok := info.ID()
	if !ok {
		t.Fatal("the kernel tells no id")
	}
	return uint32(id)
}

func list(t *testing.T, opts inventory.Options) inventory.Inventory {
	t.Helper()
	inv, err := inventory.List(t.Context(), opts)
	must(t, err)
	return inv
}

// find returns the element with an id.
func find[T any](t *testing.T, all []T, id uint32, idOf func(T) uint32) T {
	t.Helper()
	i := slices.IndexFunc(all, func(v T) bool { return idOf(v) == id })
	if i < 0 {
		t.Fatalf("%d is not listed", id)
	}
	return all[i]
}

func programID(p inventory.Program) uint32 { return p.ID }
func linkID(l inventory.Link) uint32       { return l.ID }
func mapID(m inventory.Map) uint32         { return m.ID }

// self is the test's own process as /proc shows it.
func self(t *testing.T) inventory.Process {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	must(t, err)
	return inventory.Process{PID: os.Getpid(), Name: string(bytes.TrimSpace(comm))}
}

// attachment is a way to attach one of the test objects, and what the list says
// about the link.
type attachment struct {
	object string
	attach func(host, *ebpf.Program) (link.Link, error)
	kind   string
	place  inventory.Place
}

// check attaches and compares. CGROUP and NETNS in a target stand for the
// test's own.
func (a attachment) check(t *testing.T) {
	t.Helper()
	h := newHost(t)
	program := only(t, load(t, a.object))
	l, err := a.attach(h, program)
	if errors.Is(err, ebpf.ErrNotSupported) && a.kind == "tcx" && before66(t) {
		t.Skipf("SKIPPED: %v", err)
	}
	must(t, err)
	t.Cleanup(func() { l.Close() })
	info, err := l.Info()
	must(t, err)
	place := a.place
	place.Target = strings.NewReplacer("CGROUP", "/"+filepath.Base(h.cgroup), "NETNS", netns(t)).Replace(place.Target)
	if a.kind == "perf_event" && before66(t) {
		place = inventory.Place{}
	}
	inv := list(t, inventory.Options{})
	want := inventory.Link{ID: uint32(info.ID), Type: a.kind, Program: idOf(t, program), Place: place,
		Holders: []inventory.Process{self(t)}, Pins: []string{}}
	if diff := cmp.Diff(want, find(t, inv.Links, want.ID, linkID)); diff != "" {
		t.Errorf("link (-want +got):\n%s", diff)
	}
	place.Link = want.ID
	if diff := cmp.Diff([]inventory.Place{place}, find(t, inv.Programs, want.Program, programID).Attached); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
}

func TestListTellsWhereNetworkLinksAttach(t *testing.T) {
	for name, tc := range map[string]attachment{
		"XDP": {"xdp_count", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Program: p, Interface: h.device.Attrs().Index})
		}, "xdp", inventory.Place{Hook: "xdp", Target: "inv0"}},
		"TCX": {"tcx_count", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Program: p, Interface: h.device.Attrs().Index, Attach: ebpf.AttachTCXEgress})
		}, "tcx", inventory.Place{Hook: "tcx/egress", Target: "inv0"}},
		"cgroup": {"cgroup_connect4", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: h.cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: p})
		}, "cgroup", inventory.Place{Hook: "cgroup/connect4", Target: "CGROUP"}},
		"network namespace": {"sk_lookup_count", func(h host, p *ebpf.Program) (link.Link, error) {
			own, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return nil, err
			}
			defer own.Close()
			return link.AttachNetNs(int(own.Fd()), p)
		}, "netns", inventory.Place{Hook: "sk_lookup", Target: "NETNS"}},
	} {
		t.Run(name, tc.check)
	}
}

func TestListTellsWhereTracingLinksAttach(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	for name, tc := range map[string]attachment{
		"tracepoint": {"tracepoint_count", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.Tracepoint("syscalls", "sys_enter_getpgid", p, nil)
		}, "perf_event", inventory.Place{Hook: "tracepoint", Target: "sys_enter_getpgid"}},
		"raw tracepoint": {"raw_tp_count", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exec", Program: p})
		}, "raw_tracepoint", inventory.Place{Hook: "raw_tp", Target: "sched_process_exec"}},
		"BTF tracepoint": {"tp_btf_count", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachTracing(link.TracingOptions{Program: p})
		}, "raw_tracepoint", inventory.Place{Hook: "tp_btf", Target: "sys_enter"}},
		"uprobe": {"uprobe_count", func(h host, p *ebpf.Program) (link.Link, error) {
			binary, err := link.OpenExecutable(exe)
			if err != nil {
				return nil, err
			}
			return binary.Uprobe("", p, &link.UprobeOptions{Address: 0x1000})
		}, "perf_event", inventory.Place{Hook: "uprobe", Target: exe + "+0x1000"}},
		"iterator": {"iter_task", func(h host, p *ebpf.Program) (link.Link, error) {
			return link.AttachIter(link.IterOptions{Program: p})
		}, "iter", inventory.Place{Hook: "iter"}},
	} {
		t.Run(name, tc.check)
	}
}

// before66 reports whether the kernel is older than the one that has TCX and that
// tells what perf_event links attach to.
func before66(t *testing.T) bool {
	t.Helper()
	code, err := features.LinuxVersionCode()
	must(t, err)
	return code < 6<<16|6<<8
}

func TestListTellsOfProgramsAttachedWithoutLinks(t *testing.T) {
	h := newHost(t)
	xdp, tc := only(t, load(t, "xdp_count")), only(t, load(t, "tcx_count"))
	must(t, netlink.LinkSetXdpFdWithFlags(h.device, xdp.FD(), 1<<1))
	index := h.device.Attrs().Index
	must(t, netlink.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}))
	must(t, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: tc.FD(),
		Name: "test", DirectAction: true,
	}))
	inv := list(t, inventory.Options{})
	for program, want := range map[*ebpf.Program]inventory.Place{xdp: {Hook: "xdp", Target: "inv0"}, tc: {Hook: "tc/egress", Target: "inv0"}} {
		got := find(t, inv.Programs, idOf(t, program), programID).Attached
		if diff := cmp.Diff([]inventory.Place{want}, got); diff != "" {
			t.Errorf("attached (-want +got):\n%s", diff)
		}
	}
}

func TestListTellsOfAFlowDissectorByALinkAndWithout(t *testing.T) {
	dissector := func() *ebpf.Program {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.FlowDissector, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		must(t, err)
		t.Cleanup(func() { must(t, program.Close()) })
		return program
	}
	newHost(t)
	program := dissector()
	own, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer own.Close()
	l, err := link.AttachNetNs(int(own.Fd()), program)
	must(t, err)
	info, err := l.Info()
	must(t, err)
	inv := list(t, inventory.Options{})
	want := []inventory.Place{{Hook: "flow_dissector", Target: netns(t), Link: uint32(info.ID)}}
	if diff := cmp.Diff(want, find(t, inv.Programs, idOf(t, program), programID).Attached); diff != "" {
		t.Errorf("attached by a link (-want +got):\n%s", diff)
	}
	must(t, l.Close())
	program = dissector()
	must(t, link.RawAttachProgram(link.RawAttachProgramOptions{Program: program, Attach: ebpf.AttachFlowDissector}))
	inv = list(t, inventory.Options{})
	want = []inventory.Place{{Hook: "flow_dissector", Target: netns(t)}}
	if diff := cmp.Diff(want, find(t, inv.Programs, idOf(t, program), programID).Attached); diff != "" {
		t.Errorf("attached without a link (-want +got):\n%s", diff)
	}
}

func TestListTellsWhereANetfilterLinkAttaches(t *testing.T) {
	newHost(t)
	if err := features.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("SKIPPED: %v", err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { must(t, program.Close()) })
	l, err := link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: link.NetfilterProtoIPv6, Hook: link.NetfilterInetForward, Priority: -5})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	info, err := l.Info()
	must(t, err)
	want := []inventory.Place{{Hook: "netfilter", Target: "IPv6 Forward priority -5", Link: uint32(info.ID)}}
	if diff := cmp.Diff(want, find(t, list(t, inventory.Options{}).Programs, idOf(t, program), programID).Attached); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
}

func TestListTellsOfTCXProgramsWithoutLinks(t *testing.T) {
	h := newHost(t)
	program := only(t, load(t, "tcx_count"))
	opts := link.RawAttachProgramOptions{Target: h.device.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress}
	if before66(t) {
		t.Skip("SKIPPED: TCX needs 6.6")
	}
	must(t, link.RawAttachProgram(opts))
	inv := list(t, inventory.Options{})
	want := []inventory.Place{{Hook: "tcx/ingress", Target: "inv0"}}
	if diff := cmp.Diff(want, find(t, inv.Programs, idOf(t, program), programID).Attached); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
}

func TestListTellsOfProgramsAttachedToCgroupsTheOldWay(t *testing.T) {
	h := newHost(t)
	program := only(t, load(t, "cgroup_connect4"))
	dir, err := os.Open(h.cgroup)
	must(t, err)
	defer dir.Close()
	must(t, link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: program, Attach: ebpf.AttachCGroupInet4Connect}))
	inv := list(t, inventory.Options{})
	want := []inventory.Place{{Hook: "cgroup/connect4", Target: "/" + filepath.Base(h.cgroup)}}
	if diff := cmp.Diff(want, find(t, inv.Programs, idOf(t, program), programID).Attached); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
}

func TestListDoesNotNameInterfacesOfOtherNamespaces(t *testing.T) {
	h := newHost(t)
	program := only(t, load(t, "xdp_count"))
	l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: h.device.Attrs().Index})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	elsewhere := make(chan inventory.Inventory)
	go func() {
		// A thread of the namespace the tests run in.
		inv, err := inventory.List(context.Background(), inventory.Options{})
		if err != nil {
			t.Error(err)
		}
		elsewhere <- inv
	}()
	inv := <-elsewhere
	places := find(t, inv.Programs, idOf(t, program), programID).Attached
	if len(places) != 1 || !strings.HasSuffix(places[0].Target, "of another namespace") {
		t.Errorf("attached %+v, want one interface of another namespace", places)
	}
}

func TestProgramIDsChangeWithThePrograms(t *testing.T) {
	newHost(t)
	has := func(id uint32) bool {
		t.Helper()
		ids, err := inventory.ProgramIDs(t.Context())
		if err != nil || !slices.IsSorted(ids) {
			t.Fatalf("ProgramIDs = %v, %v; want them in ascending order", ids, err)
		}
		return slices.Contains(ids, id)
	}
	program := only(t, load(t, "xdp_count"))
	if id := idOf(t, program); !has(id) {
		t.Errorf("ProgramIDs lacks %d", id)
	}
}

func TestListDescribesProgramsAndMaps(t *testing.T) {
	h := newHost(t)
	before := time.Now().Add(-2 * time.Second)
	coll := load(t, "xdp_count")
	program := only(t, coll)
	pin := filepath.Join(h.pins, "uid", strings.Repeat("0a", 16), "p-count_packets")
	must(t, os.MkdirAll(filepath.Dir(pin), 0o700))
	must(t, program.Pin(pin))
	inv := list(t, inventory.Options{Managed: h.pins})
	got := find(t, inv.Programs, idOf(t, program), programID)
	if got.Type != "XDP" || got.Name != "count_packets" || !got.Managed || got.Owner != nil {
		t.Errorf("program is %+v, want count_packets of type XDP, managed and without owner", got)
	}
	if got.LoadedAt.Before(before) || got.LoadedAt.After(time.Now()) {
		t.Errorf("loaded at %s, want a moment ago", got.LoadedAt)
	}
	if got.JitedBytes == 0 && jited(t) || got.MemlockBytes == 0 || got.VerifiedInstructions == 0 || len(got.Tag) != 16 {
		t.Errorf("program has sizes %+v, want them all", got)
	}
	if diff := cmp.Diff([]string{pin}, got.Pins); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]inventory.Process{self(t)}, got.Holders); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
	info, err := coll.Maps["counts"].Info()
	must(t, err)
	id, _ := info.ID()
	counts := find(t, inv.Maps, uint32(id), mapID)
	counts.MemlockBytes = 0
	want := inventory.Map{ID: uint32(id), Type: "PerCPUArray", Name: "counts", KeySize: 4, ValueSize: 8, MaxEntries: 1,
		Programs: []uint32{got.ID}, Holders: []inventory.Process{self(t)}, Pins: []string{}, Managed: true}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("map (-want +got):\n%s", diff)
	}
	if !slices.Contains(got.Maps, uint32(id)) {
		t.Errorf("program uses maps %v, want %d among them", got.Maps, id)
	}
}

func jited(t *testing.T) bool {
	t.Helper()
	enabled, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	must(t, err)
	return strings.TrimSpace(string(enabled)) != "0"
}

func TestListTellsSkepFromForeignByPins(t *testing.T) {
	h := newHost(t)
	mine, foreign := only(t, load(t, "xdp_pass")), only(t, load(t, "xdp_pass"))
	managed := filepath.Join(h.pins, "skep")
	must(t, os.MkdirAll(filepath.Join(managed, "+xdp", "7"), 0o700))
	must(t, os.Mkdir(managed+"-not", 0o700))
	must(t, foreign.Pin(filepath.Join(managed+"-not", "prog")))
	stray := only(t, load(t, "xdp_pass"))
	must(t, stray.Pin(filepath.Join(managed, "+xdp", "7", "stray")))
	must(t, os.Symlink("a note", filepath.Join(managed, "note")))
	must(t, os.Symlink(filepath.Join(managed+"-not", "prog"), filepath.Join(managed, "not-a-pin")))
	l, err := link.AttachXDP(link.XDPOptions{Program: mine, Interface: h.device.Attrs().Index})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	must(t, l.Pin(filepath.Join(managed, "+xdp", "7", "link")))
	inv := list(t, inventory.Options{BPFFS: h.pins})
	for program, want := range map[*ebpf.Program]bool{mine: true, foreign: false, stray: false} {
		if got := find(t, inv.Programs, idOf(t, program), programID); got.Managed != want {
			t.Errorf("program with pins %v is managed: %v, want %v", got.Pins, got.Managed, want)
		}
	}
}

func TestListReadsOwners(t *testing.T) {
	for name, tc := range map[string]struct {
		value string
		want  *owner.Owner
	}{
		"an application":   {`{"app":"default/counter","uid":"u","revision":"r"}`, &owner.Owner{App: "default/counter", UID: "u", Revision: "r"}},
		"no application":   {`{"uid":"u"}`, nil},
		"no JSON":          {"skep", nil},
		"nothing":          {"", nil},
		"JSON of a number": {"7", nil},
	} {
		t.Run(name, func(t *testing.T) {
			newHost(t)
			program := only(t, load(t, "xdp_pass"))
			must(t, program.BindMap(section(t, "bpf_metadata_skep", tc.value)))
			must(t, program.BindMap(section(t, "another_variable", `{"app":"wrong"}`)))
			inv := list(t, inventory.Options{})
			if diff := cmp.Diff(tc.want, find(t, inv.Programs, idOf(t, program), programID).Owner); diff != "" {
				t.Errorf("owner (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOfSeveralOwnersTheFirstOfTheProgramCounts(t *testing.T) {
	newHost(t)
	older, newer := section(t, "bpf_metadata_skep", `{"app":"a member"}`), section(t, "bpf_metadata_skep", `{"app":"the chain"}`)
	program := only(t, load(t, "xdp_pass"))
	must(t, program.BindMap(newer))
	must(t, program.BindMap(older))
	if got := find(t, list(t, inventory.Options{}).Programs, idOf(t, program), programID).Owner; got == nil || got.App != "the chain" {
		t.Errorf("owner is %+v", got)
	}
}

// section is a data section with one string.
func section(t *testing.T, name, value string) *ebpf.Map {
	t.Helper()
	bytes := append([]byte(value), 0)
	size := uint32(len(bytes))
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: ".rodata", Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1, Key: &btf.Void{},
		Value: &btf.Datasec{Name: ".rodata", Size: size, Vars: []btf.VarSecinfo{{Size: size, Type: &btf.Var{
			Name: name, Linkage: btf.GlobalVar, Type: &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: char, Nelems: size}}}}},
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: bytes}},
	})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// TestListLastsWhileObjectsComeAndGo has few objects come and go at each list: a kernel that is to
// free thousands of programs at once may never end that (see leaks.Hangs).
func TestListLastsWhileObjectsComeAndGo(t *testing.T) {
	newHost(t)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("xdp_maps")))
	must(t, err)
	for range 30 {
		churned := make(chan error)
		go func() {
			var err error
			for range 10 {
				var coll *ebpf.Collection
				if coll, err = ebpf.NewCollection(spec.Copy()); err != nil {
					break
				}
				coll.Close()
			}
			churned <- err
		}()
		list(t, inventory.Options{})
		must(t, <-churned)
	}
}

func TestListStopsWhenItsContextEnds(t *testing.T) {
	newHost(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := inventory.List(ctx, inventory.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
}

func TestListSaysWhatItNeeds(t *testing.T) {
	newHost(t)
	// Takes the effective capabilities from this thread only, which ends with
	// the test.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(t, unix.Capget(&header, &data[0]))
	whole := data
	data[0].Effective, data[1].Effective = 0, 0
	must(t, unix.Capset(&header, &data[0]))
	_, err := inventory.List(t.Context(), inventory.Options{})
	must(t, unix.Capset(&header, &whole[0]))
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("got error %v, want one about permission that names CAP_SYS_ADMIN", err)
	}
}

func TestJSONHasEmptyListsInPlaceOfNull(t *testing.T) {
	h := newHost(t)
	inv := list(t, inventory.Options{BPFFS: h.pins})
	text, err := json.Marshal(inv)
	must(t, err)
	if bytes.Contains(text, []byte("null")) {
		t.Errorf("a list is null in %s", text)
	}
}
