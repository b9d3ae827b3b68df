package application

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// fleet is five nodes and an application of three versions, each signed by a team
// of its own, of which the first is everywhere.
type fleet struct {
	*bench
	app      *v1alpha1.ClusterBpfApplication
	versions []string
	nodes    []string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	b := newBench(t)
	b.create(b.Signer("team-b"), b.Signer("team-c"))
	b.refresh()
	f := &fleet{bench: b}
	for i, team := range []string{"team-a", "team-b", "team-c"} {
		f.versions = append(f.versions, f.build(i, team))
	}
	f.app = defined("app", f.versions[0])
	b.create(f.app)
	for i := range 5 {
		f.nodes = append(f.nodes, fmt.Sprint("node-", i))
		b.node(f.nodes[i])
	}
	f.settles()
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Rollout = nil })
	return f
}

// build pushes an object that no other number has.
func (f *fleet) build(n int, signers ...string) (ref string) {
	ref, _ = f.Push(fmt.Sprintf("app:v%d", n+1), append(slices.Clone(programs.Object("tracepoint_count")), make([]byte, n)...), signers...)
	return ref
}

// settles has the application looked at until nothing follows of itself, and
// returns what is sealed.
func (f *fleet) settles() *intent.Payload {
	f.t.Helper()
	f.clock = f.clock.Add(time.Second)
	for range 3 {
		_, _ = f.Reconcile(f.t.Context(), f.app.Identity())
	}
	if err := f.api.Get(f.t.Context(), client.ObjectKeyFromObject(f.app), f.app); err != nil {
		f.t.Fatal(err)
	}
	return f.intent(f.app)
}

func (f *fleet) edit(change func(*v1alpha1.BpfApplicationSpec)) *intent.Payload {
	f.t.Helper()
	f.change(f.app, func() { change(&f.app.Spec); f.app.Generation++ })
	return f.settles()
}

func (f *fleet) version(n int) *intent.Payload {
	f.t.Helper()
	return f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = f.versions[n] })
}

// answers has the nodes that a version has come to say how they do: they run it, or
// the one before.
func (f *fleet) answers(state v1alpha1.NodeState) *intent.Payload {
	f.t.Helper()
	p := f.intent(f.app)
	for _, name := range f.nodes {
		if p.Reaches(name) {
			f.answer(name, state)
		}
	}
	return f.settles()
}

// answer has one node say how it does with the newest version.
func (f *fleet) answer(name string, state v1alpha1.NodeState) {
	f.t.Helper()
	said, p := f.says(f.app, state), f.intent(f.app)
	said.Message = "words of the kernel"
	if state == v1alpha1.NodeLoaded {
		said.Revision = f.revision(p)
	} else if p.Previous != nil {
		said.Revision = f.revision(p.Previous)
	}
	f.nodeSays(name, said)
}

// nodeSays is all that a node says of applications.
func (f *fleet) nodeSays(name string, said ...v1alpha1.NodeApplication) {
	f.t.Helper()
	n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	f.change(n, func() { n.Status.Applications = said })
}

// revision is what nodes call a version.
func (f *fleet) revision(v *intent.Payload) string {
	f.t.Helper()
	envelope, err := f.Intents.Keys().Sealer.Seal(v.Alone())
	if err != nil {
		f.t.Fatal(err)
	}
	o, err := f.Intents.Keys().Trust.Open(envelope)
	if err != nil {
		f.t.Fatal(err)
	}
	return o.Revision()
}

// everywhere brings a version to every node.
func (f *fleet) everywhere(n int) *intent.Payload {
	f.t.Helper()
	f.version(n)
	f.answers(v1alpha1.NodeLoaded)
	p := f.answers(v1alpha1.NodeLoaded)
	if p.Image != f.versions[n] || p.Rollout != nil {
		f.t.Fatalf("version %d is not everywhere: %s", n, f.say(p))
	}
	return p
}

func (f *fleet) revoke(team string) *intent.Payload {
	f.t.Helper()
	signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: team}}
	f.change(signer, func() { signer.Spec.Revoked = true })
	f.refresh()
	return f.settles()
}

func (f *fleet) undo() *intent.Payload {
	f.t.Helper()
	f.change(f.app, func() {
		metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationUndo, strconv.FormatInt(f.app.Generation, 10))
	})
	return f.settles()
}

// resume does as skep rollout resume does.
func (f *fleet) resume() *intent.Payload {
	f.t.Helper()
	f.change(f.app, func() {
		delete(f.app.Annotations, v1alpha1.AnnotationUndo)
		metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationResume, strconv.FormatInt(f.app.Status.Serial, 10))
	})
	return f.settles()
}

// reaches counts the nodes that are to have the sealed version.
func (f *fleet) reaches(p *intent.Payload) (n int) {
	for _, name := range f.nodes {
		if p.Reaches(name) {
			n++
		}
	}
	return n
}

// say tells an intent by versions, as it is compared: the own one and how many
// nodes it is for, the one before, and the one withdrawn.
func (f *fleet) say(p *intent.Payload) string {
	if p.Tombstone {
		return "gone"
	}
	of := func(v *intent.Payload) string { return fmt.Sprint("v", slices.Index(f.versions, v.Image)+1) }
	said := fmt.Sprintf("%s on %d", of(p), f.reaches(p))
	if p.Previous != nil {
		said += ", before " + of(p.Previous)
	}
	for i := range p.Withdrawn {
		said += ", withdrawn " + of(&p.Withdrawn[i])
	}
	return said
}

// state is what the status says of the rollout.
func (f *fleet) state() v1alpha1.RolloutStatus {
	if f.app.Status.Rollout == nil {
		return v1alpha1.RolloutStatus{}
	}
	return *f.app.Status.Rollout
}

func TestWhatMayRunNoMoreIsNamedNoMore(t *testing.T) {
	for sentence, c := range map[string]struct {
		do     func(*fleet)
		revoke string
		want   string
	}{
		"before what is on its way": {func(f *fleet) { f.version(1) }, "team-a", "v2 on 1"},
		"before what is everywhere": {func(f *fleet) { f.everywhere(1) }, "team-a", "v2 on 5"},
		"undone":                    {func(f *fleet) { f.version(1); f.undo() }, "team-b", "v1 on 5"},
		"reverted":                  {func(f *fleet) { f.version(1); f.version(0) }, "team-b", "v1 on 5"},
		"while the application is suspended": {func(f *fleet) {
			f.version(1)
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
		}, "team-a", "v2 on 1"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			if before := f.intent(f.app); len(before.Beside()) != 1 {
				t.Fatalf("before: %s", f.say(before))
			}
			if p := f.revoke(c.revoke); f.say(p) != c.want {
				t.Errorf("%s, want %s", f.say(p), c.want)
			}
		})
	}
}

func TestARevokedVersionTakesNothingElseAlong(t *testing.T) {
	for sentence, prepare := range map[string]func(*fleet){
		"the version before would be admitted": func(*fleet) {},
		"a policy keeps it that would not admit it": func(f *fleet) {
			f.create(&v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p", Generation: 1},
				Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: v1alpha1.BpfPolicySpec{
					Rego: "package skep.policy\n\ndeny contains \"no owner\" if not input.application.metadata.labels.owner", Running: v1alpha1.RunningKeep}}})
			f.refresh()
			f.settles()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.version(1)
			f.answers(v1alpha1.NodeFailed)
			prepare(f)
			p := f.revoke("team-b")
			held := f.reaches(p) == 0 && p.Previous != nil && p.Previous.Image == f.versions[0]
			if whole := f.reaches(p) == 5 && p.Image == f.versions[0]; p.Tombstone || !whole && !held {
				t.Fatalf("%s", f.say(p))
			}
			if again := f.settles(); again.Serial != p.Serial {
				t.Errorf("it is sealed again and again: %s", f.say(again))
			}
		})
	}
}

func TestAnUndoBringsBackWhatWasProven(t *testing.T) {
	unsigned := func(f *fleet) {
		f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = f.build(9) })
	}
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		want string
	}{
		"of what is on its way":         {func(f *fleet) { f.version(1) }, "v1 on 5, withdrawn v2"},
		"of what is everywhere":         {func(f *fleet) { f.everywhere(1) }, "v1 on 5, withdrawn v2"},
		"of what was never sealed":      {func(f *fleet) { f.everywhere(1); unsigned(f) }, "v2 on 5, before v1"},
		"of what follows an undone one": {func(f *fleet) { f.version(1); f.undo(); unsigned(f) }, "v1 on 5, withdrawn v2"},
		"of a third on its way":         {func(f *fleet) { f.everywhere(1); f.version(2) }, "v2 on 5, withdrawn v3"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			if p := f.undo(); f.say(p) != c.want || f.state().State != v1alpha1.RolloutRolledBack {
				t.Errorf("%s, want %s; %+v", f.say(p), c.want, f.state())
			}
		})
	}
}

func TestAnUndoThatCannotBeHoldsTheRollout(t *testing.T) {
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		says string
		// then is what is sealed once it is resumed.
		then string
	}{
		"the version before is revoked": {func(f *fleet) { f.version(1); f.revoke("team-a") }, "no version before", "v2 on 5"},
		"it was reverted already": {func(f *fleet) {
			f.version(1)
			f.answers(v1alpha1.NodeFailed)
			f.version(0)
		}, "no version before", "v1 on 5, withdrawn v2"},
		"a policy denies the version before": {func(f *fleet) {
			f.version(1)
			f.create(&v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p", Generation: 1},
				Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: v1alpha1.BpfPolicySpec{
					Rego: "package skep.policy\n\ndeny contains \"not by team-a\" if input.signatures[_].signer == \"team-a\"", Running: v1alpha1.RunningKeep}}})
			f.refresh()
			f.settles()
		}, "is not allowed any more", "v2 on 5, before v1"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			before := f.intent(f.app)
			f.undo()
			f.answers(v1alpha1.NodeLoaded)
			p := f.settles()
			if p.Serial != before.Serial || f.state().State != v1alpha1.RolloutStopped || !strings.Contains(f.state().Message, c.says) {
				t.Fatalf("%s, before %s; %+v", f.say(p), f.say(before), f.state())
			}
			if again := f.reconcile(f.app.Identity()); again.RequeueAfter > soon {
				t.Errorf("it is looked at again after %s", again.RequeueAfter)
			}
			if p := f.resume(); f.say(p) != c.then || f.state().State == v1alpha1.RolloutStopped {
				t.Errorf("resumed: %s, want %s; %+v", f.say(p), c.then, f.state())
			}
		})
	}
}

// TestALostStepUnloadsNothing has an API server lose the steps of a rollout that
// was done: nodes tell how new the one is that they have.
func TestALostStepUnloadsNothing(t *testing.T) {
	for sentence, steps := range map[string][]string{"the last": {"1"}, "several": {"1", "50%"}} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.app = defined("second", f.versions[0])
			f.app.Spec.Rollout = &v1alpha1.Rollout{}
			for _, s := range steps {
				f.app.Spec.Rollout.Steps = append(f.app.Spec.Rollout.Steps, intstr.Parse(s))
			}
			f.create(f.app)
			var old, now v1alpha1.BpfIntent
			f.settles()
			key := client.ObjectKey{Name: string(f.app.UID)}
			if err := f.api.Get(t.Context(), key, &old); err != nil {
				t.Fatal(err)
			}
			for range steps {
				f.answers(v1alpha1.NodeLoaded)
			}
			last := f.answers(v1alpha1.NodeLoaded)
			if last.Rollout != nil {
				t.Fatalf("it is not done: %s", f.say(last))
			}
			if err := f.api.Get(t.Context(), key, &now); err != nil {
				t.Fatal(err)
			}
			now.Spec = old.Spec
			if err := f.api.Update(t.Context(), &now); err != nil {
				t.Fatal(err)
			}
			for _, name := range f.nodes {
				n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
				f.change(n, func() { n.Status.Applications[0].Serial = last.Serial })
			}
			f.clock = f.clock.Add(time.Hour)
			if p := f.settles(); p.Serial <= last.Serial || f.reaches(p) != 5 {
				t.Errorf("%s under serial %d, and nodes have seen %d", f.say(p), p.Serial, last.Serial)
			}
		})
	}
}

func TestANodeWithoutAnAgentIsNotWaitedFor(t *testing.T) {
	for sentence, c := range map[string]struct {
		// away is since when, by the time of the new version; nil where nobody knows.
		away *time.Duration
		done bool
	}{
		"it went before":    {new(-time.Hour), true},
		"nobody knows when": {nil, true},
		"it went since":     {new(time.Millisecond), false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			uid := string(f.app.UID)
			slices.SortFunc(f.nodes, func(a, b string) int { return strings.Compare(intent.NodeHash(uid, a), intent.NodeHash(uid, b)) })
			p := f.version(1)
			f.Agents = func(context.Context) (runs map[string]bool, gone map[string]time.Time, err error) {
				runs, gone = map[string]bool{}, map[string]time.Time{}
				for _, n := range f.nodes[1:] {
					runs[n] = true
				}
				if c.away != nil {
					gone[f.nodes[0]] = time.UnixMilli(p.Serial).Add(*c.away)
				}
				return runs, gone, nil
			}
			f.clock = f.clock.Add(time.Hour)
			f.settles()
			if p := f.answers(v1alpha1.NodeLoaded); (p.Rollout == nil) != c.done {
				t.Errorf("%s; %+v", f.say(p), f.state())
			}
		})
	}
}

func TestANodeThatCrashedIsWaitedFor(t *testing.T) {
	for sentence, c := range map[string]struct {
		// node and agent are since when, by the time of the new version; nil where
		// nobody knows.
		node, agent *time.Duration
		done        bool
	}{
		"its kubelet fell silent since":          {new(time.Minute), nil, false},
		"its kubelet fell silent before":         {new(-time.Hour), nil, true},
		"its agent went since, and it is silent": {nil, new(time.Millisecond), false},
		"it is silent for nobody knows how long": {nil, nil, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			uid := string(f.app.UID)
			slices.SortFunc(f.nodes, func(a, b string) int { return strings.Compare(intent.NodeHash(uid, a), intent.NodeHash(uid, b)) })
			p := f.version(1)
			at := func(d time.Duration) time.Time { return time.UnixMilli(p.Serial).Add(d) }
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.nodes[0]}}
			silent := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}
			if c.node != nil {
				silent.LastTransitionTime = metav1.NewTime(at(*c.node))
			}
			n.Status.Conditions = []corev1.NodeCondition{silent}
			if err := f.api.Status().Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			f.Agents = func(context.Context) (runs map[string]bool, gone map[string]time.Time, err error) {
				runs, gone = map[string]bool{}, map[string]time.Time{}
				for _, n := range f.nodes[1:] {
					runs[n] = true
				}
				if c.agent != nil {
					gone[f.nodes[0]] = at(*c.agent)
				}
				return runs, gone, nil
			}
			f.clock = f.clock.Add(time.Hour)
			f.settles()
			if p := f.answers(v1alpha1.NodeLoaded); (p.Rollout == nil) != c.done {
				t.Errorf("%s; %+v", f.say(p), f.state())
			}
		})
	}
}

func TestAVersionThatNoNodeHasAPlaceForTakesFewWrites(t *testing.T) {
	f := newFleet(t)
	for i := range 35 {
		name := fmt.Sprint("more-", i)
		f.node(name)
		f.nodes = append(f.nodes, name)
	}
	f.app = defined("second", f.versions[0])
	f.app.Spec.Rollout = nil
	f.create(f.app)
	p := f.settles()
	writes := map[int64]bool{p.Serial: true}
	for range 20 {
		p = f.answers(v1alpha1.NodeWaiting)
		writes[p.Serial] = true
	}
	if p.Rollout != nil || len(writes) > 9 {
		t.Errorf("%d writes for 40 nodes, the last %s", len(writes), f.say(p))
	}
}

func TestALostIntentRunsOnUntilItsSuccessorIsJudged(t *testing.T) {
	b := newBench(t)
	ref, _ := b.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := defined("app", ref)
	b.node("one", v1alpha1.NodeApplication{
		Kind: v1alpha1.KindClusterBpfApplication, Name: "app", UID: "lost", Serial: 7, Revision: "r", State: v1alpha1.NodeFailed,
	})
	b.create(app)
	unloaded := func() bool {
		var o v1alpha1.BpfIntent
		return b.api.Get(t.Context(), client.ObjectKey{Name: "lost"}, &o) == nil && o.Spec.Tombstone
	}
	b.Down.Store(true)
	if _, err := b.Reconcile(t.Context(), app.Identity()); err == nil || unloaded() {
		t.Errorf("while the registry is away: %v, and unloaded: %v", err, unloaded())
	}
	b.Down.Store(false)
	b.clock = b.clock.Add(time.Minute)
	b.reconcile(app.Identity())
	if !unloaded() || b.intent(app) == nil {
		t.Errorf("once it is evaluated: unloaded: %v, sealed: %+v", unloaded(), b.intent(app))
	}
}

func TestASelectorThatChoosesNoNodeStops(t *testing.T) {
	f := newFleet(t)
	p := f.edit(func(s *v1alpha1.BpfApplicationSpec) {
		s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rloe": "edge"}}
	})
	if f.reaches(p) != 0 || p.Previous == nil || f.state().State != v1alpha1.RolloutNoMatchingNodes || !strings.Contains(f.state().Message, "chooses no node") {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
	if p := f.resume(); p.Rollout != nil {
		t.Errorf("resumed: %s", f.say(p))
	}
}

// TestWhatComesBackUnloadsNothingByItself has a version fixed that was sealed with a
// selector that chooses no node.
func TestWhatComesBackUnloadsNothingByItself(t *testing.T) {
	for sentence, c := range map[string]struct {
		bring func(*fleet) *intent.Payload
		then  string
	}{
		"it is reverted": {func(f *fleet) *intent.Payload {
			return f.edit(func(s *v1alpha1.BpfApplicationSpec) { choosesNobody(s); s.Bytecode.Image = f.versions[0] })
		}, "v1 on 5, withdrawn v2"},
		"it is undone": {(*fleet).undo, "v2 on 5, before v1"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.app = defined("second", f.versions[0])
			choosesNobody(&f.app.Spec)
			f.create(f.app)
			f.settles()
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.NodeSelector, s.Bytecode.Image = nil, f.versions[1] })
			f.answers(v1alpha1.NodeLoaded)
			if p := f.answers(v1alpha1.NodeLoaded); f.say(p) != "v2 on 5, before v1" {
				t.Fatalf("before: %s", f.say(p))
			}
			if p := c.bring(f); f.say(p) != "v2 on 5, before v1" || !strings.Contains(f.state().Message, "chooses no node") {
				t.Fatalf("%s; %+v", f.say(p), f.state())
			}
			if p := f.resume(); f.say(p) != c.then {
				t.Errorf("resumed: %s, want %s", f.say(p), c.then)
			}
		})
	}
}

func TestWhatCannotBeSealedIsTold(t *testing.T) {
	f := newFleet(t)
	large := func(seed string) func(*v1alpha1.BpfApplicationSpec) {
		one := metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpNotIn}
		for i := range 8000 {
			one.Values = append(one.Values, fmt.Sprintf("%s%050d", seed, i))
		}
		return func(s *v1alpha1.BpfApplicationSpec) {
			s.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{one}}
		}
	}
	f.edit(large("a"))
	f.answers(v1alpha1.NodeLoaded)
	before := f.answers(v1alpha1.NodeLoaded)
	p := f.edit(large("b"))
	ready := condition(f.app, v1alpha1.ConditionReady)
	if p.Serial != before.Serial || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, "make the definition smaller") ||
		!strings.Contains(ready.Message, "of them of other versions that nodes may still run") || f.app.Status.ObservedGeneration != f.app.Generation {
		t.Errorf("sealed %d over %d; %+v", p.Serial, before.Serial, ready)
	}
}

// denies is a policy against what teams signed.
func denies(running v1alpha1.RunningMode, teams ...string) *v1alpha1.ClusterBpfPolicy {
	rego := "package skep.policy\n"
	for _, team := range teams {
		rego += fmt.Sprintf("\ndeny contains %q if input.signatures[_].signer == %q\n", "not by "+team, team)
	}
	return &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "denies", UID: "denies", Generation: 1}, Spec: v1alpha1.ClusterBpfPolicySpec{
		BpfPolicySpec: v1alpha1.BpfPolicySpec{Rego: rego, Running: running},
	}}
}

// notSigned denies what nobody signed, as the profile does whose place a policy
// takes.
const notSigned = "\ndeny contains \"not signed\" if count(input.signatures) == 0\n"

func TestWhatWasBroughtBackStays(t *testing.T) {
	f := newFleet(t)
	f.version(1)
	f.create(denies(v1alpha1.RunningUnload, "team-b"))
	f.refresh()
	for range 3 {
		if p := f.settles(); f.say(p) != "v1 on 5" {
			t.Fatalf("a policy unloads the new version alone: %s (%s)", f.say(p), p.Reason)
		}
	}
}

func TestWhatPeopleUndidIsNotSealedMeanwhile(t *testing.T) {
	f := newFleet(t)
	policy := denies(v1alpha1.RunningKeep, "team-a", "team-b")
	f.create(policy)
	f.refresh()
	f.version(1)
	before := f.undo()
	f.change(policy, func() { policy.Spec = denies(v1alpha1.RunningKeep, "team-a").Spec; policy.Generation++ })
	f.refresh()
	if p := f.settles(); p.Serial != before.Serial || f.state().State != v1alpha1.RolloutStopped {
		t.Errorf("once the version is allowed that was undone: %s, before %s; %+v", f.say(p), f.say(before), f.state())
	}
	if p := f.resume(); f.say(p) != "v2 on 1, before v1" {
		t.Errorf("resumed: %s", f.say(p))
	}
}

// TestALostIntentIsNotSealedOverANewerOneToForsakeAVersion has an API server lose
// the last step of a suspended application, and a signer revoked then.
func TestALostIntentIsNotSealedOverANewerOneToForsakeAVersion(t *testing.T) {
	f := newFleet(t)
	var old, now v1alpha1.BpfIntent
	f.version(1)
	key := client.ObjectKey{Name: string(f.app.UID)}
	if err := f.api.Get(t.Context(), key, &old); err != nil {
		t.Fatal(err)
	}
	last := f.answers(v1alpha1.NodeLoaded)
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
	if err := f.api.Get(t.Context(), key, &now); err != nil {
		t.Fatal(err)
	}
	now.Spec = old.Spec
	if err := f.api.Update(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	for _, name := range f.nodes {
		said := f.says(f.app, v1alpha1.NodeLoaded)
		said.Revision, said.Serial = "r", last.Serial
		n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.change(n, func() { n.Status.Applications = []v1alpha1.NodeApplication{said} })
	}
	f.clock = f.clock.Add(time.Hour)
	f.settles()
	if p := f.revoke("team-a"); p.Serial > last.Serial && f.reaches(p) != 5 {
		t.Errorf("%s under serial %d, and nodes run the second by %d", f.say(p), p.Serial, last.Serial)
	}
}

// TestALostIntentOfASelectorThatChoosesNoNodeUnloadsNothing has the seals of what
// runs hold no more, as after Skep was deleted and installed again.
func TestALostIntentOfASelectorThatChoosesNoNodeUnloadsNothing(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.Intents.Keys = newRing(t).Keys
	choosing := &metav1.LabelSelector{MatchLabels: map[string]string{"rloe": "edge"}}
	f.change(f.app, func() { f.app.Spec.NodeSelector = choosing; f.app.Generation++ })
	read := func() *intent.Payload {
		f.clock = f.clock.Add(time.Second)
		for range 3 {
			_, _ = f.Reconcile(t.Context(), f.app.Identity())
		}
		var o v1alpha1.BpfIntent
		if err := f.api.Get(t.Context(), client.ObjectKey{Name: string(f.app.UID)}, &o); err != nil {
			t.Fatal(err)
		}
		if err := f.api.Get(t.Context(), client.ObjectKeyFromObject(f.app), f.app); err != nil {
			t.Fatal(err)
		}
		s, _ := f.Intents.Open(&o)
		return s.Payload
	}
	if p := read(); p != nil || f.state().State != v1alpha1.RolloutNoMatchingNodes || !strings.Contains(f.state().Message, "chooses no node") {
		t.Errorf("sealed %+v; %+v", p, f.state())
	}
	f.change(f.app, func() {
		metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationResume, strconv.FormatInt(f.app.Status.Serial, 10))
	})
	if p := read(); p == nil || p.Rollout != nil {
		t.Errorf("resumed: %+v", p)
	}
}

// TestALostIntentIsSealedOnceItHasNodesAgain has an API server lose an intent while
// no node has the label of its selector.
func TestALostIntentIsSealedOnceItHasNodesAgain(t *testing.T) {
	f := newFleet(t)
	label := func(labels map[string]string) {
		for _, name := range f.nodes {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			f.change(n, func() { n.Labels = labels })
		}
	}
	label(map[string]string{"role": "edge"})
	f.app = defined("second", f.versions[0])
	f.app.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}}
	f.create(f.app)
	f.settles()
	f.answers(v1alpha1.NodeLoaded)
	f.answers(v1alpha1.NodeLoaded)
	label(nil)
	f.lose()
	if p := f.settles(); p != nil || f.state().State != v1alpha1.RolloutNoMatchingNodes {
		t.Fatalf("without the labels: %+v; %+v", p, f.state())
	}
	label(map[string]string{"role": "edge"})
	if p := f.settles(); p == nil || f.say(p) != "v1 on 5" {
		t.Errorf("with the labels: %+v; %+v", p, f.state())
	}
}

func TestWhatRunsOnStaysNamed(t *testing.T) {
	fails := func(f *fleet, n int) {
		for _, name := range f.nodes[:3] {
			f.answer(name, v1alpha1.NodeFailed)
		}
		for _, name := range f.nodes[3:] {
			f.answer(name, v1alpha1.NodeLoaded)
		}
		if p := f.version(n); len(p.Beside()) == 0 {
			f.t.Fatalf("before: %s", f.say(p))
		}
	}
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		want string
	}{
		"where a fix follows what failed on some":      {func(f *fleet) { f.everywhere(1); fails(f, 2) }, "v3 on 1, before v2, withdrawn v1"},
		"where what failed on some is reverted":        {func(f *fleet) { f.everywhere(1); fails(f, 0) }, "v1 on 5, withdrawn v2"},
		"where what follows one on its way is undone":  {func(f *fleet) { f.everywhere(1); fails(f, 2); f.undo() }, "v2 on 5, withdrawn v3, withdrawn v1"},
		"where what follows one on its way is revoked": {func(f *fleet) { f.everywhere(1); fails(f, 2); f.revoke("team-c") }, "v2 on 5, withdrawn v1"},
		"where the version before is revoked":          {func(f *fleet) { f.everywhere(1); fails(f, 2); f.revoke("team-b") }, "v3 on 1, withdrawn v1"},
		"where a third one overtakes a second":         {func(f *fleet) { f.version(1); f.version(2) }, "v3 on 1, before v1, withdrawn v2"},
		"where a node tells of it in short": {func(f *fleet) {
			first := f.intent(f.app)
			f.everywhere(1)
			f.shortens(f.nodes[0], first)
			f.version(2)
		}, "v3 on 1, before v2, withdrawn v1"},
		"where what follows it is attached in part": {func(f *fleet) {
			f.everywhere(1)
			f.attachesInPart(f.nodes[2], f.intent(f.app))
			f.version(2)
		}, "v3 on 1, before v2, withdrawn v1"},
		"where what a node is held at is attached in part": {func(f *fleet) {
			second := f.everywhere(1)
			f.attachesInPart(f.nodes[2], second)
			f.version(2)
			f.attachesInPart(f.nodes[2], second)
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.NodeSelector = &metav1.LabelSelector{} })
		}, "v3 on 1, before v2, withdrawn v3, withdrawn v1"},
		"but not where nobody runs it": {func(f *fleet) { f.everywhere(1); f.version(2) }, "v3 on 1, before v2"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			if p := f.settles(); f.say(p) != c.want {
				t.Errorf("%s, want %s", f.say(p), c.want)
			}
		})
	}
}

// attachesInPart has a node say that it cannot have all of a version: it tells of
// that one, and links of another stand in for the rest.
func (f *fleet) attachesInPart(name string, v *intent.Payload) {
	f.t.Helper()
	said := f.says(f.app, v1alpha1.NodeFailed)
	said.Serial, said.Revision = v.VersionSerial(), f.revision(v)
	f.nodeSays(name, said)
}

// TestAnOvertakenSerialUnloadsNothing has a node say that it has seen a newer
// intent than there is, as after a restore, or because it was taken over.
func TestAnOvertakenSerialUnloadsNothing(t *testing.T) {
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		then func(*fleet)
		want string
	}{
		"of what is stopped": {
			func(f *fleet) { f.version(1); f.answers(v1alpha1.NodeFailed) },
			func(*fleet) {}, "v2 on 1, before v1, withdrawn v2",
		},
		"of what chooses no node": {func(f *fleet) { f.edit(choosesNobody) }, func(*fleet) {}, "v1 on 0, before v1, withdrawn v1"},
		"of what an undo holds": {
			func(f *fleet) { f.version(1); f.revoke("team-a"); f.undo() },
			func(*fleet) {}, "v2 on 1",
		},
		"when another one follows": {func(*fleet) {}, func(f *fleet) { f.version(1) }, "v2 on 5, before v1"},
		"when one follows that chooses no node": {func(*fleet) {}, func(f *fleet) {
			f.edit(func(s *v1alpha1.BpfApplicationSpec) {
				choosesNobody(s)
				s.Bytecode.Image = f.versions[1]
			})
		}, "v1 on 5"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			f.overtake()
			c.then(f)
			f.clock = f.clock.Add(30 * time.Second)
			if p := f.settles(); f.say(p) != c.want {
				t.Errorf("%s, want %s; %+v", f.say(p), c.want, f.state())
			}
		})
	}
}

// choosesNobody mistypes a selector.
func choosesNobody(s *v1alpha1.BpfApplicationSpec) {
	s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rloe": "edge"}}
}

// overtake has a node that runs what is before the newest version say that it has
// seen a newer intent.
func (f *fleet) overtake() {
	f.t.Helper()
	p, said := f.intent(f.app), f.says(f.app, v1alpha1.NodeLoaded)
	said.Revision, said.Serial = "other", max(p.Serial+1, f.clock.Add(time.Minute).UnixMilli())
	for _, name := range f.nodes {
		if p.Rollout == nil || !p.Reaches(name) {
			f.nodeSays(name, said)
			return
		}
	}
}

// TestAnUndoShieldsNothing has what runs taken away in spite of an undo of a new
// version, which cannot be done for that.
func TestAnUndoShieldsNothing(t *testing.T) {
	undone := func(f *fleet) {
		f.change(f.app, func() {
			f.app.Spec.Bytecode.Image = f.versions[1]
			f.app.Generation++
			metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationUndo, strconv.FormatInt(f.app.Generation, 10))
		})
	}
	for sentence, take := range map[string]func(*fleet){
		"a policy denies it first, and its signer is revoked": func(f *fleet) {
			policy := denies(v1alpha1.RunningKeep, "team-a")
			policy.Spec.Rego += notSigned
			f.create(policy)
			f.refresh()
			undone(f)
			f.settles()
			f.revoke("team-a")
		},
		"its signer is revoked at the same time": func(f *fleet) {
			undone(f)
			f.revoke("team-a")
		},
		"a policy unloads it": func(f *fleet) {
			f.create(denies(v1alpha1.RunningUnload, "team-a"))
			undone(f)
			f.refresh()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			take(f)
			if p := f.settles(); !p.Tombstone || f.state().State != v1alpha1.RolloutStopped {
				t.Fatalf("%s; %+v", f.say(p), f.state())
			}
			if p := f.resume(); f.say(p) != "v2 on 1" {
				t.Errorf("resumed: %s", f.say(p))
			}
		})
	}
}

// shortens has a node whose report has little room tell of a version, or of nothing.
func (f *fleet) shortens(name string, v *intent.Payload) {
	f.t.Helper()
	n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	f.change(n, func() {
		n.Status = v1alpha1.BpfNodeStatus{}
		if v == nil {
			n.Status.Counts.NotReported = 1
			return
		}
		n.Status.Loaded = []string{v1alpha1.LoadedAs(v.UID, v.VersionSerial())}
	})
}

// lose deletes what is sealed.
func (f *fleet) lose() {
	f.t.Helper()
	err := f.api.Delete(f.t.Context(), &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: string(f.app.UID)}})
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
}

func TestALostIntentUnloadsNothingWhereReportsAreFull(t *testing.T) {
	for sentence, of := range map[string]func(*fleet) *intent.Payload{
		"told in short": func(f *fleet) *intent.Payload { return f.intent(f.app) },
		"not told":      func(*fleet) *intent.Payload { return nil },
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			for _, name := range f.nodes {
				f.shortens(name, of(f))
			}
			f.lose()
			if p := f.settles(); p == nil || f.say(p) != "v1 on 5" {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestALostIntentBringsBackNothingThatWasStopped(t *testing.T) {
	for sentence, stop := range map[string]func(*fleet){
		"it was undone": func(f *fleet) { f.undo(); f.answers(v1alpha1.NodeLoaded) },
		"it failed":     func(f *fleet) { f.answers(v1alpha1.NodeFailed) },
		"it was undone, and the registry is away": func(f *fleet) {
			f.undo()
			f.answers(v1alpha1.NodeLoaded)
			f.Down.Store(true)
			f.lose()
			f.settles()
			f.Down.Store(false)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.version(1)
			stop(f)
			f.lose()
			if p := f.settles(); p != nil || f.state().State != v1alpha1.RolloutStopped || !strings.Contains(f.state().Message, "was lost") {
				t.Fatalf("%+v; %+v", p, f.state())
			}
			for sentence, do := range stays {
				if do(f); f.state().State != v1alpha1.RolloutStopped {
					t.Fatalf("%s: %+v", sentence, f.state())
				}
			}
			if p := f.resume(); p == nil || f.say(p) != "v2 on 5" {
				t.Errorf("resumed: %+v", p)
			}
		})
	}
}

// TestARevocationWaitsForNoSerial has a node say that it has seen a newer intent
// than there is, over and over.
func TestARevocationWaitsForNoSerial(t *testing.T) {
	for sentence, then := range map[string]func(*fleet){
		"while the rollout goes on": func(*fleet) {},
		"while it is suspended":     func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true }) },
		"while a policy denies it": func(f *fleet) {
			policy := denies(v1alpha1.RunningKeep, "team-b")
			policy.Spec.Rego += notSigned
			f.create(policy)
			f.refresh()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.version(1)
			p, said := f.intent(f.app), f.says(f.app, v1alpha1.NodeLoaded)
			said.Revision, said.Serial = f.revision(p.Previous), f.clock.Add(50*time.Minute).UnixMilli()
			for _, name := range f.nodes {
				if !p.Reaches(name) {
					f.nodeSays(name, said)
				}
			}
			then(f)
			if p := f.revoke("team-a"); f.say(p) != "v2 on 1" {
				t.Errorf("%s; %+v", f.say(p), f.state())
			}
		})
	}
}

// TestATombstoneIsSealedOverWhatNodesHaveSeen has an API server lose what was sealed
// over a tombstone, which nodes run.
func TestATombstoneIsSealedOverWhatNodesHaveSeen(t *testing.T) {
	for sentence, then := range map[string]func(*fleet){
		"its application is there":  func(*fleet) {},
		"its application is undone": func(f *fleet) { f.undo() },
		"its application was deleted": func(f *fleet) {
			if err := f.api.Delete(t.Context(), f.app.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			p := f.revoke("team-a")
			then(f)
			said := f.says(f.app, v1alpha1.NodeLoaded)
			said.Revision, said.Serial = "r", p.Serial+1000
			f.nodeSays(f.nodes[0], said)
			f.clock = f.clock.Add(time.Minute)
			for range 2 {
				_, _ = f.Reconcile(t.Context(), f.app.Identity())
			}
			if now := f.intent(f.app); !now.Tombstone || now.Serial <= said.Serial || now.Reason != p.Reason {
				t.Errorf("serial %d, and a node has seen %d: %+v", now.Serial, said.Serial, now)
			}
		})
	}
}

func TestAFirstVersionOnItsWayIsNotEmptied(t *testing.T) {
	f := newFleet(t)
	f.app = defined("second", f.versions[0])
	f.app.Spec.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("50%")}, Pause: &metav1.Duration{Duration: time.Hour}}
	f.create(f.app)
	f.settles()
	f.answers(v1alpha1.NodeLoaded)
	if p := f.edit(choosesNobody); p.NodeSelector != nil || f.reaches(p) != 3 || f.state().State != v1alpha1.RolloutNoMatchingNodes ||
		!strings.Contains(f.state().Message, "chooses no node") {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
	if p := f.resume(); p.NodeSelector == nil {
		t.Errorf("resumed: %s", f.say(p))
	}
}

// stays are edits of an application that ask nothing else of nodes.
var stays = map[string]func(*fleet){
	"though it is suspended for a while": func(f *fleet) {
		f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
		f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = false })
	},
	"though its steps change": func(f *fleet) {
		f.edit(func(s *v1alpha1.BpfApplicationSpec) {
			s.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("50%")}}
		})
	},
}

func TestAnUndoThatIsHeldStaysHeld(t *testing.T) {
	for sentence, do := range stays {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.version(1)
			f.revoke("team-a")
			f.undo()
			do(f)
			if p := f.answers(v1alpha1.NodeLoaded); f.say(p) != "v2 on 1" || f.state().State != v1alpha1.RolloutStopped {
				t.Fatalf("%s; %+v", f.say(p), f.state())
			}
			if p := f.version(2); p.Image != f.versions[2] || f.state().State == v1alpha1.RolloutStopped {
				t.Errorf("of another version that follows: %s; %+v", f.say(p), f.state())
			}
		})
	}
}

func TestAnUndoOfWhatIsSuspendedWaits(t *testing.T) {
	f := newFleet(t)
	f.version(1)
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
	if p := f.undo(); f.say(p) != "v2 on 1, before v1" {
		t.Fatalf("suspended: %s; %+v", f.say(p), f.state())
	}
	if p := f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = false }); f.say(p) != "v1 on 5, withdrawn v2" {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
}

func TestAnUndoneVersionStaysUndone(t *testing.T) {
	for sentence, do := range stays {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.version(1)
			f.undo()
			do(f)
			if p := f.settles(); f.say(p) != "v1 on 5, withdrawn v2" || f.state().State != v1alpha1.RolloutRolledBack {
				t.Fatalf("%s; %+v", f.say(p), f.state())
			}
			if p := f.resume(); p.Image != f.versions[1] {
				t.Errorf("resumed: %s", f.say(p))
			}
			f.undo()
			if p := f.version(2); p.Image != f.versions[2] {
				t.Errorf("of another version that follows: %s", f.say(p))
			}
		})
	}
}

// TestANodeThatCanHaveNothingLaterKeepsWhatItRuns goes through more versions than
// an intent names.
func TestANodeThatCanHaveNothingLaterKeepsWhatItRuns(t *testing.T) {
	for sentence, runs := range map[string]bool{"it runs the first": true, "it runs none": false} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			first, odd := *f.intent(f.app), f.nodes[0]
			cannot := func() *intent.Payload {
				said := f.says(f.app, v1alpha1.NodeUnsupported)
				if said.Message = "its kernel lacks it"; runs {
					said.Revision = f.revision(&first)
				}
				f.nodeSays(odd, said)
				return f.settles()
			}
			for n := 3; n < 9; n++ {
				f.versions = append(f.versions, f.build(n, "team-c"))
				p := f.version(n)
				for range 6 {
					for _, name := range f.nodes[1:] {
						if p.Reaches(name) {
							f.answer(name, v1alpha1.NodeLoaded)
						}
					}
					p = cannot()
				}
				if named := slices.ContainsFunc(p.Beside(), func(v *intent.Payload) bool { return v.SameVersion(&first) }); runs && !named {
					t.Fatalf("%s runs the first still, and %s does not name it", odd, f.say(p))
				}
				if !runs && len(p.Withdrawn) > 0 {
					t.Fatalf("%s names what no node runs", f.say(p))
				}
			}
		})
	}
}
