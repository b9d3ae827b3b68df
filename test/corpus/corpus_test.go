package corpus_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/workers"
)

func TestMain(m *testing.M) {
	events.MaybeChild()
	policies.MaybeWorkerChild()
	workers.Use()
	leaks.Main(m)
}

// The things that programs of the corpus are attached to.
const (
	device, peer = "corpus0", "corpus1"
	cgroup       = "/skep-corpus"
	// binary is the path that sections of testdata name.
	binary = "/tmp/skep-corpus-binary"
)

// firesWithin is how long a program may take to run after its event.
const firesWithin = 10 * time.Second

// others is where make corpus puts the objects that nobody here wrote, a folder for each
// source.
const others = "../../bin/corpus"

// object is an object of the corpus, by source/name.
type object struct {
	name string
	body []byte
}

func objects(t *testing.T) []object {
	t.Helper()
	var all []object
	for source, root := range map[string]fs.FS{"skep": corpus.Objects, "": os.DirFS(others)} {
		err := fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && file == "." {
				t.Logf("*** NO OTHER OBJECTS: those of make corpus are LEFT OUT ***")
				return nil
			}
			if err != nil || entry.IsDir() {
				return err
			}
			body, err := fs.ReadFile(root, file)
			name := path.Join(source, strings.TrimPrefix(file, "testdata/"))
			all = append(all, object{strings.TrimSuffix(strings.TrimSuffix(name, ".o"), ".elf"), body})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(all, func(a, b object) int { return strings.Compare(a.name, b.name) })
	return all
}

// byItself loads an object by the library alone, as libbpf would: without the programs that
// are off unless somebody asks.
func byItself(o object) error {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(o.body))
	if err != nil {
		return err
	}
	for name, p := range spec.Programs {
		if off(p.SectionName) && len(wanted(spec)) > 0 && !slices.Contains(wanted(spec), name) {
			delete(spec.Programs, name)
		}
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if m.Type == ebpf.RingBuf && m.MaxEntries == 0 || m.MaxEntries == 0 && m.Type == ebpf.Hash {
			m.MaxEntries = openEntries
		}
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	loaded.Close()
	return nil
}

// off reports whether libbpf loads no program of the section unless somebody asks.
func off(section string) bool { return strings.HasPrefix(section, "?") }

// wanted are the programs that a definition names: those of a section that are on or, where
// all are off, all of them, but not those that others call.
func wanted(spec *ebpf.CollectionSpec) []string {
	called := map[string]bool{}
	for _, m := range spec.Maps {
		for _, kv := range m.Contents {
			if name, ok := kv.Value.(string); ok && m.Type == ebpf.ProgramArray {
				called[name] = true
			}
		}
	}
	var on, all []string
	for name, p := range spec.Programs {
		if _, entries := hook.ForMapEntries(p.SectionName); entries || called[name] {
			continue
		}
		all = append(all, name)
		if !off(p.SectionName) {
			on = append(on, name)
		}
	}
	if len(on) == 0 {
		on = all
	}
	slices.Sort(on)
	return on
}

// openEntries is what a definition gives maps that have no size.
const openEntries = 1024

// definition is the shortest one for the object: what its sections say is left out.
func definition(o object, image string) (*v1alpha1.ClusterBpfApplication, error) {
	facts, err := bytecode.Inspect(bytes.NewReader(o.body), bytecode.Options{})
	if err != nil {
		return nil, err
	}
	read, err := objectfile.Read(o.body)
	if err != nil {
		return nil, err
	}
	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: label(o.name)}}
	app.Spec.Bytecode.Image = image
	app.Spec.Maps = map[string]v1alpha1.Map{}
	for _, m := range facts.Maps {
		if entries, value := m.OpenSizes(); entries || value {
			var sizes v1alpha1.Map
			if entries {
				sizes.MaxEntries = ptr[uint32](openEntries)
			}
			if value {
				sizes.ValueSize = ptr[uint32](8)
			}
			app.Spec.Maps[m.Name] = sizes
		}
	}
	for _, name := range wanted(read.Spec) {
		p := v1alpha1.Program{Name: name}
		if fact, ok := facts.Program(name); ok {
			p.Attach = []v1alpha1.Attachment{attachment(fact)}
		}
		app.Spec.Programs = append(app.Spec.Programs, p)
	}
	return app, nil
}

func ptr[T any](v T) *T { return &v }

func label(name string) string {
	return strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(name))
}

// attachment has what the section of a program does not say.
func attachment(p bytecode.Program) v1alpha1.Attachment {
	var a v1alpha1.Attachment
	h, ok := hook.Lookup(p.Hook)
	if !ok || h.Name == "socket" {
		i := slices.IndexFunc(hook.All(), func(h hook.Hook) bool { return h.ProgramType.String() == p.Type })
		if i < 0 {
			return a
		}
		h = hook.All()[max(i, slices.IndexFunc(hook.All(), func(h hook.Hook) bool { return h.ProgramType.String() == p.Type && h.Attachable }))]
		a.Hook = h.Name
		if strings.Contains(p.Name, "egress") && h.Name == "tcx/ingress" {
			a.Hook = "tcx/egress"
		}
	}
	switch h.Shape {
	case hook.NetworkDevice:
		a.Interfaces = &v1alpha1.Interfaces{Names: []string{device}}
	case hook.Cgroup:
		a.Cgroup = cgroup
	case hook.PerfEvent:
		a.PerfEvent = &v1alpha1.PerfEvent{Event: "context-switches", Period: 1}
	case hook.NetworkNamespace:
		if h.Name == "netfilter" {
			a.Netfilter = &v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn"}
		}
	}
	if p.Target != "" && (h.Shape != hook.UserBinary || strings.HasPrefix(p.Target, "/")) {
		return a
	}
	switch {
	case h.Name == "tracepoint":
		a.Tracepoint = "syscalls/sys_enter_getpgid"
	case h.Shape == hook.Tracepoint:
		a.Tracepoint = "sys_enter"
	case h.TakesSyscalls():
		a.Functions = &v1alpha1.Functions{Names: []string{"getpgid"}}
	case h.Name == "lsm":
		a.Functions = &v1alpha1.Functions{Names: []string{"task_getpgid"}}
	case h.Name == "lsm_cgroup":
		a.Functions = &v1alpha1.Functions{Names: []string{"socket_create"}}
	case h.TakesFunctions():
		a.Functions = &v1alpha1.Functions{Names: []string{"security_task_getpgid"}}
	case h.InBinary() == hook.InSymbols:
		a.Binary = &v1alpha1.UserBinary{Path: binary, Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}}}
	case h.InBinary() == hook.InUSDT:
		a.Binary = &v1alpha1.UserBinary{Path: binary, USDT: &v1alpha1.USDT{Provider: "skep", Name: "one"}}
	case h.Shape == hook.UserBinary:
		a.Binary = &v1alpha1.UserBinary{Path: binary, Symbol: "work_one"}
	}
	return a
}

// node is a gate and an agent.
type node struct {
	t      *testing.T
	supply *supply.Chain
	gate   *gate.Evaluator
	agent  *agent.Agent
	key    seals.Key
	bodies map[string][]byte
	serial int64
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, supply: supply.New(t), key: seals.New(t), bodies: map[string][]byte{}, serial: time.Now().UnixMilli()}
	images := supply.Client(t, registry.Options{CacheDir: t.TempDir()})
	trust, err := signing.NewTrust([]v1alpha1.BpfSigner{*n.supply.Signer("team")})
	if err != nil {
		t.Fatal(err)
	}
	// What policies say is of no interest here, so none is asked unless a test sets them.
	if n.gate, err = gate.New(gate.Options{Images: images, Trust: trust, Policies: new(policies.Set)}); err != nil {
		t.Fatal(err)
	}
	n.agent, err = agent.New(agent.Options{
		BPFFS: "/sys/fs/bpf/corpus", StateDir: filepath.Join(t.TempDir(), "state"), Trust: n.key.Trust, Log: slog.New(slog.DiscardHandler),
		SweepInterval: 200 * time.Millisecond,
		Fetch:         func(_ context.Context, digest string) ([]byte, error) { return n.bodies[digest], nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, n.agent.Close(), os.RemoveAll("/sys/fs/bpf/corpus")); err != nil {
			t.Error(err)
		}
	})
	return n
}

// runs takes an object through gate and agent to the events of its hooks, and returns why
// it does not run.
func (n *node) runs(o object) error {
	ref, _ := n.supply.Push(label(path.Base(o.name))+":v1", o.body)
	app, err := definition(o, ref)
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	input, err := n.gate.Input(n.t.Context(), gate.Request{Application: app})
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(o.body))
	n.bodies[digest] = o.body
	n.serial++
	payload := intent.Payload{Application: app.Identity(), UID: "uid-" + app.Name, Serial: n.serial, ImageDigest: input.Image.Digest, ObjectDigest: digest,
		Programs: input.Application.Spec.Programs, Maps: app.Spec.Maps}
	if err := n.settle(payload); err != nil {
		return errors.Join(fmt.Errorf("agent: %w", err), n.unload(payload))
	}
	return errors.Join(n.fire(), n.unload(payload))
}

func (n *node) settle(p intent.Payload) error {
	if err := n.agent.Accept(n.key.Seal(n.t, p)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	return n.agent.Settled(ctx)
}

func (n *node) unload(p intent.Payload) error {
	n.serial++
	return n.settle(intent.Payload{Application: p.Application, UID: p.UID, Serial: n.serial, Tombstone: true, Reason: "test"})
}

// errIdle says that programs are attached and that no event of theirs was caused.
var errIdle = errors.New("did not run")

// fire causes events until every program ran.
func (n *node) fire() error {
	var idle []string
	for end := time.Now().Add(firesWithin); ; {
		status := n.agent.Status()
		if len(status) != 1 {
			return fmt.Errorf("the agent has %d applications", len(status))
		}
		n.cause(status[0])
		if idle = n.idle(status[0]); len(idle) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("fire: %s %w", strings.Join(idle, ", "), errIdle)
		}
	}
}

// idle are the programs that did not run. Of those that run one after another at one place,
// the first may end it for the others; of those of XDP, the kernel counts the chain.
func (n *node) idle(status agent.ApplicationStatus) []string {
	idle, ran := map[string][]string{}, map[string]bool{}
	for _, p := range status.Programs {
		place, id := p.Name, ebpf.ProgramID(p.ID)
		for _, l := range p.Links {
			if h, ok := hook.Lookup(l.Hook); ok && h.Sharing == hook.Ordered {
				place = l.Hook + " " + l.Target
			}
			if l.Hook == "xdp" {
				id = runBy(link.ID(l.ID))
			}
		}
		runs, err := runsOf(id)
		if err != nil {
			return []string{err.Error()}
		}
		if runs > 0 {
			ran[place] = true
		} else {
			idle[place] = append(idle[place], p.Name)
		}
	}
	maps.DeleteFunc(idle, func(place string, _ []string) bool { return ran[place] })
	return slices.Concat(slices.Collect(maps.Values(idle))...)
}

// runBy is the program that a link runs, or 0.
func runBy(id link.ID) ebpf.ProgramID {
	l, err := link.NewFromID(id)
	if err != nil {
		return 0
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

// runsOf is how often the kernel ran a program.
func runsOf(id ebpf.ProgramID) (uint64, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0, err
	}
	stats, err := program.Stats()
	if err := errors.Join(err, program.Close()); err != nil {
		return 0, err
	}
	return stats.RunCount, nil
}

// cause causes what hooks see.
func (n *node) cause(status agent.ApplicationStatus) {
	n.t.Helper()
	events.Frame(n.t, device)
	events.Frame(n.t, peer)
	events.InCgroup(n.t, filepath.Join(leaks.CgroupRoot(), cgroup))
	events.Dial(n.t.Context(), "udp4", "127.0.0.1:9")
	for range 3 {
		_, _ = unix.Getpgid(os.Getpid())
		// How it ends is of no interest.
		if p, err := os.StartProcess(binary, []string{binary}, &os.ProcAttr{}); err == nil {
			_, _ = p.Wait()
		}
	}
	callInVain()
	for _, p := range status.Programs {
		for _, l := range p.Links {
			if l.Hook == "iter" {
				_, _ = os.ReadFile(l.Pin)
			}
		}
	}
	if err := testRun(); err != nil {
		n.t.Error(err)
	}
}

// callInVain enters system calls that tools trace, with arguments that the kernel denies, or
// that do nothing: signal 0.
func callInVain() {
	for _, call := range append([]uintptr{unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_STATX, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL}, olderSyscalls...) {
		_, _, _ = unix.Syscall(call, 0, 0, 0)
	}
}

// testRun runs a program once for a packet, by BPF_PROG_TEST_RUN.
func testRun() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	_, _, err = p.Test(make([]byte, 14))
	return errors.Join(err, p.Close())
}

// furnish makes what programs of the corpus are attached to.
func furnish(t *testing.T) {
	t.Helper()
	dir := filepath.Join(leaks.CgroupRoot(), cgroup)
	nop := []byte{0x90, 0x90, 0x90}
	body := userbinary.Make([]userbinary.Function{
		{Name: "work_one", Code: nop, Probes: []userbinary.Probe{{Provider: "skep", Name: "one", Args: "8@$7"}}}, {Name: "work_two", Code: nop},
	}, userbinary.Options{})
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: peer}
	err := errors.Join(events.LoopbackUp(), netlink.LinkAdd(pair), netlink.LinkSetUp(pair), os.MkdirAll(dir, 0o755), os.WriteFile(binary, body, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(netlink.LinkDel(pair), os.Remove(dir), os.Remove(binary)) })
	other, err := netlink.LinkByName(peer)
	if err == nil {
		err = netlink.LinkSetUp(other)
	}
	if err != nil {
		t.Fatal(err)
	}
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stats.Close() })
}

// excused are the objects that do not run for a reason that is none of Skep's, or known, and
// a part of the error that says it.
func excused() map[string]string {
	const onlySyscall = "hook ksyscall finds system calls by their names"
	return map[string]string{
		// Its functions are made up.
		"cilium-ebpf/testdata-manyprogs-el": "target does not exist",
		// A system call by a name that the kernel has not: its arguments would be others than the program reads.
		"cilium-ebpf/examples-kprobe-bpf_bpfel":        onlySyscall,
		"cilium-ebpf/examples-kprobe_percpu-bpf_bpfel": onlySyscall,
		"cilium-ebpf/examples-kprobepin-bpf_bpfel":     onlySyscall,
		"cilium-ebpf/examples-ringbuffer-bpf_bpfel":    onlySyscall,
		// cilium/ebpf 0.22 writes addr_space_cast without its offset.
		"skep/arena": "BPF_MOV uses reserved fields",
		// Kernels without error injection have no function for it.
		"skep/fentry_sleepable": "is not sleepable",
		"skep/struct_ops":       "struct_ops",
	}
}

// denied reports whether the gate said in words that there is nothing to attach, or that
// Skep does not attach it.
func denied(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "gate: ") && (strings.Contains(text, "shape/hook") || strings.Contains(text, "shape/programs")) ||
		strings.Contains(text, "bytecode/struct-ops")
}

// isPart reports whether the error is none for the object of a tool. Many have a program for
// each of several kernels, and load some of them; some trace what does not happen here.
func isPart(o object, err error) bool {
	source, name, _ := strings.Cut(o.name, "/")
	tool := source == "libbpf-tools" || source == "pcp" || source == "xdp-tools" && strings.HasPrefix(name, "usr-sbin-")
	return tool && (errors.Is(err, errIdle) || strings.Contains(err.Error(), "target does not exist"))
}

// lacking reports whether the kernel lacks a hook of the object.
func lacking(o object) bool {
	app, err := definition(o, "")
	if err != nil {
		return false
	}
	facts, err := bytecode.Inspect(bytes.NewReader(o.body), bytecode.Options{})
	if err != nil {
		return false
	}
	return slices.ContainsFunc(app.Spec.Programs, func(p v1alpha1.Program) bool {
		fact, _ := facts.Program(p.Name)
		h, ok := hook.Lookup(fact.Hook)
		return ok && errors.As(attach.Probe(h), new(*attach.LackingError))
	})
}

// hasAll reports whether the kernel has all that the programs of testdata need: Debian's do.
func hasAll(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	return strings.Contains(release, "-cloud-") && !strings.HasPrefix(release, "6.1.")
}

func TestObjectsThatLoadByThemselvesFire(t *testing.T) {
	need.Kernel(t)
	furnish(t)
	n, whole := newNode(t), hasAll(t)
	counts := map[string]int{}
	for _, o := range objects(t) {
		t.Run(o.name, func(t *testing.T) {
			alone, err := byItself(o), n.runs(o)
			excuse, known := excused()[o.name]
			source, _, _ := strings.Cut(o.name, "/")
			count := func(outcome string) {
				if alone == nil {
					outcome += ", and load by themselves"
				}
				counts[source+" "+outcome]++
			}
			switch {
			case err == nil:
				count("fire")
			case known && strings.Contains(err.Error(), excuse):
				count("known")
			case denied(err):
				count("denied")
			case isPart(o, err):
				count("attach in part, or without an event")
			case lacking(o):
				count("of hooks that this kernel lacks")
			case alone != nil && !(whole && strings.HasPrefix(o.name, "skep/")):
				count("not loaded by the library either")
			default:
				count("faults")
				t.Errorf("the library loads it: %v; in Skep: %v", alone == nil, err)
			}
			t.Logf("SKEP-CORPUS %s: alone: %v; in Skep: %v", o.name, brief(alone), brief(err))
		})
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("SKEP-CORPUS objects: %s: %d", what, counts[what])
	}
}

// brief is an error in a line.
func brief(err error) string {
	if err == nil {
		return "ok"
	}
	line := strings.ReplaceAll(err.Error(), "\n", " | ")
	return line[:min(len(line), 400)]
}
