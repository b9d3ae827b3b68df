package build_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func report(a *agent.Agent, name string) loader.MapReport {
	maps := a.Status()[0].Maps
	if i := slices.IndexFunc(maps, func(m loader.MapReport) bool { return m.Map == name }); i >= 0 {
		return maps[i]
	}
	return loader.MapReport{}
}

func TestMapsAreKeptWhereTheirBTFAgrees(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mp0", "mp1")
	a, _ := w.Start()
	app := func(object string) intent.Payload {
		return w.Intent("app", object, v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "mp0")})
	}
	counted := func(want uint64) {
		t.Helper()
		world.Until(t, "the packets", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "app")) == want })
	}
	if err := w.Accept(a, app("xdp_count")); err != nil {
		t.Fatal(err)
	}
	if maps := a.Status()[0].Maps; len(maps) != 0 {
		t.Errorf("the first revision reports %+v", maps)
	}
	world.Send(t, "mp1", 7)
	counted(7)

	// The map is shared; "seen" has moved to another place of .bss and goes on.
	if err := w.Accept(a, app("xdp_count_v2")); err != nil {
		t.Fatal(err)
	}
	counted(7)
	if diff := cmp.Diff(loader.MapReport{Map: "counts", Kept: true}, report(a, "counts")); diff != "" {
		t.Error(diff)
	}
	if bss := report(a, ".bss"); bss.Kept || bss.Reason == "" || !slices.Equal(bss.Carried, []string{"seen"}) {
		t.Errorf(".bss: %+v", bss)
	}
	if !contains8(world.Section(w, a, "%2ebss"), 7) {
		t.Errorf(".bss = %v, and seen was 7", world.Section(w, a, "%2ebss"))
	}

	// The same size with another meaning starts anew.
	if err := w.Accept(a, app("xdp_count_v3")); err != nil {
		t.Fatal(err)
	}
	counted(0)
	if r := report(a, "counts"); r.Kept || r.Reason != "the layout of its key or value changed" {
		t.Errorf("counts: %+v", r)
	}
	if r := report(a, ".bss"); r.Kept || r.Reason != "the new revision has no such map" {
		t.Errorf(".bss: %+v", r)
	}
}

// contains8 reports whether one of the 64-bit words is n.
func contains8(section []byte, n byte) bool {
	for i := 0; i+8 <= len(section); i += 8 {
		if slices.Equal(section[i:i+8], []byte{n, 0, 0, 0, 0, 0, 0, 0}) {
			return true
		}
	}
	return false
}

func TestAVariableThatIsSetWinsOverTheOneThatIsCarried(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "mp0", "mp1")
	a, _ := w.Start()
	app := func(variables map[string]string) intent.Payload {
		p := w.Intent("app", "xdp_variables", v1alpha1.Program{Name: "xdp_variables", Attach: world.On("xdp", "mp0")})
		p.Variables = map[string]apiextensionsv1.JSON{}
		for n, v := range variables {
			p.Variables[n] = apiextensionsv1.JSON{Raw: []byte(v)}
		}
		return p
	}
	if err := w.Accept(a, app(map[string]string{"a_u32": "1000"})); err != nil {
		t.Fatal(err)
	}
	world.Send(t, "mp1", 1)
	// The sum the program writes to in_bss holds a_u32.
	world.Until(t, "the packet", time.Minute, func() bool { return world.Word(world.Section(w, a, "%2ebss")) > 1000 })
	was := world.Word(world.Section(w, a, "%2ebss"))

	// .bss is carried whole, .rodata never: it has the new value.
	if err := w.Accept(a, app(map[string]string{"a_u32": "5000"})); err != nil {
		t.Fatal(err)
	}
	if got := world.Word(world.Section(w, a, "%2ebss")); got != was {
		t.Errorf("in_bss = %d, and was %d", got, was)
	}
	if r := report(a, ".rodata"); r.Map != "" {
		t.Errorf(".rodata is reported: %+v", r)
	}
	world.Send(t, "mp1", 1)
	world.Until(t, "the new constant", time.Minute, func() bool { return world.Word(world.Section(w, a, "%2ebss")) == was+4000 })

	// A variable of .bss that is set wins, and the rest goes on.
	if err := w.Accept(a, app(map[string]string{"a_u32": "5000", "in_bss": "3"})); err != nil {
		t.Fatal(err)
	}
	if got := world.Word(world.Section(w, a, "%2ebss")); got != 3 {
		t.Errorf("in_bss = %d, and the definition says 3", got)
	}
	if r := report(a, ".data"); !r.Kept {
		t.Errorf(".data: %+v", r)
	}
	if r := report(a, ".data.own"); !r.Kept {
		t.Errorf(".data.own: %+v", r)
	}
}

func TestTailCallsWorkAfterTheAgentIsGone(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mp0", "mp1")
	a, stop := w.Start()
	app := func() intent.Payload {
		return w.Intent("app", "xdp_tailcall", v1alpha1.Program{Name: "xdp_tailcall", Attach: world.On("xdp", "mp0")})
	}
	if err := w.Accept(a, app()); err != nil {
		t.Fatal(err)
	}
	path := world.Counts(w, a, "app")
	stop()
	world.Send(t, "mp1", 5)
	world.Until(t, "the tail called program to count", time.Minute, func() bool { return world.Count(t, path) == 5 })

	a, _ = w.Start()
	next := app()
	next.Maps = map[string]v1alpha1.Map{"jumps": {MaxEntries: world.Ptr(uint32(2))}}
	if err := w.Accept(a, next); err != nil {
		t.Fatal(err)
	}
	world.Send(t, "mp1", 5)
	world.Until(t, "the new revision to count on", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "app")) == 10 })
	if r := report(a, "jumps"); r.Kept || r.Reason == "" {
		t.Errorf("jumps: %+v", r)
	}
	if got := world.Pinned(w, a, "jumps").MaxEntries(); got != 2 {
		t.Errorf("jumps has %d entries, and the definition says 2", got)
	}
}

func TestAMapThatAsksToBePinnedIsPinnedByItsApplication(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "mp0", "mp1")
	a, _ := w.Start()
	if err := w.Accept(a, w.Intent("app", "xdp_pinned", v1alpha1.Program{Name: "xdp_pinned", Attach: world.On("xdp", "mp0")})); err != nil {
		t.Fatal(err)
	}
	if m := world.Pinned(w, a, "pinned"); m.Type() != ebpf.Array {
		t.Errorf("pinned is %v", m)
	}
}
