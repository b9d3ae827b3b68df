package loader

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// reaching prepares some programs of tcx_reach, which is loaded with the types of the kernel.
func reaching(t *testing.T, named map[string]v1alpha1.Map, names ...string) *Prepared {
	t.Helper()
	payload := intent.Payload{Maps: named, Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}}
	for _, name := range names {
		payload.Programs = append(payload.Programs, program(name, "tcx/ingress", "")...)
	}
	p, err := PrepareToLoad(opened(t, payload), programs.Object("tcx_reach"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOnlyMapsThatAreReachedAreMade loads programs of an object with a map of 38 MiB that they do not need.
func TestOnlyMapsThatAreReachedAreMade(t *testing.T) {
	need.Kernel(t)
	for _, c := range []struct {
		named         map[string]v1alpha1.Map
		program, want string
	}{
		{nil, "plain", "small"}, {nil, "calls", "called"}, {nil, "points", "pointed"}, {nil, "writes", ".data"}, {nil, "chooses", ".rodata"}, {nil, "asks", ""},
		{nil, "tail_calls", "tailed tails"}, {nil, "looks_in", "inner outer"},
		{map[string]v1alpha1.Map{"named": {SharedWith: []string{"other"}}}, "plain", "named small"},
		{map[string]v1alpha1.Map{"named": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Groups: []string{"adm"}}}}}, "plain", "small"},
	} {
		t.Run(c.program, func(t *testing.T) {
			p := reaching(t, c.named, c.program)
			r := load(t, p, nil)
			if got := strings.Join(slices.Sorted(maps.Keys(r.Maps)), " "); got != c.want {
				t.Errorf("the maps %q are made, want %q", got, c.want)
			}
			if before, after := memory(t, p, nil), memoryOf(map[string]*Revision{"a": r}); before > 1<<20 || after > 1<<20 {
				t.Errorf("%d bytes are counted before the load, %d after it", before, after)
			}
			if !r.Whole(p) {
				t.Error("what is loaded is not whole")
			}
		})
	}
}

// TestAMapThatIsReachedNoMoreIsLost updates an application to a program that does not use a map, and to a
// definition that names it.
func TestAMapThatIsReachedNoMoreIsLost(t *testing.T) {
	need.Kernel(t)
	old := load(t, reaching(t, nil, "plain", "calls"), nil)
	for _, c := range []struct {
		named  map[string]v1alpha1.Map
		isKept bool
	}{{nil, false}, {map[string]v1alpha1.Map{"small": {}}, true}} {
		r, reports, err := Load(reaching(t, c.named, "calls"), old, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(reports, func(m MapReport) bool { return m.Map == "small" })
		if i < 0 || reports[i].Kept != c.isKept || (r.Maps["small"] != nil) != c.isKept || strings.Contains(reports[i].Reason, "maps.small") == c.isKept {
			t.Errorf("with %v: %+v", c.named, reports)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARevisionOfAnEarlierBuildHasACopyLoaded copies a program of a revision that has all maps of its object.
func TestARevisionOfAnEarlierBuildHasACopyLoaded(t *testing.T) {
	need.Kernel(t)
	p := reaching(t, nil, "plain")
	r := load(t, p, nil)
	unused, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.Maps["named"] = unused
	if !r.Whole(p) {
		t.Error("it is not whole with more maps")
	}
	again, err := LoadCopy(p, r, slices.Collect(maps.Keys(r.Programs))[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestTheKernelLoadsEveryProgramWithTheMapsThatItReaches loads each program of all objects alone, with all
// maps and with those that it reaches.
func TestTheKernelLoadsEveryProgramWithTheMapsThatItReaches(t *testing.T) {
	need.Kernel(t)
	if testing.Short() {
		t.Skip("SKIPPED: what a program refers to is the same on every kernel, and a virtual machine takes minutes to load all")
	}
	tried := 0
	for _, name := range programs.Names() {
		if slices.Contains([]string{"xdp_big_map", "xdp_pinned", "raw_tp_slow"}, name) {
			continue // takes 4 GiB; needs a place to pin; has no map, and takes the verifier long.
		}
		read, err := objectfile.Read(programs.Object(name))
		if err != nil {
			t.Fatal(err)
		}
		for one := range read.Spec.Programs {
			if alone(t, read.Spec.Copy(), one, func(*ebpf.CollectionSpec, intent.Payload) map[string]bool { return nil }) != nil {
				continue // Not in this kernel, or not by the library alone.
			}
			tried++
			if err := alone(t, read.Spec.Copy(), one, leaveOut); err != nil {
				t.Errorf("%s of %s with the maps that it reaches: %v", one, name, err)
			}
		}
	}
	if tried < 20 {
		t.Errorf("%d programs were loaded", tried)
	}
}

// alone loads a program of an object and what it tail calls, with the maps that are not left out.
func alone(t *testing.T, spec *ebpf.CollectionSpec, name string, leaveOut func(*ebpf.CollectionSpec, intent.Payload) map[string]bool) error {
	t.Helper()
	payload := intent.Payload{Programs: []v1alpha1.Program{{Name: name}}}
	leaveOut(spec, payload)
	needed := loaded(spec, payload.Programs)
	maps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(needed, other) })
	spec.Variables = nil
	for _, ms := range spec.Maps {
		ms.Pinning = ebpf.PinNone
	}
	coll, err := ebpf.NewCollection(spec)
	if err == nil {
		coll.Close()
	}
	return err
}
