package loader

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
)

// The variable by which libbpf tells a program whether the kernel has BPF
// cookies, which cilium/ebpf does not know.
const hasCookie = "LINUX_HAS_BPF_COOKIE"

// alwaysSet are options that are y in every kernel that Skep runs on, so that
// reading one is reading 1.
var alwaysSet = [...]string{"CONFIG_BPF_SYSCALL", "CONFIG_BPF", "CONFIG_64BIT"}

// settleKconfig leaves to the library those of the object's __kconfig variables
// that it can fill in on this kernel. Weak ones that the kernel does not have are
// taken out, which leaves their bytes zero, as libbpf does.
func settleKconfig(o *objectfile.Object) error {
	ds := objectfile.Kconfig(o.Spec)
	if ds == nil {
		return nil
	}
	if len(ds.Vars) == 1 && ds.Vars[0].Type.TypeName() == hasCookie && haveCookies() == nil {
		setCookieFlag(o.Spec)
		return nil
	}
	options, err := kernelOptions(o.WeakKconfig)
	if err != nil {
		return err
	}
	var left []btf.VarSecinfo
	for _, v := range ds.Vars {
		extern, ok := v.Type.(*btf.Var)
		switch {
		case !ok:
			return fmt.Errorf("%s is no variable; compile the object anew", v.Type.TypeName())
		case extern.Name == hasCookie:
			if v.Type, err = cookieFlag(extern, ds.Vars); err != nil {
				return err
			}
			if v.Type == nil {
				continue
			}
		case o.WeakKconfig[extern.Name] && !options[extern.Name]:
			continue
		}
		left = append(left, v)
	}
	ds.Vars = left
	return nil
}

// haveCookies fails with ebpf.ErrNotSupported where the kernel has no
// bpf_get_attach_cookie.
func haveCookies() error {
	return plain.Error(features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie))
}

// cookieMap is the map that setCookieFlag makes.
const cookieMap = ".kconfig.cookie"

// setCookieFlag has the programs read the flag, which is their only __kconfig variable, from
// a map of its own. So no configuration of the kernel needs to be at hand, which the library
// looks for in files that a container lacks. The library names no variable in the
// instructions that it loads one by: nothing else is without a name there.
func setCookieFlag(spec *ebpf.CollectionSpec) {
	spec.Maps[cookieMap] = &ebpf.MapSpec{Name: cookieMap, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_RDONLY_PROG,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: []byte{1, 0, 0, 0, 0, 0, 0, 0}}}}
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			ins := &p.Instructions[i]
			if !ins.OpCode.IsDWordLoad() || ins.Src != asm.PseudoMapValue || ins.Reference() != "" {
				continue
			}
			load := asm.LoadMapValue(ins.Dst, 0, 0).WithReference(cookieMap).WithSource(ins.Source())
			if fn := btf.FuncMetadata(ins); fn != nil {
				load = btf.WithFuncMetadata(load, fn)
			}
			*ins = load.WithSymbol(ins.Symbol())
		}
	}
}

// cookieFlag is a variable that the library sets to 1 in the place of flag, or nil
// where the kernel has no bpf_get_attach_cookie. The library tells variables apart
// by their names, so it is called none of all.
func cookieFlag(flag *btf.Var, all []btf.VarSecinfo) (btf.Type, error) {
	err := haveCookies()
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find a value for %s: %w", hasCookie, err)
	}
	for _, name := range alwaysSet {
		if !slices.ContainsFunc(all, func(v btf.VarSecinfo) bool { return v.Type.TypeName() == name }) {
			return &btf.Var{Name: name, Type: flag.Type, Linkage: flag.Linkage}, nil
		}
	}
	return nil, fmt.Errorf("find a value for %s: the object reads %s too; take one of them away", hasCookie, strings.Join(alwaysSet[:], ", "))
}

// maxKernelConfig bounds what is read of a kernel's configuration, in bytes;
// those of today have 300 KiB.
const maxKernelConfig = 8 << 20

// kernelOptions are those of the wanted options that the kernel's configuration
// names, and the LINUX_ variables that the library knows.
func kernelOptions(wanted map[string]bool) (map[string]bool, error) {
	found := map[string]bool{"LINUX_KERNEL_VERSION": true, "LINUX_HAS_SYSCALL_WRAPPER": true}
	if len(wanted) == 0 {
		return found, nil
	}
	text, err := kernelConfig()
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if name, _, ok := strings.Cut(lines.Text(), "="); ok && wanted[name] {
			found[name] = true
		}
	}
	return found, lines.Err()
}

// kernelConfig reads the configuration of the running kernel, from where the
// library looks for it.
func kernelConfig() ([]byte, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	path := "/boot/config-" + unix.ByteSliceToString(name.Release[:])
	text, err := os.ReadFile(path)
	if err == nil {
		return text, nil
	}
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		return nil, fmt.Errorf("neither %s nor /proc/config.gz can be read: %w", path, err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read /proc/config.gz: %w", err)
	}
	return io.ReadAll(io.LimitReader(unpacked, maxKernelConfig))
}
