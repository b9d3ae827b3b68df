package programs_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/skep-dev/skep/test/programs"
)

// refused says which words the kernel, or the loader before it, must use of the
// objects that are made to be refused.
func refused() map[string]string {
	return map[string]string{
		"xdp_rejected":        "invalid access to packet",
		"xdp_unknown_helper":  "invalid func",
		"xdp_proprietary_gpl": "GPL",
		"tp_poisoned":         "CO-RE relocation",
		// Two of its maps lack a size: either may be made first.
		"xdp_open_maps": "map create: ",
	}
}

// elsewhere names objects this test does not load, and why.
func elsewhere() map[string]string {
	return map[string]string{
		"xdp_big_map":     "takes 4 GiB",
		"xdp_pinned":      "needs a place to pin",
		"kprobe_override": "needs a kernel built with error injection",
		"xdp_kconfig":     "asks for what agent/kernel fills in",
	}
}

func TestEverySourceHasItsObject(t *testing.T) {
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range sources {
		sources[i] = strings.TrimSuffix(filepath.Base(s), ".c")
	}
	slices.Sort(sources)
	if names := programs.Names(); !slices.Equal(sources, names) {
		t.Errorf("sources %v and objects %v differ; run make generate", sources, names)
	}
}

func TestObjectsParse(t *testing.T) {
	for _, name := range programs.Names() {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(name)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(spec.Programs) == 0 {
			t.Errorf("%s has no program", name)
		}
	}
}

func TestObjectPanicsOnAnUnknownName(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Object returned for a name that is not there")
		}
	}()
	programs.Object("no_such_object")
}

func TestTheKernelTakesWhatItShould(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Skipf("SKIPPED: loading into the kernel needs root: %v", err)
	}
	for _, name := range programs.Names() {
		t.Run(name, func(t *testing.T) {
			if why, ok := elsewhere()[name]; ok {
				t.Skip(why)
			}
			spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(name)))
			if err != nil {
				t.Fatal(err)
			}
			coll, err := ebpf.NewCollection(spec)
			if err == nil {
				coll.Close()
			}
			words, bad := refused()[name]
			var verifier *ebpf.VerifierError
			switch {
			case bad && err == nil:
				t.Errorf("loaded, though made to be refused with %q", words)
			case bad && !strings.Contains(err.Error(), words):
				t.Errorf("refused with %v, want %q", err, words)
			case errors.Is(err, ebpf.ErrNotSupported):
				t.Skipf("this kernel does not support it: %v", err)
			case !bad && errors.As(err, &verifier):
				t.Errorf("%+v", verifier)
			case !bad && err != nil:
				t.Error(err)
			}
		})
	}
}
