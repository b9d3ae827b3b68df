package agent_test

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// behindDoor is the environment variable of a process whose system calls a test answers: the filter of a process stays for
// ever, and rights.Confined sees it.
const behindDoor = "SKEP_TEST_BEHIND_DOOR"

// isBehindDoor reports whether this is such a process.
var isBehindDoor bool

// inOwnProcess runs a test again in a process of its own, and reports whether this is that process.
func inOwnProcess(t *testing.T) bool {
	t.Helper()
	if isBehindDoor {
		return true
	}
	args := []string{"-test.count=1"}
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.v" || f.Name == "test.short" {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	// What was chosen of the test is the same there.
	run := "^" + t.Name() + "$"
	if chosen := flag.Lookup("test.run").Value.String(); strings.Contains(chosen, "/") {
		_, rest, _ := strings.Cut(chosen, "/")
		run += "/" + rest
	}
	self := exec.CommandContext(t.Context(), "/proc/self/exe", append(args, "-test.run="+run)...)
	// The tests make much garbage and keep little.
	self.Env = append(os.Environ(), behindDoor+"=1", "GOGC=800")
	var out strings.Builder
	self.Stdout, self.Stderr = &out, &out
	if testing.Verbose() {
		self.Stdout, self.Stderr = os.Stdout, os.Stderr
	}
	if err := self.Run(); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	return false
}

// calls are system calls that a door answers in the place of the kernel: commands of bpf(2), messages of rtnetlink, and
// whether names below a folder are made, and removed.
type calls struct {
	commands, messages []uint64
	making, removing   bool
}

// door answers system calls of this process (seccomp_unotify(2)).
type door struct {
	t        *testing.T
	listener uintptr
	memory   *os.File

	mu    sync.Mutex
	errno unix.Errno
	shut  []calls
	below string
	met   int
}

// The commands of bpf(2) that begin, change or end something (enum bpf_cmd of include/uapi/linux/bpf.h).
const (
	mapCreate, mapUpdate, mapDelete, progLoad, objPin, progAttach, progDetach, rawTracepointOpen = 0, 2, 3, 5, 6, 8, 9, 17
	btfLoad, mapUpdateBatch, linkCreate, linkUpdate, linkDetach                                  = 18, 26, 28, 29, 34
)

// newDoor has all threads of this process ask a goroutine for the answers to some calls, which asks the kernel.
func newDoor(t *testing.T) *door {
	t.Helper()
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// The last instruction asks, and the one before lets the call go on.
	asks := func(values ...uint64) (all []unix.SockFilter) {
		for i, v := range values {
			all = append(all, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(v), Jt: uint8(len(values) - i)})
		}
		return all
	}
	filter := append([]unix.SockFilter{load(0)}, asks(unix.SYS_SENDTO, unix.SYS_SYMLINKAT, unix.SYS_RENAMEAT, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT)...)
	commands := asks(mapCreate, mapUpdate, mapDelete, progLoad, objPin, progAttach, progDetach, rawTracepointOpen, btfLoad, mapUpdateBatch,
		linkCreate, linkUpdate, linkDetach)
	for i := 1; i < len(filter); i++ {
		filter[i].Jt += uint8(len(commands) + 2)
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: uint8(len(commands) + 1)}, load(16))
	filter = append(filter, commands...)
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Fatalf("filter system calls: %v", errno)
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, listener: listener, memory: memory}
	go d.answer()
	return d
}

// call is struct seccomp_notif of include/uapi/linux/seccomp.h, and answer struct seccomp_notif_resp.
type (
	call struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		at         uint64
		args       [6]uint64
	}
	answer struct {
		id, value    uint64
		errno, flags int32
	}
)

// answer answers every call until the process ends.
func (d *door) answer() {
	for {
		var c call
		if errno := d.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&c)); errno != 0 {
			if errno == unix.EINTR || errno == unix.ENOENT {
				continue
			}
			panic(errno)
		}
		a := answer{id: c.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if errno := d.answerTo(&c); errno != 0 {
			a.errno, a.flags = -int32(errno), 0
		}
		// A signal may have ended the call, which is made again.
		_ = d.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	}
}

func (d *door) ioctl(request uintptr, of unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.listener, request, uintptr(of))
	return errno
}

// answerTo returns what a call fails with; 0 where the kernel answers.
func (d *door) answerTo(c *call) unix.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.shut, func(s calls) bool { return d.has(s, c) }) {
		d.met++
		return d.errno
	}
	return 0
}

// has reports whether a call is one of some.
func (d *door) has(s calls, c *call) bool {
	switch c.number {
	case unix.SYS_BPF:
		return slices.Contains(s.commands, c.args[0])
	case unix.SYS_SENDTO:
		if len(s.messages) == 0 || c.args[2] < unix.NLMSG_HDRLEN {
			return false
		}
		header := d.read(c.args[1], unix.NLMSG_HDRLEN)
		return slices.Contains(s.messages, uint64(header[4])|uint64(header[5])<<8)
	case unix.SYS_SYMLINKAT:
		return s.making && d.isBelow(c.args[2])
	case unix.SYS_UNLINKAT:
		return s.removing && d.isBelow(c.args[1])
	}
	return s.making && d.isBelow(c.args[1])
}

// isBelow reports whether a path is in the folder of the door.
func (d *door) isBelow(address uint64) bool {
	path := unix.ByteSliceToString(d.read(address, unix.PathMax))
	return d.below != "" && strings.HasPrefix(path, d.below)
}

// read reads memory of this process, which may end before so many bytes.
func (d *door) read(address uint64, most int) []byte {
	b := make([]byte, most)
	_, _ = d.memory.ReadAt(b, int64(address))
	return b
}

// shuts has calls fail until opens is called. Names are those below a folder.
func (d *door) shuts(errno unix.Errno, below string, of ...calls) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errno, d.below, d.shut, d.met = errno, below, of, 0
}

// opens has the kernel answer all calls, and returns how many it did not.
func (d *door) opens() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = nil
	return d.met
}
