package build_test

import (
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestMembersOfOneNameAreToldApart(t *testing.T) {
	m := func(uid, revision string) plan.Member {
		return plan.Member{UID: uid, Identity: v1alpha1.Identity{Name: uid}, Revision: revision, Program: "f"}
	}
	if got := build.MemberKeys([]plan.Member{m("a", "1"), {UID: "a2", Identity: v1alpha1.Identity{Name: "a"}, Program: "f"}, m("b", "1")}); !slices.Equal(got,
		[]string{"a f (a)", "a f (a2)", "b f"}) {
		t.Errorf("build.MemberKeys = %v", got)
	}
}
