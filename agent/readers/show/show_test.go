package show_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/readers/show"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/need"
)

// asConsumer has this binary consume the ring buffer that is pinned at a path, until its input ends.
const asConsumer = "SKEP_TEST_CONSUMER"

// asGuard has it have the first page mapped alone, as an agent whose volumes have the buffer.
const asGuard = "SKEP_TEST_GUARD"

func TestMain(m *testing.M) {
	if pin := os.Getenv(asConsumer); pin != "" {
		events, err := ebpf.LoadPinnedMap(pin, nil)
		switch {
		case err != nil:
		case os.Getenv(asGuard) != "":
			_, err = unix.Mmap(events.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		default:
			_, err = ringbuf.NewReader(events)
		}
		fmt.Println("consumes", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	leaks.Main(m)
}

// snoop runs the example exec-snoop.
func snoop(t *testing.T) (w *world.World, options inventory.Options, stop func()) {
	t.Helper()
	need.Kernel(t)
	w = world.New(t)
	object, err := os.ReadFile(filepath.Join(module.Root(), "examples/exec-snoop/exec_snoop.bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	a, stop := w.Start()
	at := []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_execve"}}
	p := w.Intent("exec-snoop", "xdp_pass", v1alpha1.Program{Name: "snoop", Attach: at})
	p.ObjectDigest = w.Object(object)
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	return w, inventory.Options{Managed: w.BPFFS}, stop
}

func find(t *testing.T, o inventory.Options, name string) show.Map {
	t.Helper()
	all, err := show.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := show.Find(all, "exec-snoop", name)
	if err != nil {
		t.Fatal(err, all)
	}
	return m
}

func TestRecordsAreDecodedByATypeOfTheProgram(t *testing.T) {
	_, o, _ := snoop(t)
	events := find(t, o, "events")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The agent has descriptors of the map, and consumes nothing.
	found := errors.New("found")
	go func() {
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, "/bin/true", "it").Run()
		}
	}()
	err := show.Watch(ctx, events, "event", func(r show.Record) error {
		fields, is := r.Value.(map[string]any)
		if !is {
			return fmt.Errorf("%v", r.Value)
		}
		if fields["file"] == "/bin/true" && fields["pid"] != nil && fields["uid"] == int64(0) {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Error(err)
	}
	if err := show.Watch(ctx, events, "nothing", nil); !errors.Is(err, show.ErrNotFound) {
		t.Errorf("a type that no program has: %v", err)
	}
	if err := show.Watch(ctx, find(t, o, ".bss"), "", nil); err == nil || !strings.Contains(err.Error(), "only a RingBuf and a PerfEventArray have records") {
		t.Errorf("a map without records: %v", err)
	}
}

func TestWhatAnotherProcessConsumesIsNotWatched(t *testing.T) {
	_, o, _ := snoop(t)
	pid, end := consume(t, find(t, o, "events").Pin)
	want := fmt.Sprintf("is consumed by process %d", pid)
	if err := show.Watch(t.Context(), find(t, o, "events"), "", nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	end()
	// The agent's page of the buffer does not stand in the way.
	_, end = consume(t, find(t, o, "events").Pin, asGuard+"=1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := show.Watch(ctx, find(t, o, "events"), "", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a buffer whose first page is mapped: %v", err)
	}
	end()
}

// consume has a child consume a buffer, until the function that it returns.
func consume(t *testing.T, pin string, env ...string) (pid int, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(append(os.Environ(), asConsumer+"="+pin), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, err := stdout.Read(line)
	if err != nil || string(line[:n]) != "consumes <nil>\n" {
		t.Fatalf("%q, %v", line[:n], err)
	}
	return cmd.Process.Pid, func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestEntriesAreDecodedByTheMapsTypes(t *testing.T) {
	w, o, stop := snoop(t)
	stop() // the agent would remove a pin that it does not know
	folder := filepath.Dir(find(t, o, "events").Pin)
	number := func(name string, size uint32) *btf.Int { return &btf.Int{Name: name, Size: size} }
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed} // as clang has it
	key := &btf.Struct{Name: "key", Size: 8, Members: []btf.Member{
		{Name: "port", Type: number("unsigned short", 2)}, {Name: "cpu", Type: number("unsigned int", 4), Offset: 32},
	}}
	value := &btf.Struct{Name: "value", Size: 24, Members: []btf.Member{
		{Name: "packets", Type: number("unsigned long long", 8)},
		{Name: "comm", Type: &btf.Array{Index: number("int", 4), Type: char, Nelems: 8}, Offset: 64},
		{Name: "addr", Type: &btf.Union{Size: 8, Members: []btf.Member{{Name: "v4", Type: number("unsigned int", 4)}}}, Offset: 128},
	}}
	for _, spec := range []*ebpf.MapSpec{
		{Name: "typed", Type: ebpf.Hash, KeySize: 8, ValueSize: 24, MaxEntries: 8, Key: key, Value: value},
		{Name: "plain", Type: ebpf.Hash, KeySize: 2, ValueSize: 2, MaxEntries: 8},
		{Name: "cpus", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 4, MaxEntries: 1, Key: number("unsigned int", 4), Value: number("unsigned int", 4)},
	} {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		switch spec.Name {
		case "typed":
			err = m.Put([]byte{53, 0, 0, 0, 2, 0, 0, 0}, append([]byte{7, 0, 0, 0, 0, 0, 0, 0}, "curl\x00abc\x01\x02\x03\x04\x05\x06\x07\x08"...))
		case "plain":
			err = m.Put([]byte{1, 2}, []byte{3, 4})
		case "cpus":
			perCPU := make([]uint32, ebpf.MustPossibleCPU())
			perCPU[0] = 9
			err = m.Put(uint32(0), perCPU)
		}
		if err := errors.Join(err, m.Pin(filepath.Join(folder, "m-"+spec.Name))); err != nil {
			t.Fatal(err)
		}
	}
	cpus, err := json.Marshal(append([]int{9}, make([]int, ebpf.MustPossibleCPU()-1)...))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ key, want string }{
		"typed": {`{"port": 53, "cpu": 2}`, `{"key":{"cpu":2,"port":53},"value":{"addr":"0102030405060708","comm":"curl","packets":7}}`},
		"plain": {"01 02", `{"key":"0102","value":"0304"}`},
		"cpus":  {"0", `{"key":0,"values":` + string(cpus) + `}`},
		".bss":  {"0", `{"key":0,"value":{"lost":0}}`},
	} {
		entries, err := show.Open(find(t, o, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Cleanup(func() { _ = entries.Close() })
		got, err := entries.Get(c.key)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		all := []show.Entry{got}
		if err := entries.All(t.Context(), func(e show.Entry) error {
			all = append(all, e)
			return nil
		}); err != nil || len(all) != 2 {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		for _, e := range all {
			text, err := json.Marshal(e)
			if diff := cmp.Diff(c.want, string(text)); diff != "" || err != nil {
				t.Errorf("%s: %v %s", name, err, diff)
			}
		}
	}
	entries, err := show.Open(find(t, o, "typed"))
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	if _, err := entries.Get(`{"port": 54}`); !errors.Is(err, show.ErrNotFound) {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err := entries.Get(`{"ports": 54}`); err == nil || !strings.Contains(err.Error(), "ports") {
		t.Errorf("a key of another type: %v", err)
	}
	if _, err := show.Open(find(t, o, "events")); err == nil || !strings.Contains(err.Error(), "use skep map watch") {
		t.Errorf("a ring buffer: %v", err)
	}
	all, err := show.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ application, name, want string }{
		{"nothing", "typed", "no application nothing with maps runs here"}, {"exec-snoop", "nothing", "it has .bss, "},
	} {
		if _, err := show.Find(all, c.application, c.name); !errors.Is(err, show.ErrNotFound) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for _, name := range []string{"typed", "plain", "cpus"} {
		_ = os.Remove(filepath.Join(folder, "m-"+name))
	}
	_ = w
}
