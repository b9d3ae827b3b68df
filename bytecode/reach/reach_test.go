package reach_test

import (
	"bytes"
	stdcmp "cmp"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/placement"
	"github.com/skep-dev/skep/test/fixture/programs"
)

func listed(names ...string) []v1alpha1.Program {
	var all []v1alpha1.Program
	for _, name := range names {
		all = append(all, v1alpha1.Program{Name: name})
	}
	return all
}

func sorted(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), " ") }

func read(t testing.TB, name string) *objectfile.Object {
	t.Helper()
	object, err := objectfile.Read(programs.Object(name))
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func inspect(t testing.TB, name string) bytecode.Facts {
	t.Helper()
	facts, err := bytecode.Inspect(bytes.NewReader(programs.Object(name)), bytecode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// mapsOf are the names of the maps that facts have, but for the one that the library makes.
func mapsOf(facts bytecode.Facts) map[string]bool {
	set := map[string]bool{}
	for _, m := range facts.Maps {
		if m.Name != objectfile.KconfigSection {
			set[m.Name] = true
		}
	}
	return set
}

func TestADefinitionHasLoadedWhatItsProgramsReach(t *testing.T) {
	entry := func(value string) v1alpha1.Map {
		return v1alpha1.Map{Contents: []v1alpha1.MapEntry{{
			Key: apiextensionsv1.JSON{Raw: []byte("0")}, Value: apiextensionsv1.JSON{Raw: []byte(`"` + value + `"`)},
		}}}
	}
	for sentence, c := range map[string]struct {
		list           []string
		named          map[string]v1alpha1.Map
		programs, maps string
		// facts are the maps of the facts, where these are more.
		facts string
	}{
		"a map that the program names":             {[]string{"plain"}, nil, "plain", "small", ""},
		"one of a function that it calls":          {[]string{"calls"}, nil, "calls", "called", ""},
		"one of a function that it points to":      {[]string{"points"}, nil, "points", "pointed", ""},
		"a variable":                               {[]string{"writes"}, nil, "writes", ".data", ""},
		"a constant":                               {[]string{"chooses"}, nil, "chooses", ".rodata", ""},
		"the kernel's configuration":               {[]string{"asks"}, nil, "asks", "", ""},
		"a prog array, and what its programs name": {[]string{"tail_calls"}, nil, "tail tail_calls", "tailed tails", ""},
		"a map of maps, and those in it":           {[]string{"looks_in"}, nil, "looks_in", "inner outer", ""},
		"the maps of both programs":                {[]string{"plain", "calls"}, nil, "calls plain", "called small", ""},
		"a map that the definition names":          {[]string{"plain"}, map[string]v1alpha1.Map{"named": {}}, "plain", "named small", ""},
		"a map that is another application's": {
			[]string{"plain"}, map[string]v1alpha1.Map{"named": {From: &v1alpha1.MapSource{}}}, "plain", "named small", "",
		},
		"a prog array that the definition fills": {
			[]string{"plain"}, map[string]v1alpha1.Map{"tails": entry("calls")}, "calls plain", "called small tails", "called small tailed tails",
		},
		"a map of maps that the definition fills": {
			[]string{"plain"}, map[string]v1alpha1.Map{"outer": entry("named")}, "plain", "named outer small", "inner named outer small",
		},
		"a program that the object does not have":       {[]string{"other"}, nil, "", "", ""},
		"a map that the object does not have":           {[]string{"plain"}, map[string]v1alpha1.Map{"other": {}}, "plain", "small", ""},
		"nothing of a program that has a name of a map": {[]string{"small"}, nil, "", "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(stdcmp.Or(c.facts, c.maps), sorted(mapsOf(placement.Loaded(inspect(t, "tcx_reach"), listed(c.list...), c.named)))); diff != "" {
				t.Errorf("the facts have the maps (-want +got):\n%s", diff)
			}
			spec := read(t, "tcx_reach").Spec
			fills := maps.Clone(c.named)
			maps.DeleteFunc(fills, func(_ string, m v1alpha1.Map) bool { return len(m.Contents) == 0 })
			if found := values.Contents(spec, fills, listed(c.list...)); len(found) > 0 {
				t.Fatal(found)
			}
			set := values.Loaded(spec, listed(c.list...), c.named)
			if diff := cmp.Diff([]string{c.programs, c.maps}, []string{sorted(set.Programs), sorted(set.Maps)}); diff != "" {
				t.Errorf("loaded are (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWhatLoadedProgramsReferToIsLoaded holds every program of every object, and every pair of them, to its
// instructions, and the facts to what is loaded.
func TestWhatLoadedProgramsReferToIsLoaded(t *testing.T) {
	left := 0
	for _, name := range programs.Names() {
		facts, spec := inspect(t, name), read(t, name).Spec
		names := slices.Sorted(maps.Keys(spec.Programs))
		for i, one := range names {
			for _, other := range names[i:] {
				set, found := values.Loaded(spec, listed(one, other), nil), placement.Loaded(facts, listed(one, other), nil)
				for program := range set.Programs {
					for _, ins := range spec.Programs[program].Instructions {
						if ins.IsLoadFromMap() && spec.Maps[ins.Reference()] != nil && !set.Maps[ins.Reference()] {
							t.Errorf("%s of %s refers to %s, which is not loaded", program, name, ins.Reference())
						}
					}
				}
				if diff := cmp.Diff(sorted(mapsOf(found)), sorted(set.Maps)); diff != "" {
					t.Errorf("%s, %s of %s: the facts have other maps than are loaded (-facts +loaded):\n%s", one, other, name, diff)
				}
				left += len(spec.Maps) - len(set.Maps)
			}
		}
	}
	if left == 0 {
		t.Error("no map of any object is left out")
	}
}

func TestFactsCountTheMapsThatAreLoaded(t *testing.T) {
	object := inspect(t, "tcx_reach")
	loaded := placement.Loaded(object, listed("plain"), nil)
	if object.MemoryBytes < 32<<20 || loaded.MemoryBytes != loaded.Maps[0].MemoryBytes || loaded.MemoryBytes > 4096 {
		t.Errorf("%d bytes of the object, %d are loaded", object.MemoryBytes, loaded.MemoryBytes)
	}
	if len(loaded.Programs) != len(object.Programs) || len(object.Maps) < 10 {
		t.Errorf("%d programs of %d, and %d maps are left of the object", len(loaded.Programs), len(object.Programs), len(object.Maps))
	}
}
