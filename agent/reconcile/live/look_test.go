package live

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// TestALookFollowsWhatItsMethodsChange asks what applications have before and after one of them ended, and the revision of the other
// one was loaded once more.
func TestALookFollowsWhatItsMethodsChange(t *testing.T) {
	set := &Set{}
	set.PutRevision(&loader.Revision{UID: "stays", Name: "v1"})
	look := set.Look()
	look.state.Revisions = map[string][]string{"stays": {"v1"}}
	attached := func(uid string) plan.Attachment {
		return plan.Attachment{Program: uid, Hook: "kprobe", Target: plan.Target{Function: "vfs_read"}}
	}
	for _, uid := range []string{"gone", "stays"} {
		held := &pins.Link{UID: uid, Attachment: attached(uid), Path: uid}
		set.PutLink(held)
		look.seen = append(look.seen, held)
		look.state.Links = append(look.state.Links, plan.Link{UID: uid, Revision: "v1", Attachment: held.Attachment})
	}
	has := func(uid string) (revisions []string) {
		for _, one := range look.SeenLinks(uid) {
			revisions = append(revisions, one.Revision)
		}
		return revisions
	}
	expect := func(when string, gone, stays []string) {
		t.Helper()
		if diff := cmp.Diff([][]string{gone, stays}, [][]string{has("gone"), has("stays")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	expect("before", []string{"v1"}, []string{"v1"})
	if !look.IsAttached("gone", attached("gone")) || look.IsAttached("gone", attached("stays")) {
		t.Error("it has another attachment than its own")
	}

	delete(set.links, "gone")
	look.ForgetEnded(func(uid string) bool { return uid == "gone" })
	expect("after one ended", nil, []string{"v1"})
	if look.IsAttached("gone", attached("gone")) {
		t.Error("what ended is attached")
	}

	look.PutRevision(&loader.Revision{UID: "stays", Name: "v2"})
	expect("after another revision was loaded", nil, []string{"v1"})
	if !set.Unused.IsEmpty() {
		t.Error("a revision is freed that is not replaced")
	}
	look.PutRevision(&loader.Revision{UID: "stays", Name: "v1"})
	expect("after it was loaded once more", nil, []string{""})
	if set.Unused.IsEmpty() {
		t.Error("what was replaced is not freed")
	}
	if diff := cmp.Diff([]string{"v1", "v2"}, look.state.Revisions["stays"]); diff != "" {
		t.Errorf("revisions (-want +got):\n%s", diff)
	}
}
