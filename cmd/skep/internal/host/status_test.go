package host

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/schemas"
)

// notReady is an application with a condition that says why.
func notReady(change func(*nodemode.Application)) nodemode.Application {
	a := nodemode.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: "app", Image: "r/app:v2", Digest: "sha256:aa",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Denied", Message: "no"}}}
	change(&a)
	return a
}

func TestStatusAndExplainTellWhatRunsFromWhatIsWanted(t *testing.T) {
	for name, test := range map[string]struct {
		change             func(*nodemode.Application)
		both, explainsOnly []string
	}{
		"a new version is refused": {
			func(a *nodemode.Application) { a.RunningImage, a.WantedDigest = "r/app:v1", "sha256:bb" },
			[]string{"  wanted   r/app:v2 sha256:bb\n  runs     r/app:v1 sha256:aa\n"}, nil},
		"the kernel refused a new version": {
			func(a *nodemode.Application) { a.Agent = &agent.ApplicationStatus{Revision: "0123", Wanted: "4567"} },
			[]string{"  wanted   r/app:v2 sha256:aa\n  runs     an earlier version, revision 0123\n"}, nil},
		"the definition cannot be read": {
			func(a *nodemode.Application) {
				a.Image, a.RunningImage = "", "r/app:v1"
				a.Problems = []schemas.Problem{{Source: schemas.Position{File: "a.cue", Line: 3, Column: 2}, Path: "a.spec.x", Message: "it is wrong", Fix: "fix it"}}
			},
			[]string{"  runs     r/app:v1 sha256:aa\n"},
			[]string{"  problem  a.cue:3:2 at a.spec.x\n          it is wrong\n          fix: fix it\n"}},
		"one version alone": {func(*nodemode.Application) {}, nil, []string{"  image    r/app:v2\n  digest   sha256:aa\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := notReady(test.change)
			var status, explained bytes.Buffer
			printWhy(&status, a)
			explain(&explained, a)
			for _, want := range test.both {
				if !strings.Contains(status.String(), want) {
					t.Errorf("status says %q, want %q in it", &status, want)
				}
			}
			for _, want := range append(test.both, test.explainsOnly...) {
				if !strings.Contains(explained.String(), want) {
					t.Errorf("explain says %q, want %q in it", &explained, want)
				}
			}
		})
	}
}

// TestStatusSaysWhatNamespacesHave: each once, of those that have anything at targets that tasks of others run, too.
func TestStatusSaysWhatNamespacesHave(t *testing.T) {
	of := func(namespace, name string, share *v1alpha1.NamespaceShare) nodemode.Application {
		return nodemode.Application{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name, Agent: &agent.ApplicationStatus{SharedTargets: share}}
	}
	share := &v1alpha1.NamespaceShare{Namespace: "team-a", Programs: 3, ProgramsLimit: 4, TextPages: 5, TextPagesLimit: 64, LeftOut: 1}
	var said bytes.Buffer
	s := nodemode.Status{Applications: []nodemode.Application{of("team-a", "a", share), of("team-a", "b", share), of("team-b", "c", nil),
		notReady(func(*nodemode.Application) {})}}
	if err := PrintStatus(&said, "text", "skep confirm", s); err != nil {
		t.Fatal(err)
	}
	want := "\nNAMESPACE  PROGRAMS AT ONE TARGET  PAGES OF ONE FILE  LEFT OUT\nteam-a     3 of 4                  5 of 64            1\n"
	if _, after, found := strings.Cut(said.String(), want); !found || after != "" {
		t.Errorf("it says %q, want %q at its end", &said, want)
	}
}

func TestStatusSaysThatANodeSelectorDoesNotMatch(t *testing.T) {
	elsewhere := notReady(func(a *nodemode.Application) {
		a.Conditions[0].Status, a.Conditions[0].Reason, a.Conditions[0].Message = metav1.ConditionTrue, "NotSelected", "the node selector does not match this node"
	})
	here := notReady(func(a *nodemode.Application) {
		a.Conditions[0].Status, a.Conditions[0].Reason = metav1.ConditionTrue, nodemode.ReasonSucceeded
	})
	var said bytes.Buffer
	printWhy(&said, elsewhere)
	if row := statusRow(elsewhere, true); row[len(row)-1] != "NotSelected" || !strings.Contains(said.String(), "does not match this node") {
		t.Errorf("the row is %q, and it says %q", row, &said)
	}
	said.Reset()
	printWhy(&said, here)
	if row := statusRow(here, true); row[len(row)-1] != "" || said.Len() > 0 {
		t.Errorf("of what runs, the row is %q, and it says %q", row, &said)
	}
}

func TestStatusSaysLoudlyWhatUnloadProtectionHolds(t *testing.T) {
	var out bytes.Buffer
	protection := &nodemode.UnloadProtection{Revision: "source:12", Reason: "the source was a, and is b", Applications: []string{"one", "two"}}
	held := nodemode.Status{Source: nodemode.SourceStatus{Address: "b", UnloadProtection: protection}}
	if err := PrintStatus(&out, "text", ConfirmHere(where.DefaultState), held); err != nil {
		t.Fatal(err)
	}
	var ended bytes.Buffer
	if err := PrintStatus(&ended, "text", ConfirmLater("/srv/state"), held); err != nil {
		t.Fatal(err)
	}
	if want := "        to unload: start skep run without --once, and run: skep confirm --state /srv/state source:12\n"; !strings.Contains(ended.String(), want) {
		t.Errorf("after --once it says %q, want %q in it", &ended, want)
	}
	if want := "unload protection the source was a, and is b\n        kept until it is confirmed: one, two\n        to unload: " +
		"skep confirm source:12\n"; !strings.Contains(out.String(), want) {
		t.Errorf("says %q, want %q in it", &out, want)
	}
}

// TestStatusLabelsWhatIsWrongByWhatItIsAbout: signers and policies are no part of the source.
func TestStatusLabelsWhatIsWrongByWhatItIsAbout(t *testing.T) {
	var out bytes.Buffer
	s := nodemode.Status{Source: nodemode.SourceStatus{Address: "a", Error: "it is away"}, Settings: nodemode.SettingsStatus{
		Error: "read signers: z.yaml is broken\ny.yaml is broken, too",
	}}
	if err := PrintStatus(&out, "text", ConfirmHere(where.DefaultState), s); err != nil {
		t.Fatal(err)
	}
	want := "source  a\n        it is away\nsettings\n        read signers: z.yaml is broken\n        y.yaml is broken, too\nno application\n"
	if out.String() != want {
		t.Errorf("says %q, want %q", &out, want)
	}
}

// TestExplainSaysOnceWhyAnAlternativeDoesNotRun: below its alternative.
func TestExplainSaysOnceWhyAnAlternativeDoesNotRun(t *testing.T) {
	const why, also = "kernel 6.18 has no function f", "the device is not there"
	skipped := func(name, hook string) agent.ProgramStatus {
		return agent.ProgramStatus{Name: name, Links: []agent.LinkStatus{{Hook: hook, State: agent.Skipped, Error: why}}}
	}
	optional := agent.ProgramStatus{Name: "extra", Links: []agent.LinkStatus{{Hook: "xdp", Target: "eth9", State: agent.Skipped, Error: also}}}
	said := "alternative call does without on_entry, on_exit: " + why + "; extra on xdp eth9: " + also
	a := notReady(func(a *nodemode.Application) {
		a.Conditions[0].Message = "every program runs, but for what is optional: " + said
		a.Programs = []agent.ProgramStatus{skipped("on_entry", "fentry"), skipped("on_exit", "fexit"), {Name: "probe", ID: 7, Tag: "aa"}, optional}
		a.Agent = &agent.ApplicationStatus{Skipped: said, Alternatives: []agent.AlternativeStatus{{Name: "call", Sets: []agent.SetStatus{
			{Programs: []string{"on_entry", "on_exit"}, Error: why}, {Programs: []string{"probe"}}}}}}
	})
	var out bytes.Buffer
	explain(&out, a)
	want := "  Ready      False    every program runs, but for what is optional, see below\n" +
		"  alternative call\n    Skipped    on_entry, on_exit " + why + "\n    Runs       probe\n" +
		"  program probe id 7 tag aa\n  program extra\n    Skipped    xdp on eth9 " + also + "\n"
	if !strings.HasSuffix(out.String(), want) || strings.Count(out.String(), why) != 1 {
		t.Errorf("it says:\n%s\nwant at its end:\n%s", &out, want)
	}
}

// TestAMemberThatIsOffIsShownAsSuch, in the table and below the application.
func TestAMemberThatIsOffIsShownAsSuch(t *testing.T) {
	a := notReady(func(a *nodemode.Application) {
		a.Programs = []agent.ProgramStatus{{Name: "count", ID: 7, Tag: "aa", Links: []agent.LinkStatus{{Hook: "xdp", Target: "eth0", State: agent.SwitchedOff}}}}
	})
	var table, explained bytes.Buffer
	if err := printApplications(&table, false, true, []nodemode.Application{a}); err != nil {
		t.Fatal(err)
	}
	explain(&explained, a)
	if want := "xdp@eth0 (off)"; !strings.Contains(table.String(), want) {
		t.Errorf("status says %q, want %q in it", &table, want)
	}
	if want := "    SwitchedOff xdp on eth0 the chain runs without it, and it leaves with the next one\n"; !strings.Contains(explained.String(), want) {
		t.Errorf("explain says %q, want %q in it", &explained, want)
	}
}

// TestExplainNamesWhatToRead: the folder of the maps, and the pin of an iterator.
func TestExplainNamesWhatToRead(t *testing.T) {
	a := notReady(func(a *nodemode.Application) {
		a.Programs = []agent.ProgramStatus{{
			Name: "tasks", ID: 7, Tag: "aa", Links: []agent.LinkStatus{{Hook: "iter", Target: "-", State: agent.Attached, Pin: "/sys/fs/bpf/skep/u/+links/l"}},
		}}
		a.Agent = &agent.ApplicationStatus{Pins: "/sys/fs/bpf/skep/u/r"}
	})
	var out bytes.Buffer
	explain(&out, a)
	for _, want := range []string{"  pins     /sys/fs/bpf/skep/u/r\n", "  program tasks id 7 tag aa\n    Attached   iter read /sys/fs/bpf/skep/u/+links/l\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it says:\n%s\nwant %q in it", &out, want)
		}
	}
}

// TestStatusSaysWhatIsSkippedAndWhatRunsNowhere: of an application that is ready.
func TestStatusSaysWhatIsSkippedAndWhatRunsNowhere(t *testing.T) {
	link := func(state agent.LinkState, why string) agent.ProgramStatus {
		return agent.ProgramStatus{Name: "p" + string(state), Links: []agent.LinkStatus{{Hook: "xdp", State: state, Error: why}}}
	}
	for sentence, c := range map[string]struct {
		programs  []agent.ProgramStatus
		row, said string
	}{
		"a program that the kernel does not support": {
			[]agent.ProgramStatus{link(agent.Attached, ""), link(agent.Skipped, "kernel 6.1.0 has no hook netkit/primary")}, "",
			"  skipped   pSkipped: kernel 6.1.0 has no hook netkit/primary\n"},
		"no pod is selected":            {[]agent.ProgramStatus{link(agent.NoPods, "")}, "NoPods", "runs nowhere: this host has no pod that it selects\n"},
		"one of two programs has a pod": {[]agent.ProgramStatus{link(agent.NoPods, ""), link(agent.Attached, "")}, "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := notReady(func(a *nodemode.Application) {
				a.Conditions[0].Status, a.Conditions[0].Reason, a.Programs = metav1.ConditionTrue, nodemode.ReasonSucceeded, c.programs
			})
			var said bytes.Buffer
			printWhy(&said, a)
			if row := statusRow(a, true); row[len(row)-1] != c.row || !strings.Contains(said.String(), c.said) || c.said == "" && said.Len() > 0 {
				t.Errorf("the row is %q, and it says %q", row, &said)
			}
		})
	}
}

func TestNoCellIsCutInsideAWord(t *testing.T) {
	a := nodemode.Application{Digest: "sha256:" + strings.Repeat("ab", 32), Signers: []string{"release-of-the-team", "security"}}
	a.Name = strings.Repeat("n", 60)
	if row := statusRow(a, false); row[0] != a.Name || row[2] != "abababababab" || row[3] != "release-of-the-team, +1" {
		t.Errorf("on a terminal: %q", row)
	}
}
