package attach

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/program/usdt"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// usdtProbe makes the link of one place of a probe. The program finds the place's
// arguments by the link's cookie, which no program can have read before they are written.
func usdtProbe(_ hook.Hook, r Request) (pins.Held, error) {
	if r.Specs != nil {
		if err := putSpec(r.Specs, r.SpecID, r.Found.arguments); err != nil {
			return nil, err
		}
	}
	l, err := plain.Of(r.Found.executable.Uprobe("", r.Program, &link.UprobeOptions{
		PID: int(r.Attachment.PID), Address: r.Found.site.Offset, RefCtrOffset: r.Found.site.Semaphore, Cookie: uint64(r.SpecID)}))
	return l, noProcess(r.Attachment, err)
}

// putSpec writes where the arguments of a probe are, in the form of the object that has
// the map.
func putSpec(specs *ebpf.Map, id uint32, arguments usdt.Spec) error {
	if id >= specs.MaxEntries() {
		return fmt.Errorf("write arguments of the probe: map %s is for %d places of probes; set maps.%[1]s.maxEntries", usdt.SpecsMap, specs.MaxEntries())
	}
	types, err := typesOf(specs)
	if err != nil {
		return fmt.Errorf("write arguments of the probe: %w", err)
	}
	value, err := arguments.Encode(types)
	if err != nil {
		return fmt.Errorf("write arguments of the probe: %w", err)
	}
	if uint32(len(value)) != specs.ValueSize() {
		return fmt.Errorf("write arguments of the probe: values of map %s have %d bytes, and not the %d of libbpf's usdt.bpf.h",
			usdt.SpecsMap, specs.ValueSize(), len(value))
	}
	if err := plain.Error(specs.Put(id, value)); err != nil {
		return fmt.Errorf("write arguments of the probe: %w", err)
	}
	return nil
}

// typesOf are the types that a map was made with; nil where it was made without.
func typesOf(m *ebpf.Map) (*btf.Spec, error) {
	handle, err := plain.Of(m.Handle())
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read BTF of map: %w", err)
	}
	types, err := plain.Of(handle.Spec(nil))
	return types, errors.Join(err, handle.Close())
}

// foundProbe are the places of a USDT probe in a binary for a machine.
type foundProbe struct {
	machine elf.Machine
	sites   []usdt.Site
}

// readProbe reads the places of provider:name from the notes of a binary.
func readProbe(path, name string) (found foundProbe, err error) {
	provider, name, _ := strings.Cut(name, ":")
	err = inBinary(path, "look for probe "+provider+":"+name, func(body io.ReaderAt) error {
		file, err := readBinary(body)
		if err != nil {
			return err
		}
		found.machine = file.Machine
		found.sites, err = usdt.Sites(file, provider, name)
		return err
	})
	return found, err
}

// at is the target of one place. The file may be written again in its place: what it says
// of the place is part of the target, and its time is not.
func (p foundProbe) at(t plan.Target, s usdt.Site) plan.Target {
	t.Offset, t.Site, t.Arguments = s.Offset, short(fmt.Sprintf("%d %x", s.Semaphore, s.Code)), short(fmt.Sprint(p.machine, s.Arguments))
	return t
}

// short stands for a text.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// machines are what binaries for this node say that they are for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// readPlace reads the one place of a probe that the attachment is for.
func (f *Found) readPlace(a plan.Attachment) error {
	found, err := readProbe(f.target.path(), a.USDT)
	if err != nil {
		return missing(err)
	}
	if want, known := machines[runtime.GOARCH]; known && found.machine != want {
		return fmt.Errorf("probe %s is in a binary for %s, which does not run here", a.USDT, found.machine)
	}
	i := slices.IndexFunc(found.sites, func(s usdt.Site) bool {
		return found.at(a.Target, s) == a.Target || a.Site == "" && s.Offset == a.Offset
	})
	if i < 0 {
		return fmt.Errorf("%w: probe %s has no place at %#x of the binary any more", ErrTarget, a.USDT, a.Offset)
	}
	f.site = found.sites[i]
	f.arguments, err = usdt.Parse(found.machine, f.site.Arguments)
	return err
}
