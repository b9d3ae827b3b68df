package hooks_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestWhatIsNotThereOfABinaryOrProcessIsNamed(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "uprobe.multi")
	for sentence, c := range map[string]struct {
		hook   string
		binary v1alpha1.UserBinary
		want   string
	}{
		"a name": {"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*", "work_tow"}}},
			"function work_tow: not found; near it are work_two"},
		"a glob": {"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"othr*"}}}, "function othr*: not found; near it are other"},
		"too many": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}, Limit: world.Ptr[int32](2)}}, "more than 2 functions are chosen",
		},
		"none": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}, Exclude: []string{"*"}}}, "exclude takes away every function",
		},
		"of a uprobe": {"uprobe", v1alpha1.UserBinary{Symbol: "Other"}, "look for symbol Other: not found; near it are other"},
		// Beyond PID_MAX_LIMIT of include/linux/threads.h, there is none.
		"of a process that ended": {
			"uprobe", v1alpha1.UserBinary{Symbol: "work_one", PID: 1 << 23}, "find process 8388608: target does not exist: no such process",
		},
		"many of a process that ended": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_one"}}, PID: 1 << 23}, "find process 8388608: target does not exist",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, _ := w.Start()
			c.binary.Path = world.Install(t, userbinary.Make(world.Workers(), userbinary.Options{}))
			p := world.Version(w, "1", v1alpha1.Attachment{Hook: c.hook, Binary: &c.binary})
			if err := w.Accept(a, p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("accept = %v, want %q", err, c.want)
			}
			if _, l := world.One(t, a); l.State != agent.Failed {
				t.Errorf("link = %+v", l)
			}
		})
	}
}
