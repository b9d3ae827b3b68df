package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

const (
	version = "LINUX_KERNEL_VERSION"
	present = "CONFIG_BPF_SYSCALL"
	lacking = "CONFIG_OF_NO_KERNEL"
	xdpTx   = 3
)

func TestProgramsReadTheKernelsConfiguration(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		weak []string
		// want is what the program returns, or a part of the error.
		want   uint32
		refuse string
	}{
		"a weak option that the kernel lacks is zero":   {weak: []string{lacking}, want: xdpTx},
		"a weak option that the kernel has is set":      {weak: []string{present, lacking}, want: xdpTx},
		"a weak version is the kernel's":                {weak: []string{version, lacking}, want: xdpTx},
		"an option that the kernel lacks is no default": {refuse: lacking},
	} {
		t.Run(sentence, func(t *testing.T) {
			p, err := Prepare(opened(t, intent.Payload{Programs: program("reads_config", "xdp", "")}), programs.Weak(programs.Object("xdp_kconfig"), c.weak...))
			if err != nil {
				t.Fatal(err)
			}
			coll, err := ebpf.NewCollection(p.Spec)
			if c.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), c.refuse) {
					t.Fatalf("loading = %v, want an error with %s", err, c.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer coll.Close()
			got, err := coll.Programs["reads_config"].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
			if err != nil || got != c.want {
				t.Errorf("the program returns %d, %v, want %d", got, err, c.want)
			}
		})
	}
}

// TestSizesOfConfigurationThatLieEndNothing: the library writes as many bytes as
// the type information says of a variable, wherever the section ends.
func TestSizesOfConfigurationThatLieEndNothing(t *testing.T) {
	need.Kernel(t)
	for _, size := range []uint32{0, 1 << 20, 1<<32 - 1} {
		object := programs.Weak(programs.Object("xdp_kconfig"), lacking)
		// The section's type: kind, number of variables and size; then the type,
		// offset and size of each.
		at := bytes.Index(object, binary.LittleEndian.AppendUint32(nil, 15<<24|4))
		if at < 0 {
			t.Fatal("no section of four variables")
		}
		for variable := range 4 {
			binary.LittleEndian.PutUint32(object[at+8+12*variable+8:], size)
		}
		p, err := Prepare(opened(t, intent.Payload{Programs: program("reads_config", "xdp", "")}), object)
		if err != nil {
			t.Fatal(err)
		}
		coll, err := ebpf.NewCollection(p.Spec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := coll.Programs["reads_config"].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
		if coll.Close(); err != nil || got != xdpTx {
			t.Errorf("with sizes of %d the program returns %d, %v", size, got, err)
		}
	}
}

// TestTheMapsOfUsdtLoad loads an object that includes libbpf's usdt.bpf.h, whose
// maps are weak: the program beside the one with arguments, and that one too.
func TestTheMapsOfUsdtLoad(t *testing.T) {
	need.Kernel(t)
	object, err := os.ReadFile("../../../bytecode/testdata/usdt.o")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("SKIPPED: needs the objects of bytecode/testdata")
	}
	if err != nil {
		t.Fatal(err)
	}
	object = programs.Weak(object, "__bpf_usdt_specs", "__bpf_usdt_ip_to_spec_id")
	p, err := Prepare(opened(t, intent.Payload{Programs: []v1alpha1.Program{program("beside", "xdp", "")[0], {Name: "arguments"}}}), object)
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, p, nil)
	if r.Programs["beside"] == nil || r.Programs["arguments"] == nil || r.Maps["__bpf_usdt_specs"].MaxEntries() != 256 {
		t.Errorf("loaded %v and %v", r.Programs, r.Maps)
	}
	// The flag of cookies needs no configuration of the kernel, which not every machine has.
	if flag, err := r.Maps[cookieMap].LookupBytes(uint32(0)); err != nil || flag[0] != 1 {
		t.Errorf("the flag is %v, %v", flag, err)
	}
}

func TestSizesThatTheObjectLeavesOpenLoad(t *testing.T) {
	need.Kernel(t)
	n := func(n uint32) *uint32 { return &n }
	p, err := Prepare(opened(t, intent.Payload{Programs: program("xdp_open_maps", "xdp", ""), Maps: map[string]v1alpha1.Map{
		"no_entries": {MaxEntries: n(16)}, "no_sizes": {MaxEntries: n(16), ValueSize: n(1016)}, "no_values": {ValueSize: n(4)},
	}}), programs.Object("xdp_open_maps"))
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, p, nil)
	if m := r.Maps["no_sizes"]; m.ValueSize() != 1016 || m.MaxEntries() != 16 {
		t.Errorf("no_sizes has %d values of %d bytes", m.MaxEntries(), m.ValueSize())
	}
}

// TestRingsGetASizeThatTheKernelTakes: the next power of two of whole pages, as with libbpf.
func TestRingsGetASizeThatTheKernelTakes(t *testing.T) {
	need.Kernel(t)
	object, page := fromCorpus(t, "ring_sizes"), uint32(os.Getpagesize())
	entries := 5 * page
	p, err := Prepare(opened(t, intent.Payload{Programs: bySections(t, object), Maps: map[string]v1alpha1.Map{"small": {MaxEntries: &entries}}}), object)
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, p, nil)
	for name, want := range map[string]uint32{"small": 8 * page, "in_array": page, "three_pages": 256 << 10} {
		if got := r.Maps[name].MaxEntries(); got != want {
			t.Errorf("%s has %d bytes, want %d", name, got, want)
		}
	}
}

func TestASectionThatSaysNothingIsVerifiedAsTheHooksType(t *testing.T) {
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("unspecified", "xdp", "")}), programs.Object("plain_sections"))
	if err != nil {
		t.Fatal(err)
	}
	if got := load(t, p, nil).Programs["unspecified"].Type(); got != ebpf.XDP {
		t.Errorf("the kernel has it as %s", got)
	}
}
