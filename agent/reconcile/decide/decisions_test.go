package decide_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// state is what the verbs of one test leave of application a.
type state struct {
	// Runs is the serial of the version that is to run; 0 where none is. At are its interfaces.
	Runs         int64
	At           []string
	Frozen, Gone bool
	Out, Left    bool
	// Errs counts errors, and Links the links that failed.
	Errs, Links      int
	Tried, Unsettled bool
	Hindrance        report.Hindrance
}

// TestEachVerbChangesWhatIsWantedAndTheOutcome decides in node mode for an application whose
// version 2 is the newest, and whose version 1 ran in whole last.
func TestEachVerbChangesWhatIsWantedAndTheOutcome(t *testing.T) {
	failure := errors.New("no")
	place := plan.Place{Hook: plan.XDP, Device: plan.Device{Index: 2}, Interface: "eth0"}
	chain := plan.Chain{Device: plan.Device{Index: 2}, Interface: "eth0", Members: []plan.Member{{UID: "a", Revision: "2", Program: "f"}}}
	for sentence, c := range map[string]struct {
		// unready says why a version cannot be had, by serial.
		unready map[int64]error
		first   bool
		verb    func(*decide.Decisions)
		want    state
	}{
		"the newest version is chosen": {want: state{Runs: 2, At: []string{"eth0", "eth1"}}},
		"one that fails to load falls back to the one that ran last": {unready: map[int64]error{2: failure},
			want: state{Runs: 1, At: []string{"eth0", "eth1"}, Errs: 1, Hindrance: report.Refused{}, Tried: true}},
		"so does one that is on its way, without an error": {unready: map[int64]error{2: build.ErrLoading},
			want: state{Runs: 1, At: []string{"eth0", "eth1"}, Hindrance: report.Loading{}}},
		"what runs is kept where neither can be had": {unready: map[int64]error{2: failure, 1: failure},
			want: state{Frozen: true, Errs: 2, Hindrance: report.Refused{}, Tried: true}},
		"what runs is kept where there is no other": {unready: map[int64]error{2: failure}, first: true,
			want: state{Frozen: true, Errs: 1, Hindrance: report.Refused{}, Tried: true}},
		"a rejected version falls back, too": {verb: func(d *decide.Decisions) { d.Reject("a", failure) },
			want: state{Runs: 1, At: []string{"eth0", "eth1"}, Errs: 1, Hindrance: report.Refused{}, Tried: true}},
		"a postponed one waits, and says for what": {first: true, verb: func(d *decide.Decisions) { d.Postpone("a", "it waits") },
			want: state{Frozen: true, Hindrance: report.Queued{Why: "it waits"}, Unsettled: true}},
		"one that is left out of a place runs at the others": {verb: func(d *decide.Decisions) { d.LeaveOut("a", map[plan.Place]error{place: failure}) },
			want: state{Runs: 2, At: []string{"eth1"}, Errs: 1, Links: 1, Tried: true}},
		"one that is taken out of a chain is to run, and is blamed": {verb: func(d *decide.Decisions) {
			d.TakeOut(chain, &build.MemberError{UID: "a", Err: failure})
		},
			want: state{Runs: 2, At: []string{"eth0", "eth1"}, Out: true, Errs: 1, Links: 1, Tried: true}},
		"a chain that is left as it is blames who was to change": {verb: func(d *decide.Decisions) { d.Leave(chain, nil, failure) },
			want: state{Runs: 2, At: []string{"eth0", "eth1"}, Left: true, Errs: 1, Links: 1, Tried: true}},
		"a chain that is awaited blames nobody": {verb: func(d *decide.Decisions) { d.Await(chain, nil, build.ErrLoading) },
			want: state{Runs: 2, At: []string{"eth0", "eth1"}, Left: true, Hindrance: report.Loading{}}},
		"a chain in the interim has its newcomers wait": {first: true, verb: func(d *decide.Decisions) {
			d.RunInterim(plan.Chain{Device: plan.Device{Index: 2}}, chain.Members)
		},
			want: state{Frozen: true, Hindrance: report.Loading{}, Unsettled: true}},
	} {
		t.Run(sentence, func(t *testing.T) {
			app := application(t, c.first)
			d := decide.New(decide.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now(), Look: (&live.Set{}).Look(), Applications: []*decide.Application{app},
				Prepare: func(_ *decide.Application, o intent.Opened, _ *report.Outcome) (plan.Application, error) {
					at := func(i plan.Target) plan.Attachment { return plan.Attachment{Program: "f", Hook: plan.XDP, Target: i} }
					return plan.Application{UID: "a", Revision: o.Revision(), Attachments: []plan.Attachment{
						at(plan.Target{Ifindex: 2, Interface: "eth0"}), at(plan.Target{Ifindex: 3, Interface: "eth1"})}}, c.unready[o.Payload().Serial]
				}})
			d.ChooseGone()
			d.Choose()
			if c.verb != nil {
				c.verb(d)
			}
			if diff := cmp.Diff(c.want, stateOf(d)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tried := app.FailedBefore || len(app.FailedActions) > 0 || len(app.LeftOut) > 0; tried != c.want.Tried {
				t.Errorf("the application remembers a failure: %v", tried)
			}
		})
	}
}

// TestWhatIsToGoDoesNotStayWhereItIsRejected rejects an application that is to go, as one that a chain was begun with is.
func TestWhatIsToGoDoesNotStayWhereItIsRejected(t *testing.T) {
	gone := seals.New(t).Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "a", Serial: 3,
		Tombstone: true, Reason: "deleted"})
	d := decide.New(decide.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now(), Look: (&live.Set{}).Look(),
		Applications: []*decide.Application{{Known: version.Known{Newest: gone}}}})
	d.ChooseGone()
	d.Reject("a", build.ErrLoading)
	if diff := cmp.Diff(state{Gone: true, Unsettled: true, Hindrance: report.Loading{}}, stateOf(d)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTheOldestApplicationIsPreparedFirst: who is prepared first has what there is not enough of.
func TestTheOldestApplicationIsPreparedFirst(t *testing.T) {
	key := seals.New(t)
	var apps []*decide.Application
	for i, created := range []int64{3, 1, 2, 1} {
		name := string(rune('a' + i))
		o := key.Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}, UID: name, Serial: 9, Created: created,
			ObjectDigest: "sha256:object", Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}}})
		apps = append(apps, &decide.Application{Known: version.Known{Newest: o}})
	}
	var order []string
	d := decide.New(decide.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now(), Look: (&live.Set{}).Look(), Applications: apps,
		Prepare: func(_ *decide.Application, o intent.Opened, _ *report.Outcome) (plan.Application, error) {
			order = append(order, o.Payload().UID)
			return plan.Application{UID: o.Payload().UID}, nil
		}})
	d.ChooseGone()
	d.Choose()
	if diff := cmp.Diff([]string{"b", "d", "c", "a"}, order); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// application has its newest version, and the one before unless it is the first.
func application(t *testing.T, first bool) *decide.Application {
	t.Helper()
	key := seals.New(t)
	open := func(serial int64) intent.Opened {
		return key.Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "a", Serial: serial,
			ObjectDigest: "sha256:object", Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}}})
	}
	app := &decide.Application{Known: version.Known{Newest: open(2)}}
	if before := open(1); !first {
		app.Deployed = &before
	}
	return app
}

func stateOf(d *decide.Decisions) state {
	out := d.Outcomes["a"]
	s := state{Frozen: slices.Contains(d.Want.Frozen, "a"), Gone: d.IsGone("a"), Out: len(d.Want.Out) > 0, Left: len(d.Want.Left) > 0,
		Errs: len(out.Errs), Links: len(out.Links), Tried: out.HasLeft(report.Retry{}), Unsettled: out.HasLeft(report.Answer{}), Hindrance: out.Hindrance()}
	if i := d.IndexOf("a"); i >= 0 {
		s.Runs = out.Version().Payload().Serial
		for _, a := range d.Want.Applications[i].Attachments {
			s.At = append(s.At, a.Interface)
		}
	}
	return s
}
