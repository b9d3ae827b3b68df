package build_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// contents are entries of a map, as keys and values in turn.
func contents(keysAndValues ...string) []v1alpha1.MapEntry {
	var all []v1alpha1.MapEntry
	for i := 0; i < len(keysAndValues); i += 2 {
		all = append(all, v1alpha1.MapEntry{Key: apiextensionsv1.JSON{Raw: []byte(keysAndValues[i])}, Value: apiextensionsv1.JSON{Raw: []byte(keysAndValues[i+1])}})
	}
	return all
}

// filled is an intent of xdp_contents with maps.
func filled(w *world.World, maps map[string]v1alpha1.Map) intent.Payload {
	p := w.Intent("app", "xdp_contents", v1alpha1.Program{Name: "xdp_contents", Attach: world.On("xdp", "mc0")})
	p.Maps = maps
	return p
}

// valueOf reads the value under a key, which the test gives as bytes.
func valueOf(t *testing.T, m *ebpf.Map, key ...byte) []byte {
	t.Helper()
	value, err := m.LookupBytes(key)
	if err != nil || value == nil {
		t.Fatalf("no entry %v: %v", key, err)
	}
	return value
}

// each is the value of every CPU.
func each(t *testing.T, value ...byte) []byte {
	t.Helper()
	return bytes.Repeat(append(value, make([]byte, 8-len(value))...), ebpf.MustPossibleCPU())
}

func TestMapsHaveTheirContentsBeforeAProgramRuns(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mc0", "mc1")
	a, _ := w.Start()
	if err := w.Accept(a, filled(w, map[string]v1alpha1.Map{
		"which":        {Contents: contents("0", "2")},
		"limits":       {Contents: contents(`{"proto":"UDP","port":53}`, `{"rate":7,"name":"dns","on":true}`)},
		"recent":       {Contents: contents("1", "1", "2", "2", "3", "3", "4", "4")},
		"routes":       {Contents: contents(`{"prefixlen":8,"addr":[10]}`, "3")},
		"per_cpu":      {Contents: contents("1", "5")},
		"per_cpu_hash": {Contents: contents("9", "6")},
		"plain":        {Contents: contents(`"01ff"`, `"0a0b0c"`)},
		"jumps":        {Contents: contents("2", `"xdp_second"`)},
		"sets":         {Contents: contents("1", `"set_b"`)},
		"sets_by_id":   {Contents: contents("77", `"set_a"`)},
	})); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		key, want []byte
	}{
		{"which", []byte{0, 0, 0, 0}, []byte{2, 0, 0, 0}},
		{"limits", []byte{17, 0, 0, 0, 53, 0, 0, 0}, append([]byte{7, 0, 0, 0, 0, 0, 0, 0, 'd', 'n', 's', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 0, 0, 0)},
		{"recent", []byte{4, 0, 0, 0}, []byte{4, 0, 0, 0, 0, 0, 0, 0}},
		{"routes", []byte{32, 0, 0, 0, 10, 1, 2, 3}, []byte{3, 0, 0, 0}},
		{"per_cpu", []byte{1, 0, 0, 0}, each(t, 5)},
		{"per_cpu_hash", []byte{9, 0, 0, 0}, each(t, 6)},
		{"plain", []byte{1, 255}, []byte{10, 11, 12}},
	} {
		if got := valueOf(t, world.Pinned(w, a, c.name), c.key...); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for name, inner := range map[string]map[uint32]string{"sets": {0: "set_a", 1: "set_b"}, "sets_by_id": {77: "set_a"}} {
		for key, of := range inner {
			var held *ebpf.Map
			if err := world.Pinned(w, a, name).Lookup(key, &held); err != nil {
				t.Fatal(err)
			}
			if got, want := idOf(t, held), idOf(t, world.Pinned(w, a, of)); got != want {
				t.Errorf("%s[%d] is map %d, and %s is %d", name, key, got, of, want)
			}
			_ = held.Close()
		}
	}
	// which[0] is 2, where the definition put xdp_second: it hits set_a[1].
	world.Send(t, "mc1", 5)
	world.Until(t, "the program that the definition put into the prog array", time.Minute, func() bool {
		return world.Word(valueOf(t, world.Pinned(w, a, "set_a"), 1, 0, 0, 0)) == 5
	})
	if n := world.Word(valueOf(t, world.Pinned(w, a, "set_a"), 0, 0, 0, 0)); n != 0 {
		t.Errorf("xdp_first ran %d times", n)
	}
}

func idOf(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// TestWhatTheObjectPutsIntoAProgArrayRuns: libbpf's .values, which the object has for index 0.
func TestWhatTheObjectPutsIntoAProgArrayRuns(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mc0", "mc1")
	a, _ := w.Start()
	if err := w.Accept(a, filled(w, nil)); err != nil {
		t.Fatal(err)
	}
	world.Send(t, "mc1", 5)
	world.Until(t, "the program that the object put there", time.Minute, func() bool {
		return world.Word(valueOf(t, world.Pinned(w, a, "set_a"), 0, 0, 0, 0)) == 5
	})
}

// TestAnUpdateKeepsOrResetsAMap updates, undoes and heals: what programs wrote goes on, but
// where a version resets the map.
func TestAnUpdateKeepsOrResetsAMap(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mc0", "mc1")
	a, stop := w.Start()
	version := func(value string, update v1alpha1.MapUpdate) intent.Payload {
		return filled(w, map[string]v1alpha1.Map{"limits": {Contents: contents(`{"proto":"UDP"}`, `{"rate":`+value+`}`), OnUpdate: update}})
	}
	key := []byte{17, 0, 0, 0, 0, 0, 0, 0}
	write := func(value byte) {
		t.Helper()
		if err := world.Pinned(w, a, "limits").Put(key, append([]byte{value}, make([]byte, 23)...)); err != nil {
			t.Fatal(err)
		}
	}
	rate := func(want uint64, kept bool, reason string) {
		t.Helper()
		if got := world.Word(valueOf(t, world.Pinned(w, a, "limits"), key...)); got != want {
			t.Errorf("the rate is %d, want %d", got, want)
		}
		if r := report(a, "limits"); r.Map != "" && (r.Kept != kept || reason == "" && r.Reason != "" || !strings.Contains(r.Reason, reason)) {
			t.Errorf("reported: %+v, want kept %v and %q", r, kept, reason)
		}
	}
	accept := func(p intent.Payload) {
		t.Helper()
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
	}
	accept(version("1", ""))
	rate(1, true, "")
	write(100)

	// Other contents of a map that is kept are told of, and not written; also after a
	// restart, when the agent has nothing but what it noted.
	accept(version("2", v1alpha1.MapKeep))
	rate(100, true, "set maps.limits.onUpdate to Reset")
	stop()
	a, stop = w.Start()
	accept(version("3", ""))
	rate(100, true, "set maps.limits.onUpdate to Reset")
	// The contents that it was made with are its own again.
	accept(version("1", ""))
	rate(100, true, "")

	accept(version("4", v1alpha1.MapReset))
	rate(4, false, "made anew for every version")
	write(101)
	accept(version("5", v1alpha1.MapReset))
	rate(5, false, "made anew for every version")
	write(102)

	// The same version once more, and one that lost a program, are no update.
	accept(version("5", v1alpha1.MapReset))
	rate(102, false, "made anew for every version")
	stop()
	found, err := filepath.Glob(filepath.Join(w.BPFFS, "uid-app", a.Status()[0].Revision, "p-*"))
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	for _, pin := range found {
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
	}
	a, _ = w.Start()
	accept(version("5", v1alpha1.MapReset))
	rate(102, true, "")

	// An undo is the version before, which says itself what becomes of the map.
	accept(version("4", v1alpha1.MapReset))
	rate(4, false, "made anew for every version")
}

// TestContentsThatDoNotFitAreRejected: the agent checks what the gate checked, by the same code.
func TestContentsThatDoNotFitAreRejected(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "mc0", "mc1")
	a, _ := w.Start()
	good := filled(w, map[string]v1alpha1.Map{"which": {Contents: contents("0", "1")}})
	if err := w.Accept(a, good); err != nil {
		t.Fatal(err)
	}
	err := w.Accept(a, filled(w, map[string]v1alpha1.Map{"which": {Contents: contents("0", "-1")}}))
	if err == nil || !strings.Contains(err.Error(), "maps.which.contents[0].value") {
		t.Errorf("accepted: %v", err)
	}
	if got := valueOf(t, world.Pinned(w, a, "which"), 0, 0, 0, 0); got[0] != 1 {
		t.Errorf("which[0] = %v after a rejected update", got)
	}
}

// TestNestedValuesAreWhereTheCompilerLooks: what encodes unions and bit fields agrees with the
// code that reads them.
func TestNestedValuesAreWhereTheCompilerLooks(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mc0", "mc1")
	a, _ := w.Start()
	p := w.Intent("app", "xdp_nested", v1alpha1.Program{Name: "xdp_nested", Attach: world.On("xdp", "mc0")})
	p.Variables = map[string]apiextensionsv1.JSON{
		"an_address": {Raw: []byte(`{"bytes":[10,0,0,1]}`)},
		"some_flags": {Raw: []byte(`{"low":7,"wide":"0xffffffffff","on":true}`)},
		"targets":    {Raw: []byte(`[{},{"port":1}]`)},
	}
	p.Maps = map[string]v1alpha1.Map{"by_address": {Contents: contents(`{"v4":16777226}`, `{"flags":{"low":7,"level":-1,"mode":"OFF"}}`)}}
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	world.Send(t, "mc1", 5)
	// It counts once for the variables, and once for the entry of the map.
	world.Until(t, "both counts of each packet", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "app")) == 10 })
}
