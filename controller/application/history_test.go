package application

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// history is that of the application in short.
func (f *fleet) history() string {
	var lines []string
	for _, v := range f.app.Status.History {
		line := fmt.Sprint(v.Version, " ", v.Result)
		if v.RolledBackTo > 0 {
			line += fmt.Sprint(" to ", v.RolledBackTo)
		}
		if len(v.Changes) > 0 {
			line += " (" + strings.Join(v.Changes, ", ") + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// counting is the application with a program that has a variable.
func (f *fleet) counting(value string) {
	f.edit(func(s *v1alpha1.BpfApplicationSpec) {
		s.Bytecode.Image = f.versions[0]
		s.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{{Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}}}}
		s.Variables = map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(value)}}
	})
}

// loads has all nodes load what comes to them, through all steps.
func (f *fleet) loads() {
	f.answers(v1alpha1.NodeLoaded)
	f.answers(v1alpha1.NodeLoaded)
}

// TestAChangedVariableLeavesATrace is about a version whose digest and reason are those of the version before.
func TestAChangedVariableLeavesATrace(t *testing.T) {
	const secret = "4242424"
	f := newFleet(t)
	f.versions[0], _ = f.Push("count:v1", programs.Object("xdp_count"), "team-a")
	f.counting("1")
	f.loads()
	f.told()
	before := condition(f.app, v1alpha1.ConditionReady)

	f.counting(secret)
	f.loads()
	if got, want := f.history(), "3 Deployed (variable sampling); 2 Deployed (image digest, variable sampling, program count_packets, "+
		"program tracepoint_count); 1 Allowed"; got != want {
		t.Errorf("history is %q, want %q", got, want)
	}
	one, live := f.app.Status.History[0], f.intent(f.app)
	if one.SignedBy != "team-a" || one.Digest != f.app.Status.Digest || one.Serial != live.VersionSerial() || one.Generation != f.app.Generation ||
		one.Policies == "" || one.Policies != live.PolicyRevision {
		t.Errorf("it records %+v", one)
	}
	told := f.told()
	want := "Normal Updated version 3: variable sampling changed; image digest same; loaded on 5 of 5 nodes; " +
		"node-0: words of the kernel (and 4 more)\n"
	if strings.Count(told, want) != 1 ||
		strings.Count(told, " Updated ") != 1 {
		t.Errorf("events are\n%swant one\n%s", told, want)
	}
	if ready := condition(f.app, v1alpha1.ConditionReady); !strings.HasSuffix(ready.Message, "; version 3") || ready.Message == before.Message {
		t.Errorf("Ready is %+v, was %+v", ready, before)
	}
	body, err := json.Marshal(f.app.Status)
	if err != nil || strings.Contains(string(body)+told, secret) {
		t.Errorf("a value is shown: %v\n%s\n%s", err, body, told)
	}

	version := f.app.ResourceVersion
	f.loads()
	if f.app.ResourceVersion != version || f.told() != "" {
		t.Error("at rest it is written, or announced, again")
	}
}

func TestHistoryTellsWhatBecameOfVersions(t *testing.T) {
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		want string
	}{
		"a new version":       {func(f *fleet) { f.version(1) }, "2 Allowed (image digest); 1 Deployed"},
		"its node fails":      {func(f *fleet) { f.version(1); f.answers(v1alpha1.NodeFailed) }, "2 Failed (image digest); 1 Deployed"},
		"it is undone":        {func(f *fleet) { f.version(1); f.undo(); f.loads() }, "3 Deployed to 1 (image digest); 2 RolledBack (image digest); 1 Deployed"},
		"its signer is bad":   {func(f *fleet) { f.everywhere(1); f.revoke("team-b") }, "2 Unloaded (image digest); 1 Deployed"},
		"it is denied":        {func(f *fleet) { f.version(1); f.loads(); f.unsigned(3) }, "3 Denied (image digest); 2 Deployed (image digest); 1 Deployed"},
		"two are denied":      {func(f *fleet) { f.unsigned(3); f.unsigned(4) }, "3 Denied (image digest); 2 Denied (image digest); 1 Deployed"},
		"it overtakes one":    {func(f *fleet) { f.version(1); f.everywhere(2) }, "3 Deployed (image digest); 2 Allowed (image digest); 1 Deployed"},
		"no node is chosen":   {func(f *fleet) { f.nowhere() }, "2 Allowed (node selector); 1 Deployed"},
		"only steps change":   {func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true }) }, "1 Deployed"},
		"somebody edited it":  {func(f *fleet) { f.forge() }, "1 Deployed"},
		"the replica is anew": {func(f *fleet) { f.version(1); f.remembered.reset(); f.loads() }, "2 Deployed (image digest); 1 Deployed"},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			c.do(f)
			if got := f.history(); got != c.want {
				t.Errorf("history is %q, want %q", got, c.want)
			}
		})
	}
}

// unsigned is an edit to an image without a signature.
func (f *fleet) unsigned(n int) {
	ref := f.build(n)
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = ref })
}

// forge writes another digest into the record of the live version.
func (f *fleet) forge() {
	f.app.Status.History[0].Digest = "sha256:evil"
	if err := f.api.Status().Update(f.t.Context(), f.app); err != nil {
		f.t.Fatal(err)
	}
	f.settles()
	if got := f.app.Status.History[0].Digest; got != f.intent(f.app).ImageDigest {
		f.t.Errorf("its digest is %s", got)
	}
}

// TestTheHistorySurvivesTheDelayOfItsStatus has a status wait for nodes: what a version changed is not known from the intent by then.
func TestTheHistorySurvivesTheDelayOfItsStatus(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.version(1)
	f.ReadyWithin = 1 << 40
	f.version(2)
	if got, want := f.history(), "2 Allowed (image digest); 1 Deployed"; got != want {
		t.Fatalf("history is %q, want %q", got, want)
	}
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Programs[0].Optional = true })
	f.ReadyWithin = 0
	f.settles()
	if got := f.history(); !strings.HasPrefix(got, "3 Allowed (program tracepoint_count); 2 Allowed (image digest)") {
		t.Errorf("history is %q", got)
	}
}

func TestEachDecisionIsLoggedOnce(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	f := newFleet(t)
	log := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, args)
	}, funcr.Options{})
	ctx := ctrl.LoggerInto(t.Context(), log)
	turns := func() {
		for range 3 {
			_, _ = f.Reconcile(ctx, f.app.Identity())
		}
		if err := f.api.Get(ctx, client.ObjectKeyFromObject(f.app), f.app); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(change func(*v1alpha1.BpfApplicationSpec)) {
		f.change(f.app, func() { change(&f.app.Spec); f.app.Generation++ })
		turns()
	}
	edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = f.versions[1] })
	for range 2 {
		for _, name := range f.nodes {
			if f.intent(f.app).Reaches(name) {
				f.answer(name, v1alpha1.NodeLoaded)
			}
		}
		turns()
	}
	ref := f.build(5)
	edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = ref })
	f.refresh()
	turns()
	for _, want := range []string{"application allowed", "application deployed", "application denied", "sealed intent"} {
		n := 0
		for _, line := range lines {
			if !strings.Contains(line, fmt.Sprintf("%q", want)) {
				continue
			}
			n++
			keys := []string{`"application"="app"`, `"digest"="sha256:`, `"reason"=`, `"generation"=`}
			if i := slices.IndexFunc(keys, func(k string) bool { return !strings.Contains(line, k) }); i >= 0 {
				t.Errorf("%s lacks %s", line, keys[i])
			}
		}
		if most := map[string]int{"sealed intent": 2}[want] + 1; n == 0 || n > most {
			t.Errorf("%q is logged %d times:\n%s", want, n, strings.Join(lines, "\n"))
		}
	}
}

// nowhere is an edit by which no node is chosen any more; people say that it should be rolled out nevertheless.
func (f *fleet) nowhere() {
	f.edit(func(s *v1alpha1.BpfApplicationSpec) {
		s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "none"}}
	})
	f.resume()
}
