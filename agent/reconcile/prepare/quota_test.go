package prepare

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/node"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/need"
)

// versions are those of a reconcile on this machine, with a bound of one program at a target.
func versions(set *live.Set) *Versions {
	lookups := targets.NewLookups(attach.Host{}, slog.New(slog.DiscardHandler), func() {})
	return New(Versions{Look: set.Look(), LookupRound: lookups.Begin(time.Now(), targets.Pods{}), Sharing: sharing.Of(version.Node{}, nil),
		SharedTargets: quota.Limits{NamespacePrograms: 1, Programs: 2, NamespacePages: 1}})
}

// TestWhatAnAttachmentTakes: hooks that the kernel runs at one place count together.
func TestWhatAnAttachmentTakes(t *testing.T) {
	for sentence, c := range map[string]struct {
		hook   string
		target plan.Target
		want   string
	}{
		"a tracepoint by its category":     {"tracepoint", plan.Target{Tracepoint: "raw_syscalls/sys_enter"}, "tracepoint sys_enter"},
		"a tracepoint by its name":         {"raw_tp", plan.Target{Tracepoint: "sys_enter"}, "tracepoint sys_enter"},
		"a function":                       {"kprobe", plan.Target{Function: "do_exit"}, "function do_exit"},
		"a function's end":                 {"fexit", plan.Target{Function: "do_exit"}, "function do_exit"},
		"the middle of a function":         {"kprobe", plan.Target{Function: "do_exit", Offset: 4}, "function do_exit"},
		"a function of a system call":      {"fentry", plan.Target{Function: "__do_sys_getpid"}, "function of system call getpid"},
		"the same by another of its names": {"ksyscall", plan.Target{Function: "getpid"}, "function of system call getpid"},
		"a check of security":              {"lsm", plan.Target{Function: "file_open"}, "function bpf_lsm_file_open"},
		"a place in a file":                {"usdt", plan.Target{Binary: "/b", BinaryID: "1:2", USDT: "a:b", Offset: 0x10}, "1:2+0x10"},
		"a place in a file of an overlay":  {"uprobe", plan.Target{Binary: "/b", BinaryID: "overlay:1:2:3:4", Offset: 0x10}, "overlay:1:4+0x10"},
		"of which a container changed the mode and time": {
			"uprobe", plan.Target{Binary: "/b", BinaryID: "overlay:1:7:8:4", Offset: 0x10}, "overlay:1:4+0x10",
		},
		"functions that are not known": {"kprobe.multi", plan.Target{Function: "do_*", FunctionsID: "x"}, "functions do_* x"},
		"a file that is not there": {
			"uprobe.multi", plan.Target{Binary: "/not/there", BinaryID: "overlay:1:2:3:4:5:6", Symbols: "f*"}, "overlay:1:4 f*",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			use, _ := versions(&live.Set{}).useOf(plan.Attachment{Hook: c.hook, Target: c.target})
			all := slices.Collect(use.All())
			if len(all) != 1 {
				t.Fatalf("it takes %+v", use)
			}
			got := all[0]
			is := strings.TrimSpace(got.File + " " + got.Name)
			if got.Name == "" {
				is = got.File + "+0x10"
			}
			if is != c.want || c.want == "1:2+0x10" && got.Offset != 0x10 {
				t.Errorf("it takes %+v, want %s", got, c.want)
			}
		})
	}
}

// TestFunctionsOfOneLinkAreKnown: a link for many functions has a place at each.
func TestFunctionsOfOneLinkAreKnown(t *testing.T) {
	v := versions(&live.Set{})
	chosen, err := v.LookupRound.Host().Functions.Choose(&v1alpha1.Functions{Names: []string{"do_exit", "do_group_exit"}})
	if err != nil {
		t.Fatal(err)
	}
	use, err := v.useOf(plan.Attachment{Hook: "kretprobe.multi", Target: plan.Target{Function: "do_exit, …", FunctionsID: chosen.ID}})
	want := []quota.Target{{Name: "function do_exit"}, {Name: "function do_group_exit"}}
	if err != nil || !slices.Equal(use.Targets, want) {
		t.Errorf("it takes %+v, %v; want %+v", use.Targets, err, want)
	}
}

// TestFunctionsOfAVersionBeforeAreKnown: its links may stay, also after a start of the agent, and while others are chosen.
func TestFunctionsOfAVersionBeforeAreKnown(t *testing.T) {
	chosen, err := functions.New().Choose(&v1alpha1.Functions{Names: []string{"do_exit", "do_group_exit"}})
	if err != nil {
		t.Fatal(err)
	}
	key := seals.New(t)
	of := func(serial int64, names ...string) intent.Opened {
		at := v1alpha1.Attachment{Hook: "kprobe.multi", Functions: &v1alpha1.Functions{Names: names}}
		return key.Open(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}, UID: "a", Serial: serial,
			ObjectDigest: "sha256:object", Programs: []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{at}}}})
	}
	deployed := of(1, "do_exit", "do_group_exit")
	v := versions(&live.Set{})
	v.Sharing = sharing.Of(version.Node{}, []version.Known{{Newest: of(2, "do_exit"), Deployed: &deployed}})
	runs := plan.Attachment{Application: deployed.Payload().Application, Program: "p", Hook: "kprobe.multi", Target: plan.Target{FunctionsID: chosen.ID}}
	for range 3 {
		want := []quota.Target{{Name: "function do_exit"}, {Name: "function do_group_exit"}}
		if use, err := v.useOf(runs); err != nil || !slices.Equal(use.Targets, want) {
			t.Errorf("it takes %+v, %v; want %+v", use.Targets, err, want)
		}
		if _, err := v.LookupRound.Host().Functions.Choose(&v1alpha1.Functions{Names: []string{"do_exit"}}); err != nil {
			t.Error(err)
		}
		v.LookupRound.End()
		// What is remembered is found without a look at the definitions.
		v.Sharing = sharing.Of(version.Node{}, nil)
	}
}

// TestWhatIsLeftOutIsReported has an application whose second program runs, and one of another namespace and one of the cluster.
func TestWhatIsLeftOutIsReported(t *testing.T) {
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	at := func(of v1alpha1.Identity, program string) plan.Attachment {
		return plan.Attachment{Application: of, Program: program, Hook: "raw_tp", Target: plan.Target{Tracepoint: "sys_enter"}}
	}
	set := &live.Set{}
	set.PutLink(&pins.Link{UID: "a", Attachment: at(team, "second")})
	v := versions(set)
	v.countRunning()
	optional := at(team, "optional")
	optional.Optional = true
	r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{
		UID: "a", Identity: team, Attachments: []plan.Attachment{at(team, "first"), at(team, "second"), optional},
	}}
	r.takeShared()
	if len(r.app.Attachments) != 1 || r.app.Attachments[0].Program != "second" || len(r.absent) != 2 {
		t.Fatalf("it keeps %+v, and is without %+v", r.app.Attachments, r.absent)
	}
	for i, want := range []report.LinkState{report.Failed, report.Skipped} {
		if is := r.absent[i].Status; is.State != want || !strings.Contains(is.Error, "tracepoint sys_enter") {
			t.Errorf("%s is %+v", r.absent[i].Program, is)
		}
	}
	other, cluster := v1alpha1.Identity{Namespace: "team-b", Name: "b"}, v1alpha1.Identity{Name: "c"}
	for _, of := range []v1alpha1.Identity{other, cluster, cluster} {
		r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{
			UID: of.Name, Identity: of, Attachments: []plan.Attachment{at(of, "p"), at(of, "q")},
		}}
		r.takeShared()
		if want := map[string]int{"b": 1, "c": 2}[of.Name]; len(r.app.Attachments) != want {
			t.Errorf("%s keeps %d of 2 attachments, want %d", of.Name, len(r.app.Attachments), want)
		}
	}
}

// TestAProbeWhosePlaceIsNotKnownIsMissing: what waits for a file system is reported as an error, also when it is late, so that a version that
// lacks the probe takes the place of no other.
func TestAProbeWhosePlaceIsNotKnownIsMissing(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("SKIPPED: needs FUSE:", err)
	}
	if err := unix.Mount("skep-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), unix.Close(server)); err != nil {
			t.Error(err)
		}
	}()
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	lookups := targets.NewLookups(attach.Host{}, slog.New(slog.DiscardHandler), func() {})
	for i, sentence := range []string{"at first", "late"} {
		v := versions(&live.Set{})
		v.LookupRound = lookups.Begin(time.Now().Add(time.Duration(i)*time.Minute), targets.Pods{})
		r := resolving{Versions: v, out: &report.Outcome{State: report.Running{}}, app: plan.Application{UID: "a", Identity: team, Attachments: []plan.Attachment{{
			Application: team, Program: "p", Hook: "uprobe", Target: plan.Target{Binary: dir + "/b", BinaryID: "1:2", Symbol: "f"},
		}}}}
		r.takeShared()
		r.tellAbsent()
		if r.out.IsWhole() || len(r.out.Links) != 1 || r.out.Links[0].Status.State != report.Waiting || len(r.app.Attachments) != 0 {
			t.Errorf("%s the outcome is %+v", sentence, r.out)
		}
	}
}

// TestFewOfManyThatAreLeftOutAreTold: a status has room for some.
func TestFewOfManyThatAreLeftOutAreTold(t *testing.T) {
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	v := versions(&live.Set{})
	r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{UID: "a", Identity: team}}
	for i := range 20 {
		r.app.Attachments = append(r.app.Attachments, plan.Attachment{
			Application: team, Program: fmt.Sprint("p", i%2), Hook: "usdt", Target: plan.Target{Binary: "/b", BinaryID: "1:2", USDT: "a:b", Offset: 4096 * uint64(i)},
		})
	}
	r.takeShared()
	told := map[string]string{}
	for _, one := range r.absent {
		told[one.Program] += one.Status.Target + "; "
	}
	want := map[string]string{"p0": "/b:a:b+0x2000; /b:a:b+0x4000; /b:a:b+0x6000; others; ", "p1": "/b:a:b+0x1000; /b:a:b+0x3000; /b:a:b+0x5000; others; "}
	if len(r.app.Attachments) != 1 || !maps.Equal(told, want) {
		t.Errorf("%d are kept, and it tells of %q; want one, and %q", len(r.app.Attachments), told, want)
	}
	if counts := v.Shared(); counts.LeftOut != 19 {
		t.Errorf("it counts %+v", counts)
	}
}

// BenchmarkSharedTargets has the bound of places of a namespace, each of which runs at a target of its own.
func BenchmarkSharedTargets(b *testing.B) {
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	for _, places := range []int{maxPlaces, maxOfNamespace} {
		b.Run(fmt.Sprint(places), func(b *testing.B) {
			set, all := &live.Set{}, make([]plan.Attachment, 0, places)
			for i := range places {
				target := plan.Target{Binary: "/b", BinaryID: "1:2", USDT: "a:b", Offset: uint64(i), Container: fmt.Sprint(i)}
				all = append(all, plan.Attachment{Application: team, Program: "p", Hook: "usdt", Target: target})
				set.PutLink(&pins.Link{UID: "a", Attachment: all[i]})
			}
			began := node.Busy(b)
			for b.Loop() {
				v := versions(set)
				v.ledger = quota.New(quota.Default(), nil)
				v.countRunning()
				r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{UID: "a", Identity: team, Attachments: slices.Clone(all)}}
				r.takeShared()
				if len(r.app.Attachments) != places {
					b.Fatalf("%d of %d places are kept", len(r.app.Attachments), places)
				}
			}
			b.ReportMetric(float64((node.Busy(b)-began).Microseconds())/1000/float64(b.N), "CPU-ms/op")
		})
	}
}
