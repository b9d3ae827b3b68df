package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// target is where programs of a kind are attached, and what makes a task pass there.
type target struct {
	spec   ebpf.ProgramSpec
	attach func(*ebpf.Program) (io.Closer, error)
	pass   func()
}

// probed is a function of this process with probes.
//
//go:noinline
func probed() int { return os.Getpagesize() }

// probedAt is where it lies in this binary.
func probedAt(b *testing.B) uint64 {
	b.Helper()
	at := uint64(reflect.ValueOf(probed).Pointer())
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = maps.Close() }()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		from, to, _ := strings.Cut(f[0], "-")
		first, errFirst := strconv.ParseUint(from, 16, 64)
		end, errEnd := strconv.ParseUint(to, 16, 64)
		offset, errOffset := strconv.ParseUint(f[2], 16, 64)
		if errors.Join(errFirst, errEnd, errOffset) == nil && first <= at && at < end {
			return at - first + offset
		}
	}
	b.Fatal("this process has no such function")
	return 0
}

// targets are those of all kinds. Programs of cgroups are attached to one.
func targets(b *testing.B, cgroup string) map[string]target {
	b.Helper()
	self, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		b.Fatal(err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Close(socket) })
	at := probedAt(b)
	call := func() { _, _, _ = unix.RawSyscall(unix.SYS_GETPGID, 0, 0, 0) }
	address := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	toCgroup := func(attach ebpf.AttachType) func(*ebpf.Program) (io.Closer, error) {
		return func(p *ebpf.Program) (io.Closer, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: attach, Program: p})
		}
	}
	return map[string]target{
		"raw_tp": {ebpf.ProgramSpec{Type: ebpf.RawTracepoint}, func(p *ebpf.Program) (io.Closer, error) {
			return link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: p})
		}, call},
		"tp_btf": {ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "sys_enter"}, tracing, call},
		"tracepoint": {ebpf.ProgramSpec{Type: ebpf.TracePoint}, func(p *ebpf.Program) (io.Closer, error) {
			return link.Tracepoint("raw_syscalls", "sys_enter", p, nil)
		}, call},
		"fentry": {ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry, AttachTo: getpgid}, tracing, call},
		"kprobe": {ebpf.ProgramSpec{Type: ebpf.Kprobe}, kprobe, call},
		"uprobe": {ebpf.ProgramSpec{Type: ebpf.Kprobe}, func(p *ebpf.Program) (io.Closer, error) {
			return self.Uprobe("probed", p, &link.UprobeOptions{Address: at})
		}, func() { probed() }},
		"uprobe.multi": {ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti}, func(p *ebpf.Program) (io.Closer, error) {
			return self.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: []uint64{at}})
		}, func() { probed() }},
		"cgroup/connect4": {ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect}, toCgroup(ebpf.AttachCGroupInet4Connect),
			func() { _ = unix.Connect(socket, address) }},
		"cgroup/getsockopt": {ebpf.ProgramSpec{Type: ebpf.CGroupSockopt, AttachType: ebpf.AttachCGroupGetsockopt}, toCgroup(ebpf.AttachCGroupGetsockopt),
			func() { _, _ = unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE) }},
	}
}

// load loads a program that does nothing. With so many members, it calls as many functions that do nothing, one after the other.
func (t target) load(b *testing.B, guarded bool, members int, maps map[string]*ebpf.Map) *ebpf.Program {
	b.Helper()
	spec := t.spec
	spec.Name, spec.License = "p", "GPL"
	var insns asm.Instructions
	for range members {
		insns = append(insns, asm.Call.Label("member"))
	}
	insns = append(insns, asm.Mov.Imm(asm.R0, neutral(&spec)), asm.Return())
	insns[0] = insns[0].WithSymbol("p")
	if members > 0 {
		insns = append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol("member"), asm.Return())
	}
	spec.Instructions = insns
	collection := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p": &spec}}
	var options ebpf.CollectionOptions
	if guarded {
		if err := Put(&spec, "s"); err != nil {
			b.Fatal(err)
		}
		collection.Maps, options.MapReplacements = Maps("s"), maps
	}
	loaded, err := ebpf.NewCollectionWithOptions(collection, options)
	if err != nil {
		b.Skipf("SKIPPED: this kernel has no such program: %v", err)
	}
	p := loaded.DetachProgram("p")
	loaded.Close()
	return p
}

// batch is how often a task passes a target between two looks at the clock: no longer than what other work leaves a processor for.
const batch = 100

// passes returns the time of one pass in ns: the least of many batches, since other work only adds.
func (t target) passes() float64 {
	least := math.Inf(1)
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; {
		start := time.Now()
		for range batch {
			t.pass()
		}
		least = min(least, float64(time.Since(start).Nanoseconds())/batch)
	}
	return least
}

// BenchmarkOthers has programs at a target that a task of no scope passes, or, inside, one of their scope: none, empty ones, and guarded
// ones, up to the bound of a namespace and of a node. A linked one has the guard once, before four members. Of the same
// one, there is one copy of its instructions for all links.
func BenchmarkOthers(b *testing.B) {
	nested := []string{tasks.Cgroup(b, "skep-a")}
	nested = append(nested, tasks.Cgroup(b, nested[0]+"/b"))
	enter(b, nested[1])
	maps := newMaps(b, "s")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, inside := range []bool{false, true} {
		var members []Member
		for i, cgroup := range nested {
			m := member(b, cgroup)
			if !inside || i == 0 {
				m.CgroupID += 1 << 40
			}
			members = append(members, m)
		}
		for name, t := range targets(b, nested[1]) {
			b.Run(fmt.Sprintf("%s/inside=%v", name, inside), func(b *testing.B) {
				if err := Scopes(maps)["s"].Set(members); err != nil {
					b.Fatal(err)
				}
				t.compare(b, maps)
			})
		}
	}
}

// compare measures sets of programs in turns, so that what else runs is the same for each.
func (t target) compare(b *testing.B, maps map[string]*ebpf.Map) {
	sets := []struct {
		name             string
		n                int
		guarded, sameOne bool
		members          int
	}{
		{"none", 0, false, false, 0}, {"1-empty", 1, false, false, 0}, {"4-empty", 4, false, false, 0}, {"16-empty", 16, false, false, 0},
		{"1-guarded", 1, true, false, 0}, {"4-guarded", 4, true, false, 0}, {"16-guarded", 16, true, false, 0},
		{"16-same", 16, true, true, 0}, {"1-linked", 1, true, false, 4},
	}
	least := map[string]float64{}
	for b.Loop() {
		for _, set := range sets {
			end := t.attachAll(b, set.n, func() *ebpf.Program { return t.load(b, set.guarded, set.members, maps) }, set.sameOne)
			now := t.passes()
			if had, has := least[set.name]; !has || now < had {
				least[set.name] = now
			}
			end()
		}
	}
	for _, set := range sets {
		b.ReportMetric(least[set.name], "ns/"+set.name)
	}
	b.ReportMetric(0, "ns/op")
}

// attachAll attaches so many programs, or so often the same one, and returns what ends that.
func (t target) attachAll(b *testing.B, n int, load func() *ebpf.Program, same bool) (end func()) {
	b.Helper()
	var all []io.Closer
	var p *ebpf.Program
	for range n {
		if p == nil || !same {
			p = load()
			all = append(all, p)
		}
		l, err := t.attach(p)
		if same && err != nil {
			// A cgroup has a program once.
			break
		}
		if err != nil {
			_ = p.Close()
			b.Skipf("SKIPPED: this kernel has no such hook: %v", err)
		}
		all = append(all, l)
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}
