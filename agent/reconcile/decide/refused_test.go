package decide_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestWhatCannotRunIsToldAndWhatRunsGoesOn(t *testing.T) {
	need.Kernel(t)
	xdp := world.On("xdp", "rf0")
	for sentence, c := range map[string]struct {
		change func(w *world.World, p *intent.Payload)
		want   []string
		log    string
	}{
		"the verifier refuses the new version": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest, p.Programs[0].Name = w.Object(world.ProgramsObject("xdp_rejected")), "xdp_rejected"
		}, []string{"load app", "program xdp_rejected"}, "R"},
		"the object lacks the function": {func(w *world.World, p *intent.Payload) { p.Programs[0].Name = "nope" },
			[]string{`no function "nope"`, "it has count_packets"}, ""},
		"the function is for another hook": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest, p.Programs[0].Name = w.Object(world.ProgramsObject("tcx_count")), "count_ingress"
		}, []string{"SchedCLS", "hook xdp takes XDP"}, ""},
		"the agent attaches no such hook": {func(w *world.World, p *intent.Payload) { p.Programs[0].Attach[0].Hook = "struct_ops" },
			[]string{`hook "struct_ops"`}, ""},
		"the object is no ELF file": {func(w *world.World, p *intent.Payload) { p.ObjectDigest = w.Object([]byte("nonsense")) },
			[]string{"read object of app"}, ""},
		"nobody has the object": {func(w *world.World, p *intent.Payload) { p.ObjectDigest = "sha256:0000" },
			[]string{"fetch object of app", "no object"}, ""},
		"what is fetched is another object": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest = "sha256:1111"
			w.Mu.Lock()
			defer w.Mu.Unlock()
			w.Objects[p.ObjectDigest] = []byte("other")
		}, []string{"hashes to", "sha256:1111"}, ""},
		"a variable cannot be set": {func(w *world.World, p *intent.Payload) {
			p.Variables = map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(`-1`)}}
		}, []string{"variables.sampling", "out of range"}, ""},
		"a map is not the object's": {func(w *world.World, p *intent.Payload) {
			n := uint32(5)
			p.Maps = map[string]v1alpha1.Map{"nope": {MaxEntries: &n}}
		}, []string{"maps.nope", "counts"}, ""},
		"the interface pattern is broken": {func(w *world.World, p *intent.Payload) { p.Programs[0].Attach = world.On("xdp", "rf[") },
			[]string{"rf[", "not a pattern"}, ""},
		"one target is named twice": {func(w *world.World, p *intent.Payload) {
			p.Programs[0].Attach = append(world.On("xdp", "rf0"), world.On("xdp", "rf*")...)
		},
			[]string{"twice"}, ""},
		"the cgroup does not exist": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest = w.Object(world.HooksObject)
			p.Programs = []v1alpha1.Program{{Name: "on_xdp", Attach: xdp}, {
				Name: "on_cgroup_bind4", Attach: []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: "/no/such"}},
			}}
		}, []string{"no/such", "no such file"}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "rf0", "rf1")
			a, _ := w.Start()
			app := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
			if err := w.Accept(a, app); err != nil {
				t.Fatal(err)
			}
			_, before := world.One(t, a)
			bad := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
			c.change(w, &bad)
			err := w.Accept(a, bad)
			if err == nil {
				t.Fatal("Settled reports nothing")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			s := a.Status()[0]
			if s.Conditions[0].Status != metav1.ConditionFalse || world.Runs(t, before.ID) == 0 {
				t.Errorf("condition %+v, and link %d runs %d", s.Conditions[0], before.ID, world.Runs(t, before.ID))
			}
			if (s.VerifierLog != "") != (c.log != "") || !strings.Contains(s.VerifierLog, c.log) {
				t.Errorf("verifier log = %q", s.VerifierLog)
			}
			// A good one fixes it.
			if err := w.Accept(a, w.Intent("app", "xdp_count", app.Programs[0])); err != nil {
				t.Errorf("after a good intent: %v", err)
			}
			if now := a.Status()[0]; now.Conditions[0].Status != metav1.ConditionTrue || now.VerifierLog != "" || now.Error != "" {
				t.Errorf("after a good intent: %+v", now)
			}
		})
	}
}

func TestARefusedVersionLeavesThePreviousAfterARebootToo(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, stop := w.Start()
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a, w.Intent("app", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: world.On("xdp", "rf0")})); err == nil {
		t.Fatal("the verifier took it")
	}
	stop()
	w.Reboot("rf0")
	a, _ = w.Start()
	if err := w.Accept(a); err == nil || !strings.Contains(err.Error(), "xdp_rejected") {
		t.Errorf("Settled = %v", err)
	}
	s := a.Status()[0]
	if s.Conditions[0].Reason != "KeptPrevious" || len(s.Programs) != 1 || s.Programs[0].Name != "count_packets" || len(s.Programs[0].Links) != 1 {
		t.Errorf("after the reboot: %+v", s)
	}
}
