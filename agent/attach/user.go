package attach

import (
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

func uprobe(h hook.Hook, r Request) (pins.Held, error) {
	return probe(h, r, (*link.Executable).Uprobe)
}

func uretprobe(h hook.Hook, r Request) (pins.Held, error) {
	return probe(h, r, (*link.Executable).Uretprobe)
}

func probe(_ hook.Hook, r Request, attach prober) (link.Link, error) {
	opts := &link.UprobeOptions{PID: int(r.Attachment.PID), Address: r.Found.addresses[0]}
	if r.Attachment.Symbol != "" {
		opts.Offset = r.Attachment.Offset
	}
	l, err := attach(r.Found.executable, r.Attachment.Symbol, r.Program, opts)
	return l, noProcess(r.Attachment, err)
}

// noProcess marks an error that says there is no such process. The library says ErrNotExist of
// one, too: the file is held open.
func noProcess(a plan.Attachment, err error) error {
	if a.PID != 0 && (errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("find process %d: %w: %w", a.PID, ErrTarget, unix.ESRCH)
	}
	return missing(err)
}

func uprobeMulti(_ hook.Hook, r Request) (pins.Held, error) {
	return probeAll(r, (*link.Executable).UprobeMulti)
}

func uretprobeMulti(_ hook.Hook, r Request) (pins.Held, error) {
	return probeAll(r, (*link.Executable).UretprobeMulti)
}

// probeAll makes one link for all functions.
func probeAll(r Request, attach multiProber) (link.Link, error) {
	l, err := attach(r.Found.executable, nil, r.Program, &link.UprobeMultiOptions{Addresses: r.Found.addresses, PID: uint32(r.Attachment.PID)})
	return l, noProcess(r.Attachment, err)
}

// multiProber is what the two kinds of probe on many functions have in common.
type multiProber func(*link.Executable, []string, *ebpf.Program, *link.UprobeMultiOptions) (link.Link, error)

// read resolves the symbols by the binary's own tables: the library reads none where it
// is given an address. Without a symbol, the offset is that in the file.
func (f *Found) read(a plan.Attachment) error {
	var err error
	if f.executable, err = plain.Of(link.OpenExecutable(f.target.path())); err != nil {
		return missing(err)
	}
	if a.Container != "" && strings.HasPrefix(a.Hook, "uretprobe") {
		err := returnsOnStack(f.target.path())
		if err == nil && a.Application.Kind == v1alpha1.KindBpfApplication {
			err = isUnwound(f.target.path())
		}
		if err != nil {
			return fmt.Errorf("find %s: %w: %w", a.Target, ErrTarget, err)
		}
	}
	switch {
	case a.USDT != "":
		return f.readPlace(a)
	case a.Symbols != "":
		f.addresses, err = chosenAddresses(f.target.path(), a.Symbols)
	case a.Symbol != "":
		f.addresses = make([]uint64, 1)
		f.addresses[0], err = symbolAddress(f.target.path(), a.Symbol, a.Offset)
	default:
		f.addresses = []uint64{a.Offset}
	}
	return missing(err)
}

// returnsOnStack fails for a program of Go. Its runtime reads the return addresses on its stacks, and
// ends the process where it finds that of a return probe, in every container that runs the file
// (https://github.com/golang/go/issues/22008).
func returnsOnStack(path string) error {
	return inBinary(path, "look for Go", func(body io.ReaderAt) error {
		bounded := &boundedReader{body, maxSymbolBytes}
		_, err := buildinfo.Read(bounded)
		f, elfErr := readBinary(body)
		if err == nil || bounded.left < 0 ||
			elfErr == nil && slices.ContainsFunc(f.Sections, func(s *elf.Section) bool { return s.Name == ".gopclntab" || s.Name == ".go.buildinfo" }) {
			return errors.New("the binary is a Go program, which a return probe crashes; attach a uprobe")
		}
		return nil
	})
}

// isUnwound fails for a program or library through whose functions exceptions pass. The one that
// looks for a handler follows the return addresses, finds that of a return probe, and aborts the
// process (std::terminate of C++, and panics of Rust) in every container that runs the file, those of
// other namespaces too. The C library has tables of handlers for cancelled threads alone.
func isUnwound(path string) error {
	return inBinary(path, "look for tables of exceptions", func(body io.ReaderAt) error {
		file, err := readBinary(body)
		if err != nil {
			return err
		}
		if file.Section(".gcc_except_table") == nil || strings.HasPrefix(soname(file), "libc.so.") {
			return nil
		}
		return errors.New("exceptions pass through its functions, which a return probe has abort the process, " +
			"also those of other namespaces that run the same file; " +
			"attach a uprobe, or use a " + v1alpha1.KindClusterBpfApplication)
	})
}

// maxDynamic bounds what the dynamic linker is told, in entries.
const maxDynamic = 4096

// soname is the beginning of the name that a library of 64 bits says of itself; empty where it says
// none. It reads that alone: the names of a file may be as large as it wishes.
func soname(file *elf.File) string {
	table := file.SectionByType(elf.SHT_DYNAMIC)
	if table == nil || file.Class != elf.ELFCLASS64 || int(table.Link) >= len(file.Sections) {
		return ""
	}
	entries := io.NewSectionReader(table.ReaderAt, 0, int64(min(table.Size, maxDynamic*16)))
	for {
		var one elf.Dyn64
		if err := binary.Read(entries, file.ByteOrder, &one); err != nil || elf.DynTag(one.Tag) == elf.DT_NULL {
			return ""
		}
		if elf.DynTag(one.Tag) == elf.DT_SONAME {
			name := make([]byte, 16)
			n, _ := file.Sections[table.Link].ReaderAt.ReadAt(name, int64(one.Val))
			is, _, _ := strings.Cut(string(name[:n]), "\x00")
			return is
		}
	}
}

// reachable fails where the process of the attachment cannot be found.
func reachable(a plan.Attachment) error {
	if a.PID != 0 && !seesNodesPIDs() {
		return fmt.Errorf("find process %d: this agent is in a PID namespace of its own, where it is nobody or another; run it in the node's (hostPID, "+
			"agent.hostPID of the chart) or leave out pid", a.PID)
	}
	return nil
}

// initialPIDs is the initial PID namespace, whose inode is the same on every
// Linux (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// seesNodesPIDs reports whether a pid means the same process to the kernel, which
// looks it up in the caller's namespace, as the node's administrator did who wrote it down.
func seesNodesPIDs() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == initialPIDs
}

// prober is what the two kinds of probe have in common.
type prober func(*link.Executable, string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)
