package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// TestWhatTakesLongToLoadIsDeniedANamespace counts programs by what the kernel does for each, and how
// often each is loaded.
func TestWhatTakesLongToLoadIsDeniedANamespace(t *testing.T) {
	at := func(hook string, label string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{Containers: []string{label}}}
	}
	functions := func(n int) v1alpha1.Attachment {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("__x64_sys_%d", i)
		}
		return v1alpha1.Attachment{Hook: "fentry", Functions: &v1alpha1.Functions{Names: names}, Pods: &v1alpha1.Pods{}}
	}
	const half = bytecode.MaxLoadCost / 2
	for sentence, c := range map[string]struct {
		cost   uint64
		attach []v1alpha1.Attachment
		others int
		maps   string
		denied bool
	}{
		"as much as may be":                     {half * 2, []v1alpha1.Attachment{at("xdp", "")}, 0, "", false},
		"more than that":                        {half*2 + 1, []v1alpha1.Attachment{at("xdp", "")}, 0, "", true},
		"more than there are numbers for":       {1<<64 - 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "b")}, 0, "", true},
		"on two devices, which are one load":    {half + 1, []v1alpha1.Attachment{at("xdp", ""), at("xdp", "b")}, 0, "", false},
		"for two choices of pods":               {half + 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "b")}, 0, "", true},
		"for one choice of pods twice":          {half + 1, []v1alpha1.Attachment{at("uprobe", "a"), at("uprobe", "a")}, 0, "", false},
		"for three functions":                   {half, []v1alpha1.Attachment{functions(3)}, 0, "", true},
		"beside two others that are not loaded": {half, []v1alpha1.Attachment{at("xdp", "")}, 2, "Array", false},
		"beside two others that may be called":  {half, []v1alpha1.Attachment{at("xdp", "")}, 2, "ProgramArray", true},
		"a function and what may stand in for it": {half + 1,
			[]v1alpha1.Attachment{{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{"f"}}}}, 0, "", true},
	} {
		facts := bytecode.Facts{Maps: []bytecode.Map{{Name: "m", Type: c.maps}}, Programs: []bytecode.Program{{Name: "p", LoadCost: c.cost}}}
		for i := range c.others {
			facts.Programs = append(facts.Programs, bytecode.Program{Name: fmt.Sprint(i), LoadCost: c.cost})
		}
		defined := []v1alpha1.Program{{Name: "p", Attach: c.attach}}
		for kind, want := range map[string]bool{v1alpha1.KindBpfApplication: c.denied, v1alpha1.KindClusterBpfApplication: false} {
			r := &denials{}
			fitLoad(r, v1alpha1.Identity{Kind: kind}, defined, facts)
			if (len(r.reasons) > 0) != want {
				t.Errorf("%s, of a %s: %v, want it denied: %v", sentence, kind, r.reasons, want)
			}
			for _, why := range r.reasons {
				if why.Rule != "inspect/load" || !strings.Contains(why.Message, "program p") || why.Fix == "" {
					t.Errorf("%s: denied by %+v", sentence, why)
				}
			}
		}
	}
}

// TestMapsThatTakeLongToMakeAreDeniedANamespace counts what the definition has made, by its own sizes.
func TestMapsThatTakeLongToMakeAreDeniedANamespace(t *testing.T) {
	size := func(entries uint32) v1alpha1.Map { return v1alpha1.Map{MaxEntries: &entries} }
	const much, noPrealloc = 8 << 20, 1
	for sentence, c := range map[string]struct {
		maps      []bytecode.Map
		overrides map[string]v1alpha1.Map
		denied    string
	}{
		"values per CPU":             {[]bytecode.Map{{Name: "m", Type: "PerCPUArray", KeySize: 4, ValueSize: 8, MaxEntries: much}}, nil, "m"},
		"values per CPU, made later": {[]bytecode.Map{{Name: "m", Type: "PerCPUHash", KeySize: 4, ValueSize: 8, MaxEntries: much, Flags: noPrealloc}}, nil, ""},
		"values for all CPUs":        {[]bytecode.Map{{Name: "m", Type: "Hash", KeySize: 4, ValueSize: 8, MaxEntries: much}}, nil, ""},
		"fewer by the definition": {[]bytecode.Map{{Name: "m", Type: "PerCPUHash", KeySize: 4, ValueSize: 8, MaxEntries: much}},
			map[string]v1alpha1.Map{"m": size(9)}, ""},
		"more by the definition": {[]bytecode.Map{{Name: "m", Type: "LRUCPUHash", KeySize: 4, ValueSize: 8, MaxEntries: 1}},
			map[string]v1alpha1.Map{"m": size(much)}, "m"},
		"another application's": {[]bytecode.Map{{Name: "m", Type: "PerCPUHash", KeySize: 4, ValueSize: 8, MaxEntries: much}},
			map[string]v1alpha1.Map{"m": {From: &v1alpha1.MapSource{}}}, ""},
		"several, of which each may be": {[]bytecode.Map{{Name: "a", Type: "PerCPUArray", KeySize: 4, ValueSize: 8, MaxEntries: much / 2},
			{Name: "m", Type: "PerCPUArray", KeySize: 4, ValueSize: 16, MaxEntries: much / 2}}, nil, "m"},
	} {
		for kind, want := range map[string]string{v1alpha1.KindBpfApplication: c.denied, v1alpha1.KindClusterBpfApplication: ""} {
			r := &denials{}
			fitMaking(r, v1alpha1.Identity{Kind: kind}, c.overrides, c.maps)
			if (len(r.reasons) > 0) != (want != "") {
				t.Errorf("%s, of a %s: %v, want it denied for %q", sentence, kind, r.reasons, want)
			}
			for _, why := range r.reasons {
				if why.Rule != "inspect/load" || !strings.Contains(why.Message, "map "+want) || why.Fix == "" {
					t.Errorf("%s: denied by %+v", sentence, why)
				}
			}
		}
	}
}
