package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// calling are programs with so many calls each, no two with the same ones, of 200 helpers with names of usual length.
func calling(programs, calls int) (facts bytecode.Facts, defined []v1alpha1.Program) {
	for i := range programs {
		p := bytecode.Program{Name: fmt.Sprintf("handle_message_%d", i)}
		for call := range calls {
			p.Helpers = append(p.Helpers, fmt.Sprintf("bpf_some_helper_%03d", (i+call*3)%200))
		}
		facts.Programs = append(facts.Programs, p)
		defined = append(defined, v1alpha1.Program{Name: p.Name})
	}
	return facts, defined
}

// TestTheFactsOfManyProgramsAreSealed has as many programs as an application may have, in as many versions as an intent may.
func TestTheFactsOfManyProgramsAreSealed(t *testing.T) {
	for _, c := range []struct {
		calls  int
		most   int
		denied bool
	}{{15, 25 << 10, false}, {50, 56 << 10, false}, {150, 144 << 10, true}} {
		facts, defined := calling(v1alpha1.MaxPrograms, c.calls)
		sealed := sealedFacts(defined, facts)
		n, err := intent.Payload{Facts: sealed}.Size()
		t.Logf("%d calls of each program: %d bytes", c.calls, n)
		if err != nil || n > c.most {
			t.Errorf("%d calls of each program take %d bytes, more than %d: %v", c.calls, n, c.most, err)
		}
		r := &denials{}
		fitSize(r, &v1alpha1.ClusterBpfApplication{}, defined, facts)
		if denied := r.err(); (denied != nil) != c.denied || c.denied && !strings.Contains(denied.Error(), "its programs do so much") {
			t.Errorf("%d calls of each program: %v", c.calls, denied)
		}
		p := intent.Payload{Facts: sealed, Previous: &intent.Payload{Facts: sealed}}
		for range 4 {
			p.Withdrawn = append(p.Withdrawn, *p.Previous)
		}
		if n, err := p.Size(); !c.denied && (err != nil || n > intent.MaxPayloadBytes/2) {
			t.Errorf("six versions of %d calls of each program take %d bytes: %v", c.calls, n, err)
		}
	}
}

// TestGrantsThatDoNotFitAreWithdrawn has a definition limit a grant to more names than there is room for beside the version that runs.
func TestGrantsThatDoNotFitAreWithdrawn(t *testing.T) {
	key := seals.New(t)
	grant := v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: []string{"web", "shop"}}
	live := intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, UID: "uid", Serial: 7,
		ImageDigest: "sha256:image", ObjectDigest: "sha256:object", Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "raw_tp"}}}},
		Maps: map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{grant}}},
	}
	n, err := live.Size()
	if err != nil {
		t.Fatal(err)
	}
	live.Source = strings.Repeat("x", intent.MaxPayloadBytes-n-500)
	for accounts, want := range map[int]bool{1: true, v1alpha1.MaxExportNames: false} {
		less := v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: []string{"web"}}
		for i := range accounts {
			less.ServiceAccounts = append(less.ServiceAccounts, strings.Repeat(string(rune('a'+i)), 200))
		}
		envelope, err := WithdrawGrants(key.Sealer, live, 8, map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{less}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := key.Trust.Open(envelope)
		if err != nil {
			t.Fatal(err)
		}
		if p := opened.Payload(); (len(p.Maps["m"].Export) == 1) != want || p.Serial != 8 || p.VersionSerial() != 7 {
			t.Errorf("with %d accounts, it is serial %d of version %d, and grants %+v", accounts, p.Serial, p.VersionSerial(), p.Maps)
		}
	}
}

// TestWhatSectionsSayIsSealed has a definition that fits, and does not with the targets that its object names.
func TestWhatSectionsSayIsSealed(t *testing.T) {
	app := &v1alpha1.ClusterBpfApplication{}
	app.Spec.Bytecode.Image = strings.Repeat("i", intent.MaxPayloadBytes-sealRest-1000)
	facts, defined := calling(1, 1)
	for target, denied := range map[string]bool{"tcp_connect": false, strings.Repeat("f", 1000): true} {
		defined[0].Attach = []v1alpha1.Attachment{{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{target}}}}
		r := &denials{}
		if fitSize(r, app, defined, facts); (len(r.reasons) > 0) != denied {
			t.Errorf("a target of %d bytes: %v", len(target), r.reasons)
		}
	}
}
