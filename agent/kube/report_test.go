package kube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	kernelprofile "github.com/skep-dev/skep/agent/attach/profile"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// deployed is a status with the condition.
func deployed(status metav1.ConditionStatus, reason, message string) agent.ApplicationStatus {
	return agent.ApplicationStatus{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "u", Serial: 7, Version: 7,
		Revision:   "r",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: status, Reason: reason, Message: message}}}
}

func TestStateOf(t *testing.T) {
	for sentence, c := range map[string]struct {
		is      agent.ApplicationStatus
		change  func(*agent.ApplicationStatus)
		state   v1alpha1.NodeState
		message string
	}{
		"it runs": {deployed("True", "Deployed", "every program runs"), nil, v1alpha1.NodeLoaded, ""},
		"it runs among pins of others": {deployed("True", "Deployed", "it runs; 1 among its pins"),
			func(a *agent.ApplicationStatus) { a.UnmanagedFiles = []string{"x"} }, v1alpha1.NodeLoaded, "it runs; 1 among its pins"},
		"it keeps a map of an application that is gone": {deployed("True", "Deployed", "every program runs; map m: gone"),
			func(a *agent.ApplicationStatus) {
				a.TakenMaps = []report.TakenMap{{Map: "kept"}, {Map: "m", Message: "gone"}}
			}, v1alpha1.NodeLoaded, "every program runs; map m: gone"},
		"its map is the owner's": {deployed("True", "Deployed", "every program runs"),
			func(a *agent.ApplicationStatus) { a.TakenMaps = []report.TakenMap{{Map: "m"}} }, v1alpha1.NodeLoaded, ""},
		"its object is being fetched": {deployed("False", "Fetching", "the object is being fetched"), nil, v1alpha1.NodePending, "the object is being fetched"},
		"it waits for an interface":   {deployed("False", "Waiting", "no interface"), nil, v1alpha1.NodeWaiting, "no interface"},
		"it failed": {deployed("False", "Failed", "words"),
			func(a *agent.ApplicationStatus) { a.Error = "the kernel's words" }, v1alpha1.NodeFailed, "the kernel's words"},
		"the version before runs on": {deployed("False", "KeptPrevious", "the previous revision runs on: no"),
			func(a *agent.ApplicationStatus) { a.Error = "no" }, v1alpha1.NodeFailed, "no"},
		"the kernel lacks what it needs": {deployed("False", "Failed", "words"),
			func(a *agent.ApplicationStatus) { a.Error, a.Unsupported = "no such hook", true }, v1alpha1.NodeUnsupported, "no such hook"},
		"the node is not chosen": {deployed("False", "NotSelected", "the selector"),
			func(a *agent.ApplicationStatus) { a.Revision = "" }, v1alpha1.NodeNotSelected, ""},
		"the node is not chosen and it runs still": {deployed("False", "NotSelected", "the selector"), nil, v1alpha1.NodePending, "the selector"},
		"it was unloaded": {deployed("False", "Unloaded", "unloaded: gone"),
			func(a *agent.ApplicationStatus) { a.Tombstone, a.Revision = true, "" }, v1alpha1.NodeRemoved, ""},
		"it is to go and runs still": {deployed("False", "Unloading", "it is to go"),
			func(a *agent.ApplicationStatus) { a.Tombstone = true }, v1alpha1.NodePending, "it is to go"},
		"it is to go and cannot": {deployed("False", "Unloading", "it is to go"),
			func(a *agent.ApplicationStatus) { a.Tombstone, a.Error = true, "busy" }, v1alpha1.NodeFailed, "busy"},
		"it runs without an intent": {deployed("Unknown", "IntentLost", "send it"), nil, v1alpha1.NodeFailed, "send it"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if c.change != nil {
				c.change(&c.is)
			}
			if state, message := c.is.NodeState(); state != c.state || message != c.message {
				t.Errorf("%s %q, want %s %q", state, message, c.state, c.message)
			}
		})
	}
}

// many are so many applications that fail with a message of the length.
func many(n, message int) []agent.ApplicationStatus {
	var all []agent.ApplicationStatus
	for i := range n {
		a := deployed("False", "Failed", "")
		a.UID = fmt.Sprintf("0f8fad5b-d9cb-469f-a165-%012d", i)
		a.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "namespace", Name: fmt.Sprintf("application-%d", i)}
		a.Revision, a.Error = strings.Repeat("r", 32), strings.Repeat("é", message)
		if i%2 == 0 {
			runs := deployed("True", "Deployed", "")
			runs.UID, runs.Application = a.UID, a.Application
			a = runs
		}
		all = append(all, a)
	}
	return all
}

// strangers are so many programs of which every third is Skep's.
func strangers(n int) []inventory.Program {
	var all []inventory.Program
	for i := range n {
		all = append(all, inventory.Program{ID: uint32(i + 1), Type: "CGroupSKB", Name: "sd_fw_egress", Managed: i%3 == 0,
			Holders: []inventory.Process{{PID: 1, Name: "systemd"}}})
	}
	return all
}

func TestAReportFitsAndItsCountsStayRight(t *testing.T) {
	for sentence, c := range map[string]struct {
		applications, message, programs int
		// What is left; -1 is some and not all.
		full, short, foreign int
		longest              int
	}{
		"nothing is left out of a little":    {10, 100, 30, 10, 0, 20, 100},
		"a hundred foreign programs at most": {2, 10, 300, 2, 0, 100, 10},
		"messages are of at most 1024":       {2, 5000, 0, 2, 0, 0, 1024},
		"what runs is told in short first":   {200, 10, 5, 100, 100, 3, 10},
		"then foreign programs go":           {26, 1000, 300, 13, 13, -1, 1000},
		"then words, all alike":              {100, 1000, 300, 50, 50, 0, -1},
		"then those that run":                {260, 1000, 300, 130, -1, 0, 0},
		"then those that fail":               {600, 1000, 300, -1, 0, 0, 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := facts{applications: many(c.applications, c.message), programs: strangers(c.programs), fare: func(string) string { return accepted }}
			s := f.status()
			if n := size(&s); n > v1alpha1.MaxBpfNodeBytes-reserve {
				t.Errorf("%d bytes", n)
			}
			want := v1alpha1.NodeCounts{Loaded: int32((c.applications + 1) / 2), Failed: int32(c.applications / 2),
				Programs: int32(c.programs), Unmanaged: int32(c.programs - (c.programs+2)/3),
				NotReported: int32(c.applications - len(s.Applications) - len(s.Loaded))}
			if diff := cmp.Diff(want, s.Counts); diff != "" {
				t.Error(diff)
			}
			longest, failed := 0, 0
			for _, a := range s.Applications {
				longest = max(longest, len([]rune(a.Message)))
				if a.State == v1alpha1.NodeFailed {
					failed++
				}
			}
			left := func(what string, have, want, most int) {
				if want < 0 && (have == 0 || have == most) || want >= 0 && have != want {
					t.Errorf("%s: %d, want %d", what, have, want)
				}
			}
			left("applications in full", len(s.Applications), c.full, c.applications)
			left("applications in short", len(s.Loaded), c.short, c.applications)
			left("foreign programs", len(s.Unmanaged), c.foreign, v1alpha1.MaxUnmanagedPrograms)
			left("the longest message", longest, c.longest, c.message)
			if c.full < 0 && failed != min(len(s.Applications), c.applications/2) {
				t.Errorf("%d of %d that failed are listed", failed, len(s.Applications))
			}
		})
	}
}

// TestSharesAreThoseOfNamespaces: each once, in the order of names, and of too many the fullest.
func TestSharesAreThoseOfNamespaces(t *testing.T) {
	var all []agent.ApplicationStatus
	for i := range 2 * 70 {
		a := deployed("True", "Deployed", "")
		a.UID = fmt.Sprint(i)
		a.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: fmt.Sprintf("team-%02d", i/2), Name: fmt.Sprint(i)}
		a.SharedTargets = &v1alpha1.NamespaceShare{Namespace: a.Application.Namespace, Programs: 1, ProgramsLimit: 4, TextPages: 2, TextPagesLimit: 64}
		switch i / 2 {
		case 67:
			a.SharedTargets.Programs = 2
		case 68:
			a.SharedTargets.TextPages = 40
		case 69:
			a.SharedTargets.LeftOut = 1
		}
		all = append(all, a)
	}
	listed := func(all []agent.ApplicationStatus) (names []string) {
		s := facts{applications: all, fare: func(string) string { return accepted }}.status()
		for _, share := range s.SharedTargets {
			names = append(names, share.Namespace)
		}
		return names
	}
	names := listed(all)
	want := []string{"team-60", "team-67", "team-68", "team-69"}
	if n := len(names); n != v1alpha1.MaxNamespaceShares || !slices.Equal(names[n-4:], want) || !slices.IsSorted(names) {
		t.Errorf("it lists %d: %v; want %d, %v last", n, names, v1alpha1.MaxNamespaceShares, want)
	}
	if names = listed(all[:4]); !slices.Equal(names, []string{"team-00", "team-01"}) {
		t.Errorf("it lists %v", names)
	}
	if names = listed(append(many(500, 1024), all...)); names != nil {
		t.Errorf("of more than fits, it lists %v", names)
	}
}

func TestWhatANodeIsWithoutIsToldWhileThereIsRoom(t *testing.T) {
	for n, told := range map[int]bool{10: true, 300: false} {
		f := facts{applications: many(n, 0), fare: func(string) string { return accepted }}
		for i := range f.applications {
			f.applications[i] = deployed("True", "Deployed", "")
			f.applications[i].UID = fmt.Sprintf("0f8fad5b-d9cb-469f-a165-%012d", i)
			f.applications[i].Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "namespace", Name: fmt.Sprintf("application-%d", i)}
			f.applications[i].Skipped = strings.Repeat("é", 2000)
		}
		s := f.status()
		if s.Counts.NotReported > 0 || len(s.Applications)+len(s.Loaded) != n || size(&s) > v1alpha1.MaxBpfNodeBytes-reserve {
			t.Errorf("%d applications: %d in full, %d in short, %d bytes", n, len(s.Applications), len(s.Loaded), size(&s))
		}
		if told != (len(s.Applications) == n && len([]rune(s.Applications[0].Skipped)) == maxMessage) {
			t.Errorf("%d applications: %d in full", n, len(s.Applications))
		}
	}
}

// fiveHundred is how many applications a report is to have room for.
const fiveHundred = 500

func TestFiveHundredApplicationsAreToldBesideAKernelThatHasAll(t *testing.T) {
	var profile v1alpha1.KernelProfile
	profile.Release, profile.Architecture, profile.BTF, profile.Lockdown = strings.Repeat("6", 40), "amd64", true, "confidentiality"
	profile.LSMs = []string{"capability", "landlock", "lockdown", "yama", "integrity", "apparmor", "bpf"}
	for _, h := range hook.All() {
		profile.Hooks = append(profile.Hooks, h.Name)
	}
	profile.ProgramTypes, profile.MapTypes = kernelprofile.Types()
	all := many(2*fiveHundred, 0)
	var run []agent.ApplicationStatus
	for i := range all {
		if i%2 == 0 {
			all[i].Version = 1763719501000
			run = append(run, all[i])
		}
	}
	// One that fails is told in full, and those that the API server has otherwise.
	run[1].Error = "R1 is scalar"
	fares := map[string]string{run[2].UID: overtaken, run[3].UID: ""}
	s := facts{applications: run, profile: profile, version: "v1.2.3", programs: strangers(300), fare: func(uid string) string {
		if fare, other := fares[uid]; other {
			return fare
		}
		return accepted
	}}.status()
	t.Logf("%d bytes, %d foreign programs", size(&s), len(s.Unmanaged))
	if len(s.Applications) != 3 || len(s.Loaded) != fiveHundred-3 || s.Counts.NotReported != 0 {
		t.Errorf("%d in full, %d in short, %d untold", len(s.Applications), len(s.Loaded), s.Counts.NotReported)
	}
	if want := v1alpha1.LoadedAs(run[0].UID, 1763719501000); len(s.Loaded) == 0 || s.Loaded[0] != want {
		t.Errorf("short form is not %q", want)
	}
}

func TestWhatNobodyCanNameIsNotReported(t *testing.T) {
	nameless := deployed("Unknown", "IntentLost", "send it")
	nameless.Application = v1alpha1.Identity{}
	if s := (facts{applications: []agent.ApplicationStatus{nameless}, fare: func(string) string { return "" }}).status(); len(s.Applications) != 0 {
		t.Errorf("%+v", s.Applications)
	}
}

func TestWhatTheAPIServerLostIsToldByItsOwnSerial(t *testing.T) {
	moved := deployed("True", "Attached", "")
	moved.Serial, moved.Version = 9, 7
	for fare, want := range map[string]int64{accepted: 7, notAtHand: 7, badSeal: 7, overtaken: 9, "": 9} {
		s := facts{applications: []agent.ApplicationStatus{moved}, fare: func(string) string { return fare }}.status()
		if len(s.Applications) != 1 || s.Applications[0].Serial != want {
			t.Errorf("%q: %+v, want serial %d", fare, s.Applications, want)
		}
	}
}

func TestATombstoneIsAcknowledgedAsLongAsItIsThere(t *testing.T) {
	gone := deployed("False", "Unloaded", "")
	gone.Tombstone, gone.Revision = true, ""
	for fare, want := range map[string]int{accepted: 1, badSeal: 1, "": 0} {
		s := facts{applications: []agent.ApplicationStatus{gone}, fare: func(string) string { return fare }}.status()
		if len(s.Applications) != want || want == 1 && (s.Applications[0].State != v1alpha1.NodeRemoved || s.Applications[0].Serial != 7) {
			t.Errorf("%q: %+v", fare, s.Applications)
		}
	}
}

func TestWhatWasUnloadedTakesNoRoomFromWhatRuns(t *testing.T) {
	applications := many(800, 0)
	for i := range applications {
		if i%2 == 1 {
			applications[i] = deployed("False", "Unloaded", "")
			applications[i].UID, applications[i].Tombstone, applications[i].Revision = fmt.Sprintf("%036d", i), true, ""
		}
	}
	s := facts{applications: applications, fare: func(string) string { return accepted }}.status()
	if len(s.Loaded) != 400 || s.Counts.NotReported != 0 || len(s.Applications) == 400 {
		t.Errorf("%d of 400 that run are told, %d untold; of what was unloaded %d", len(s.Loaded), s.Counts.NotReported, len(s.Applications))
	}
}

func TestMergePatchSaysWhatChangedAndNoMore(t *testing.T) {
	for sentence, c := range map[string]struct{ from, to, patch string }{
		"nothing changed":            {`{"a":{"b":1},"c":[1]}`, `{"c":[1],"a":{"b":1}}`, `null`},
		"a value changed":            {`{"a":{"b":1,"x":2}}`, `{"a":{"b":2,"x":2}}`, `{"a":{"b":2}}`},
		"a value is new":             {`{}`, `{"a":{"b":1}}`, `{"a":{"b":1}}`},
		"a value is gone":            {`{"a":{"b":1,"x":2},"y":1}`, `{"a":{"x":2}}`, `{"a":{"b":null},"y":null}`},
		"a list is replaced in full": {`{"a":[1,2]}`, `{"a":[2]}`, `{"a":[2]}`},
		"an object becomes a value":  {`{"a":{"b":1}}`, `{"a":1}`, `{"a":1}`},
	} {
		t.Run(sentence, func(t *testing.T) {
			patch, err := mergePatch(json.RawMessage(c.from), json.RawMessage(c.to))
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(patch)
			if err != nil {
				t.Fatal(err)
			}
			if string(body) != c.patch {
				t.Errorf("patch %s, want %s", body, c.patch)
			}
		})
	}
}
