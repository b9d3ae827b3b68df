// Package reader is a process without any right that opens maps by their pins, as user space of a program does, and says what the kernel
// answers. It owns no map, and must not be used for anything that needs more than a group.
package reader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// isReader is the environment variable of a reader, which has the path of the pin, and mapID that of the kernel's id of the map.
const (
	isReader = "SKEP_TEST_READER"
	mapID    = "SKEP_TEST_READER_ID"
)

// ID is the user and the group of readers.
const ID = 65532

// Answers are what the kernel answered: empty where it did as it was asked.
type Answers struct {
	// Open is that to opening for reading, and OpenWrite for reading and writing.
	Open, OpenWrite string
	// Lookup, Update, Delete and Freeze are by the descriptor with the most rights that could be opened.
	Lookup, Update, Delete, Freeze string
	// Pin is that to pinning again what was opened, next to the pin: who makes a pin may open it for writing.
	Pin string
	// ByID is that to opening the map by its id.
	ByID string
	// Entries is how many were found by iterating.
	Entries int
	// Rights are the effective capabilities, which are none.
	Rights uint64
}

// MaybeChild ends the process where Open started it. It is the first of a TestMain.
func MaybeChild() {
	path := os.Getenv(isReader)
	if path == "" {
		return
	}
	answers, err := read(path, os.Getenv(mapID))
	if err != nil {
		fmt.Fprintln(os.Stderr, "reader:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Open has a process of the user and group ID, in further groups, open a pin. id is the kernel's of the map; 0 asks for none.
func Open(t testing.TB, path string, id ebpf.MapID, groups ...uint32) Answers {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), isReader+"="+path, mapID+"="+strconv.Itoa(int(id)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ID, Gid: ID, Groups: groups}}
	var failed *exec.ExitError
	out, err := cmd.Output()
	if errors.As(err, &failed) {
		t.Fatalf("read %s: %v: %s", path, err, failed.Stderr)
	}
	var answers Answers
	if err == nil {
		err = json.Unmarshal(out, &answers)
	}
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	if answers.Rights != 0 {
		t.Fatalf("the reader has rights: %x", answers.Rights)
	}
	return answers
}

// read opens a pin, and does all that is not to be done with it, last.
func read(path, id string) (Answers, error) {
	var a Answers
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return a, err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var rights [2]unix.CapUserData
	if err := unix.Capget(&header, &rights[0]); err != nil {
		return a, err
	}
	a.Rights = uint64(rights[1].Effective)<<32 | uint64(rights[0].Effective)
	if n, err := strconv.ParseUint(id, 10, 32); err == nil && n > 0 {
		m, err := ebpf.NewMapFromID(ebpf.MapID(n))
		a.ByID = answer(err)
		_ = m.Close()
	}
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	a.Open = answer(err)
	wide, err := ebpf.LoadPinnedMap(path, nil)
	a.OpenWrite = answer(err)
	if err == nil {
		_ = m.Close()
		m = wide
	}
	if m == nil {
		return a, nil
	}
	defer func() { _ = m.Close() }()
	a.use(m, path)
	return a, nil
}

func (a *Answers) use(m *ebpf.Map, path string) {
	first := make([]byte, m.KeySize())
	for key, err := m.NextKeyBytes(nil); key != nil || err != nil; key, err = m.NextKeyBytes(key) {
		if err == nil {
			_, err = m.LookupBytes(key)
		}
		if a.Lookup = answer(err); err != nil {
			break
		}
		a.Entries++
		copy(first, key)
	}
	a.Update = answer(m.Update(first, zeroOf(m), ebpf.UpdateAny))
	a.Delete = answer(m.Delete(first))
	a.Freeze = answer(freeze(m))
	a.Pin = answer(pinBeside(m, path))
}

// zeroOf is a value of a map, of which a per-CPU map has one for each CPU.
func zeroOf(m *ebpf.Map) any {
	one := make([]byte, m.ValueSize())
	if m.Type() != ebpf.PerCPUArray && m.Type() != ebpf.PerCPUHash {
		return one
	}
	return slices.Repeat([][]byte{one}, ebpf.MustPossibleCPU())
}

// pinBeside pins a map in the folder of the pin that it was opened by.
func pinBeside(m *ebpf.Map, path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	clone, err := m.Clone()
	if err != nil {
		return err
	}
	defer func() { _ = clone.Close() }()
	return clone.Pin(filepath.Join(filepath.Dir(real), "mine"))
}

// freeze asks the kernel: the library asks for a right first that it needs for a map of its own.
func freeze(m *ebpf.Map) error {
	attr := struct{ fd, rest uint32 }{fd: uint32(m.FD())}
	_, _, failed := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_FREEZE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.fd))
	runtime.KeepAlive(m)
	if failed != 0 {
		return failed
	}
	return nil
}

// answer is the kernel's, by its name.
func answer(err error) string {
	var number syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &number):
		return unix.ErrnoName(number)
	}
	return err.Error()
}
