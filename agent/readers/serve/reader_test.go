package serve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
)

// asReader has this binary be a reader without rights: of the folder, by pins or by the socket.
const asReader = "SKEP_TEST_READER"

// readers is the user and group of readers, as of distroless images.
const readers = 65532

// stats is the value of a map.
type stats struct {
	Packets uint64
	CPU     uint32
	_       [4]byte
}

// readAll gives up all rights, reads every map of a folder, and prints what it finds.
func readAll() int {
	how, dir, _ := strings.Cut(os.Getenv(asReader), ":")
	if err := giveUp(how == "socket"); err != nil {
		fmt.Println("give up rights:", err)
		return 1
	}
	maps, err := skepmap.Open(dir)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer maps.Close()
	printEntries[uint32, stats](maps, "hash", "lru")
	printEntries[uint32, []uint32](maps, "cpuhash", "cpuarray")
	printEntries[uint32, uint64](maps, "array", "many")
	printEntries[[8]byte, uint32](maps, "trie")
	for _, name := range []string{"hash", "written"} {
		m, err := maps.Map(name)
		if err != nil {
			fmt.Println(err)
			continue
		}
		var missing stats
		fmt.Println(name, "look up:", plainly(m.Lookup(uint32(999), &missing)))
		fmt.Println(name, "put:", plainly(m.Put(uint32(4), stats{Packets: 40})))
		fmt.Println(name, "put what is there:", plainly(m.Update(uint32(4), stats{}, ebpf.UpdateNoExist)))
		fmt.Println(name, "delete:", plainly(m.Delete(uint32(1))))
	}
	printRecords(maps)
	return 0
}

// plainly is an error by what it is: its text names files.
func plainly(err error) string {
	for name, known := range map[string]error{"EPERM": fs.ErrPermission, "no such key": ebpf.ErrKeyNotExist, "it exists": ebpf.ErrKeyExist} {
		if errors.Is(err, known) {
			return name
		}
	}
	return fmt.Sprint(err)
}

func printEntries[K, V any](maps *skepmap.Maps, names ...string) {
	for _, name := range names {
		m, err := maps.Map(name)
		if err != nil {
			fmt.Println(err)
			continue
		}
		var lines []string
		var key K
		var value, again V
		all := m.Iterate()
		for all.Next(&key, &value) {
			lookup := m.Lookup(key, &again)
			lines = append(lines, fmt.Sprint(name, " ", key, "=", value, " ", fmt.Sprint(value) == fmt.Sprint(again), lookup))
		}
		slices.Sort(lines)
		if len(lines) > 20 {
			lines = append(lines[:2], fmt.Sprint(name, " has ", len(lines)))
		}
		fmt.Println(strings.Join(lines, "\n"), all.Err())
	}
}

func printRecords(maps *skepmap.Maps) {
	m, err := maps.Map("ring")
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := m.Consume()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer records.Close()
	for err == nil {
		// What was produced before is read at once.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		var record []byte
		if record, err = records.Read(ctx); err == nil {
			fmt.Println("record", binary.NativeEndian.Uint64(record))
		}
		cancel()
	}
	fmt.Println("record", err)
}

// giveUp makes the process one of a pod under the Pod Security Standard restricted: another user
// without capabilities, no_new_privs, and where filtered, a seccomp profile that forbids bpf(2).
func giveUp(filtered bool) error {
	groups := errors.Join(syscall.Setgroups([]int{readers}), syscall.Setresgid(readers, readers, readers))
	if err := errors.Join(groups, syscall.Setresuid(readers, readers, readers)); err != nil {
		return err
	}
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	if filtered {
		filter = []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_BPF},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// All other threads get the filter, and no_new_privs with it.
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	if _, err := ebpf.LoadPinnedMap("/sys/fs/bpf/none", nil); errors.Is(err, unix.EPERM) != filtered {
		return fmt.Errorf("bpf(2) answers %w", err)
	}
	return nil
}

// readersFolder has every kind of map, as the agent makes it.
type readersFolder struct {
	dir     string
	listing skepmap.Listing
	maps    map[string]*ebpf.Map
}

func newReadersFolder(t *testing.T) *readersFolder {
	t.Helper()
	// Below the folder of a test, others may not look.
	dir, err := os.MkdirTemp("", "readers") //nolint:usetesting // as above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &readersFolder{dir: dir, maps: map[string]*ebpf.Map{}, listing: skepmap.Listing{
		Application: skepmap.Application{Kind: "BpfApplication", Namespace: "shop", Name: "dns"}, Generation: 1, Maps: map[string]skepmap.MapInfo{},
	}}
	pins := "/sys/fs/bpf/readers"
	if err := errors.Join(os.Mkdir(pins, 0o755), os.Chmod("/sys/fs/bpf", 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(pins) })
	for name, c := range map[string]struct {
		spec   ebpf.MapSpec
		access skepmap.Access
	}{
		"hash":     {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 16, MaxEntries: 64}, skepmap.Read},
		"lru":      {ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 16, MaxEntries: 64}, skepmap.Read},
		"cpuhash":  {ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 4, MaxEntries: 64}, skepmap.Read},
		"cpuarray": {ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 4, MaxEntries: 3}, skepmap.Read},
		"array":    {ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 3}, skepmap.Read},
		"many":     {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 20000}, skepmap.Read},
		"trie":     {ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 64, Flags: unix.BPF_F_NO_PREALLOC}, skepmap.Read},
		"written":  {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 16, MaxEntries: 64}, skepmap.Write},
		"ring":     {ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096}, skepmap.Consume},
	} {
		f.add(t, name, newMap(t, &c.spec), c.access)
	}
	for i := range uint32(3) {
		perCPU := make([]uint32, ebpf.MustPossibleCPU())
		for cpu := range perCPU {
			perCPU[cpu] = 100*i + uint32(cpu)
		}
		one := stats{Packets: uint64(10 * i), CPU: i}
		for name, value := range map[string]any{"hash": one, "lru": one, "written": one, "cpuhash": perCPU, "cpuarray": perCPU, "array": uint64(i)} {
			if err := f.maps[name].Put(i, value); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := f.maps["trie"].Put([]byte{8 * byte(i), 0, 0, 0, 10, byte(i), 0, 0}, i); err != nil {
			t.Fatal(err)
		}
	}
	keys, values := make([]uint32, 20000), make([]uint64, 20000)
	for i := range keys {
		keys[i], values[i] = uint32(i), uint64(i)
	}
	if _, err := f.maps["many"].BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	f.write(t)
	return f
}

// add pins a map, for the group of readers, and lists it.
func (f *readersFolder) add(t *testing.T, name string, m *ebpf.Map, access skepmap.Access) {
	t.Helper()
	mode := map[skepmap.Access]os.FileMode{skepmap.Read: 0o440, skepmap.Write: 0o660, skepmap.Consume: 0o660}[access]
	path := filepath.Join("/sys/fs/bpf/readers", name)
	_ = os.Remove(path)
	_ = os.Remove(filepath.Join(f.dir, name))
	if err := errors.Join(m.Pin(path), os.Chown(path, 0, readers), os.Chmod(path, mode), os.Symlink(path, filepath.Join(f.dir, name))); err != nil {
		t.Fatal(err)
	}
	f.maps[name] = m
	f.listing.Maps[name] = skepmap.MapInfo{Type: m.Type().String(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: m.MaxEntries(),
		Access: access, Generation: f.listing.Generation}
}

func (f *readersFolder) write(t *testing.T) {
	t.Helper()
	raw, err := f.listing.Encode()
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(f.dir, ".next")
	if err := errors.Join(os.WriteFile(next, raw, 0o600), os.Chmod(next, 0o644), os.Rename(next, filepath.Join(f.dir, skepmap.ListingFile))); err != nil {
		t.Fatal(err)
	}
}

// serve has the agent answer on the folder's socket.
func (f *readersFolder) serve(t *testing.T, s *serve.Server) *serve.Folder {
	t.Helper()
	l, err := serve.Listen(filepath.Join(f.dir, skepmap.SocketFile), 0o660, readers)
	if err != nil {
		t.Fatal(err)
	}
	served := s.Serve(l, "")
	t.Cleanup(func() { _ = served.Close() })
	f.grant(t, served)
	return served
}

func (f *readersFolder) grant(t *testing.T, served *serve.Folder) {
	t.Helper()
	all := map[string]serve.Granted{}
	for name, info := range f.listing.Maps {
		g := grant(t, f.maps[name], info.Access, info.Generation, nil)
		g.Info = info
		all[name] = g
	}
	served.Grant(all)
}

// produce has a program put records into a ring buffer.
func produce(t *testing.T, ring *ebpf.Map, values ...int32) {
	t.Helper()
	for _, value := range values {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, value),
			asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, ring.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -8),
			asm.Mov.Imm(asm.R3, 8),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnRingbufOutput.Call(),
			asm.Return(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
			t.Fatal(err)
		}
		_ = program.Close()
	}
}

// read runs a reader without rights, and returns what it printed.
func read(t *testing.T, dir, how string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), asReader+"="+how+":"+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := child.Run(cmd); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return out.String()
}

// TestAReaderWithoutRightsReadsTheSameEitherWay: user 65532 without capabilities, once with the pins,
// and once where a seccomp profile answers EPERM to bpf(2), as that of containers does.
func TestAReaderWithoutRightsReadsTheSameEitherWay(t *testing.T) {
	read1 := map[string]string{}
	for _, how := range []string{"pins", "socket"} {
		t.Run(how, func(t *testing.T) {
			f := newReadersFolder(t)
			produce(t, f.maps["ring"], 7, 8, 9)
			if how == "socket" {
				f.serve(t, serve.New(serve.Options{FolderShare: 1, Share: 1}))
			}
			read1[how] = read(t, f.dir, how)
			if err := f.maps["written"].Lookup(uint32(4), new(stats)); err != nil {
				t.Errorf("what the reader wrote: %v", err)
			}
			if err := f.maps["written"].Lookup(uint32(1), new(stats)); !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Errorf("what the reader deleted: %v", err)
			}
		})
	}
	if diff := cmp.Diff(read1["pins"], read1["socket"]); diff != "" {
		t.Errorf("by pins (-) and by the socket (+):\n%s", diff)
	}
	cpus := make([]uint32, ebpf.MustPossibleCPU())
	for cpu := range cpus {
		cpus[cpu] = 200 + uint32(cpu)
	}
	for _, want := range []string{
		"hash 1={10 1 [0 0 0 0]} true <nil>", "lru 1={10 1 [0 0 0 0]} true <nil>", fmt.Sprintf("cpuhash 2=%v true <nil> <nil>", cpus),
		fmt.Sprintf("cpuarray 2=%v true <nil> <nil>", cpus), "array 2=2 true <nil> <nil>", "many has 20000 <nil>", "trie [16 0 0 0 10 2 0 0]=2 true <nil>",
		"hash look up: no such key", "hash put: EPERM", "hash put what is there: EPERM", "hash delete: EPERM",
		"written put: <nil>", "written put what is there: it exists", "written delete: <nil>",
		"record 7", "record 8", "record 9", "record context deadline exceeded",
	} {
		if !strings.Contains(read1["socket"], want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	if t.Failed() {
		t.Log(read1["socket"])
	}
}

// TestAReaderOfNoGroupIsTold which group it should be in.
func TestAReaderOfNoGroupIsTold(t *testing.T) {
	f := newReadersFolder(t)
	info := f.listing.Maps["hash"]
	info.Group = "metrics"
	f.listing.Maps["hash"] = info
	f.write(t)
	if err := os.Chown("/sys/fs/bpf/readers/hash", 0, 4242); err != nil {
		t.Fatal(err)
	}
	if out := read(t, f.dir, "pins"); !strings.Contains(out, "it was granted to the group metrics") {
		t.Error(out)
	}
	// Without a socket, a filter of system calls answers before the kernel looks at the group.
	if out := read(t, f.dir, "socket"); !strings.Contains(out, "does a seccomp filter forbid bpf(2)?") || strings.Contains(out, "the group metrics") {
		t.Error(out)
	}
	// A further group of the host has a pin of its own.
	again := filepath.Join("/sys/fs/bpf/readers", "hash@extra")
	clone, err := f.maps["hash"].Clone() // the other one's pin would move
	if err != nil {
		t.Fatal(err)
	}
	defer clone.Close()
	pinned := errors.Join(clone.Pin(again), os.Chown(again, 0, readers), os.Chmod(again, 0o440))
	if err := errors.Join(pinned, os.Symlink(again, filepath.Join(f.dir, "hash@extra"))); err != nil {
		t.Fatal(err)
	}
	if out := read(t, f.dir, "pins"); !strings.Contains(out, "hash 1={10 1 [0 0 0 0]} true <nil>\n") {
		t.Error(out)
	}
}

// TestMapsFollowTheirFolder: a map that is replaced, withdrawn and granted again.
func TestMapsFollowTheirFolder(t *testing.T) {
	for _, how := range []string{"pins", "socket"} {
		t.Run(how, func(t *testing.T) {
			f := newReadersFolder(t)
			var served *serve.Folder
			if how == "socket" {
				served = f.serve(t, serve.New(serve.Options{}))
				if err := os.RemoveAll("/sys/fs/bpf/readers"); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir("/sys/fs/bpf/readers", 0o700); err != nil {
					t.Fatal(err)
				}
			}
			publish := func() {
				if served != nil {
					f.grant(t, served)
				}
				f.write(t)
			}
			maps, err := skepmap.Open(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			defer maps.Close()
			m, err := maps.Map("array")
			if err != nil {
				t.Fatal(err)
			}
			ringMap, err := maps.Map("ring")
			if err != nil {
				t.Fatal(err)
			}
			records, err := ringMap.Consume()
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := records.Read(context.Background())
				ended <- err
			}()
			var value uint64
			if err := m.Lookup(uint32(2), &value); err != nil || value != 2 {
				t.Fatal(value, err)
			}
			// A new version resets both maps.
			f.listing.Generation = 2
			f.add(t, "array", newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 3}), skepmap.Read)
			f.add(t, "ring", newMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 8192}), skepmap.Consume)
			publish()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if l, err := maps.Watch(ctx, 1); err != nil || l.Generation != 2 {
				t.Fatal(l.Generation, err)
			}
			if err := m.Lookup(uint32(2), &value); err != nil || value != 0 {
				t.Errorf("after a reset: %d, %v", value, err)
			}
			if err := <-ended; !errors.Is(err, skepmap.ErrReplaced) {
				t.Errorf("the reader of the former ring buffer: %v", err)
			}
			if records, err = ringMap.Consume(); err != nil {
				t.Fatal(err)
			}
			produce(t, f.maps["ring"], 5)
			if record, err := records.Read(ctx); err != nil || record[0] != 5 {
				t.Errorf("%v, %v", record, err)
			}
			// The grants are withdrawn.
			array, ring := f.listing.Maps["array"], f.listing.Maps["ring"]
			delete(f.listing.Maps, "array")
			delete(f.listing.Maps, "ring")
			f.listing.Generation = 3
			publish()
			if _, err := records.Read(ctx); !errors.Is(err, skepmap.ErrWithdrawn) {
				t.Errorf("the reader of a ring buffer that is withdrawn: %v", err)
			}
			if _, err := maps.Watch(ctx, 2); err != nil {
				t.Fatal(err)
			}
			if err := m.Lookup(uint32(2), &value); !errors.Is(err, skepmap.ErrWithdrawn) {
				t.Errorf("a map that is withdrawn: %v", err)
			}
			// They are granted again.
			f.listing.Maps["array"], f.listing.Maps["ring"], f.listing.Generation = array, ring, 4
			publish()
			if _, err := maps.Watch(ctx, 3); err != nil {
				t.Fatal(err)
			}
			if err := m.Lookup(uint32(2), &value); err != nil {
				t.Errorf("a map that is granted again: %v", err)
			}
			// The folder goes, as a host's does with its application.
			if err := os.RemoveAll(f.dir); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Watch(ctx, 4); err != nil {
				t.Fatal(err)
			}
			if err := m.Lookup(uint32(2), &value); !errors.Is(err, skepmap.ErrWithdrawn) {
				t.Errorf("a map whose folder is gone: %v", err)
			}
			if how == "socket" {
				return
			}
			if err := errors.Join(os.Mkdir(f.dir, 0o755), os.Symlink("/sys/fs/bpf/readers/array", filepath.Join(f.dir, "array"))); err != nil {
				t.Fatal(err)
			}
			f.listing.Maps = map[string]skepmap.MapInfo{"array": array}
			f.write(t)
			await.True(t, "a folder that comes back is followed", time.Minute, func() bool { return m.Lookup(uint32(2), &value) == nil })
		})
	}
}

// One group of a process may have a grant for Read, and another one a grant for Write.
func TestAMapOpensByThePinThatMayBeWritten(t *testing.T) {
	f := newReadersFolder(t)
	maps, err := skepmap.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	put := func(name string) string {
		m, err := maps.Map(name)
		if err != nil {
			t.Fatal(err)
		}
		return plainly(m.Put(uint32(4), stats{Packets: 40}))
	}
	if err := os.Symlink("/sys/fs/bpf/readers/hash", filepath.Join(f.dir, skepmap.GroupPin("hash", "ops"))); err != nil {
		t.Fatal(err)
	}
	if got := put("hash"); got != "<nil>" {
		t.Errorf("a map with a second pin answers %s", got)
	}
	if got := put("lru"); got != "EPERM" {
		t.Errorf("a map with a pin for Read answers %s", got)
	}
}

// TestConsumersOutliveTheAgent: the descriptor is the reader's, and the place is asked for again.
func TestConsumersOutliveTheAgent(t *testing.T) {
	f := newReadersFolder(t)
	served := f.serve(t, serve.New(serve.Options{}))
	if err := os.Remove("/sys/fs/bpf/readers/ring"); err != nil {
		t.Fatal(err)
	}
	maps, err := skepmap.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	m, err := maps.Map("ring")
	if err != nil {
		t.Fatal(err)
	}
	records, err := m.Consume()
	if err != nil {
		t.Fatal(err)
	}
	_ = served.Close()
	again := serve.New(serve.Options{})
	f.serve(t, again)
	produce(t, f.maps["ring"], 1)
	if record, err := records.Read(t.Context()); err != nil || record[0] != 1 {
		t.Fatal(record, err)
	}
	await.True(t, "the consumer asked the new agent for its place", time.Minute, func() bool { return again.Consumers() == 1 })
	_, err = dial(t, filepath.Join(f.dir, skepmap.SocketFile)).Do(t.Context(), protocol.Request{Op: protocol.Consume, Map: "ring"})
	if code(err) != protocol.Consumed {
		t.Errorf("another reader: %v", err)
	}
	if err := records.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := records.Read(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// BenchmarkMillion reads a hash of a million entries: as a privileged reader does without this module, by its pin, by the socket at the
// pace that one reader has, and without a bound.
func BenchmarkMillion(b *testing.B) {
	const entries = 1 << 20
	m := newMap(b, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: entries})
	keys, values := make([]uint32, entries), make([]uint64, entries)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		b.Fatal(err)
	}
	b.Run("cilium/ebpf in batches", func(b *testing.B) {
		for b.Loop() {
			var cursor ebpf.MapBatchCursor
			found, keys, values := 0, make([]uint32, 4096), make([]uint64, 4096)
			for {
				n, err := m.BatchLookup(&cursor, keys, values, nil)
				if found += n; errors.Is(err, ebpf.ErrKeyNotExist) {
					break
				} else if err != nil {
					b.Fatal(err)
				}
			}
			if found != entries {
				b.Fatal(found)
			}
		}
	})
	pin := "/sys/fs/bpf/million"
	if err := m.Pin(pin); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Unpin() })
	for name, options := range map[string]*serve.Options{"pin": nil, "socket": {}, "socket without a bound": {FolderShare: 1, Share: 1}} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			listing := skepmap.Listing{Application: skepmap.Application{Kind: "BpfApplication", Name: "a"}, Generation: 1, Maps: map[string]skepmap.MapInfo{}}
			g := grant(b, m, skepmap.Read, 1, nil)
			listing.Maps["m"] = g.Info
			raw, err := listing.Encode()
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, skepmap.ListingFile), raw, 0o600)); err != nil {
				b.Fatal(err)
			}
			if options == nil {
				err = errors.Join(g.Map.Close(), os.Symlink(pin, filepath.Join(dir, "m")))
			} else {
				l, listenErr := serve.Listen(filepath.Join(dir, skepmap.SocketFile), 0o600, 0)
				if listenErr != nil {
					b.Fatal(listenErr)
				}
				f := serve.New(*options).Serve(l, "")
				b.Cleanup(func() { _ = f.Close() })
				f.Grant(map[string]serve.Granted{"m": g})
			}
			if err != nil {
				b.Fatal(err)
			}
			maps, err := skepmap.Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = maps.Close() })
			opened, err := maps.Map("m")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				var key uint32
				var value uint64
				found, all := 0, opened.Iterate()
				for all.Next(&key, &value) {
					found++
				}
				if found != entries || all.Err() != nil {
					b.Fatal(found, all.Err())
				}
			}
		})
	}
}
