package plan_test

import (
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestNewcomersAreToldFromWhoRuns(t *testing.T) {
	m := func(uid, revision string) plan.Member {
		return plan.Member{UID: uid, Identity: v1alpha1.Identity{Name: uid}, Revision: revision, Program: "f"}
	}
	running := []plan.Member{m("a", "1"), m("b", "1")}
	all := []plan.Member{m("c", "1"), m("a", "1"), m("b", "2"), m("c", "2")}
	if got := plan.Newcomers(all, running); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("Newcomers = %v", got)
	}
	if got := plan.Without(all, []string{"c"}); len(got) != 2 || got[0].UID != "a" || len(all) != 4 {
		t.Errorf("Without = %v", got)
	}
	moved := m("a", "1")
	moved.Priority, moved.ProceedOn = 7, 3
	if plan.IsNew(moved, running) {
		t.Error("a new priority makes a newcomer")
	}
}
