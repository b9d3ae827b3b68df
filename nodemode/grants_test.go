package nodemode

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// TestAWithdrawnGrantWaitsForNothing takes readers of a map away in definitions that replace nothing: because the grants
// alone changed, a policy denies them, or nothing answers for their image.
func TestAWithdrawnGrantWaitsForNothing(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	h := s.open()
	program := uint32(0)
	granted := func(sentence, ref, groups string, want ...string) {
		t.Helper()
		maps := "spec:\n  maps: {counts: {export: [{access: Read, groups: [" + groups + "]}]}}\n"
		if groups == "" {
			maps = "spec:\n"
		}
		s.write(filepath.Join(s.defs, "app.yaml"), []byte(strings.Replace(string(s.definition("app", ref)), "spec:\n", maps, 1)))
		status := s.pass(h)["app"]
		now := running(status)
		if program == 0 {
			program = now
		}
		if now == 0 || now != program {
			t.Errorf("%s: program %d runs, before it was %d", sentence, now, program)
		}
		for _, w := range status.Warnings {
			t.Errorf("%s: warned of %+v", sentence, w)
		}
		var got []string
		p := h.agent.Intents()[0].Payload()
		for _, g := range p.Maps["counts"].Export {
			if g.Access != v1alpha1.MapRead {
				t.Errorf("%s: %+v", sentence, g)
			}
			got = append(got, g.Groups...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: groups (-want +got):\n%s", sentence, diff)
		}
	}
	granted("none", ref, "")
	s.write(filepath.Join(s.defs, "app.yaml"), []byte(strings.Replace(string(s.definition("app", ref)), "spec:\n",
		"spec:\n  maps: {counts: {export: [{access: Read, namespaces: [web]}]}}\n", 1)))
	if w := s.pass(h)["app"].Warnings; len(w) != 1 || w[0].Path != "spec.maps.counts.export" {
		t.Errorf("of a map that no group reads it warns %+v", w)
	}
	granted("the first grant", ref, "adm, metrics, staff", "adm", "metrics", "staff")
	granted("one less", ref, "adm, metrics", "adm", "metrics")
	granted("an image that is not there", ref+"-other", "adm", "adm")
	s.policy("package skep.policy\n\ndeny contains \"no\"", v1alpha1.RunningKeep)
	granted("denied", ref, "adm, staff", "adm")
	granted("denied, and none", ref, "")
}

// TestADeniedGrantIsWithdrawn has a policy deny what a program that keeps running grants, and then no more.
func TestADeniedGrantIsWithdrawn(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	h := s.open()
	maps := "spec:\n  maps: {counts: {export: [{access: Read, groups: [adm]}, {access: Read, groups: [staff]}]}}\n"
	s.write(filepath.Join(s.defs, "app.yaml"), []byte(strings.Replace(string(s.definition("app", ref)), "spec:\n", maps, 1)))
	program := running(s.pass(h)["app"])
	deny := func(sentence, rego string, want ...string) Application {
		t.Helper()
		s.policy("package skep.policy\n\n"+rego, v1alpha1.RunningKeep)
		status := s.pass(h)["app"]
		if now := running(status); program == 0 || now != program {
			t.Errorf("%s: program %d runs, before it was %d", sentence, now, program)
		}
		var got []string
		p := h.agent.Intents()[0].Payload()
		for _, g := range p.Maps["counts"].Export {
			got = append(got, g.Groups...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: groups (-want +got):\n%s", sentence, diff)
		}
		return status
	}
	deny("for what is no grant", "deny contains \"no owner\" if not input.application.metadata.labels.owner", "adm", "staff")
	status := deny("for one", "deny contains \"read by adm\" if \"adm\" in input.application.spec.maps.counts.export[_].groups", "staff")
	if len(status.Reasons) != 1 || !slices.ContainsFunc(status.Warnings, func(r policies.Reason) bool { return strings.Contains(r.Message, "read by adm") }) {
		t.Errorf("its status has the reasons %+v and the warnings %+v", status.Reasons, status.Warnings)
	}
	deny("no more", "deny contains \"unsigned\" if count(input.signatures) == 0", "adm", "staff")
}
