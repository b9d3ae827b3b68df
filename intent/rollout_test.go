package intent_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// rolling is a payload whose rollout has come to the node "first" alone, over
// the version before.
func rolling() intent.Payload {
	before, now := payload(), payload()
	now.Serial, now.ObjectDigest = 9, "sha256:"+strings.Repeat("c", 64)
	now.Rollout = &intent.Rollout{Step: 1, Through: intent.NodeHash(now.UID, "first")}
	before.Grant, now.Grant = &intent.Grant{TargetPrograms: 9}, &intent.Grant{TargetPrograms: 6}
	now.Previous = &before
	return now
}

// late is a node that comes after "first".
func late(t *testing.T) string {
	t.Helper()
	for _, node := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		if intent.NodeHash("9f1c", node) > intent.NodeHash("9f1c", "first") {
			return node
		}
	}
	t.Fatal("no node comes after the first")
	return ""
}

func open(t *testing.T, p intent.Payload) intent.Opened {
	t.Helper()
	o, err := trust(t, 1).Open(seal(t, sealer(t, 1), p))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestANodeIsToldTheVersionThatHasComeToIt(t *testing.T) {
	now := rolling()
	o := open(t, now)
	if got := o.For("first"); got.Held() || got.Revision() != o.Revision() || got.Payload().ObjectDigest != now.ObjectDigest {
		t.Errorf("the first node is told %+v", got.Payload())
	}
	held, before := o.For(late(t)), open(t, *now.Previous)
	p := held.Payload()
	if !held.Held() || held.Revision() != before.Revision() || p.ObjectDigest != now.Previous.ObjectDigest {
		t.Errorf("a later node is told %+v, revision %s", p, held.Revision())
	}
	if p.Grant == nil || *p.Grant != *now.Grant {
		t.Errorf("a later node has the grant %+v, want the newest", p.Grant)
	}
	if p.Serial != now.Serial || p.VersionSerial() != now.Previous.Serial {
		t.Errorf("it is held at serial %d, version %d; want %d and %d", p.Serial, p.VersionSerial(), now.Serial, now.Previous.Serial)
	}
	now.Rollout.Through = ""
	if !open(t, now).For("first").Held() {
		t.Error("a rollout that has come to no node came to the first")
	}
	now.Rollout = nil
	if open(t, now).For(late(t)).Held() {
		t.Error("a version that is everywhere is not on every node")
	}
}

// readBy grants a map that nothing else is said of.
func readBy(namespaces ...string) map[string]v1alpha1.Map {
	return map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: namespaces}}}}
}

// counted is a map with metrics.
func counted(name string) map[string]v1alpha1.Map {
	return map[string]v1alpha1.Map{"m": {Metrics: &v1alpha1.MapMetrics{Name: name, Type: v1alpha1.MapCounter}}}
}

// TestWithdrawnMetricsNeedNoVersion narrows what is sealed where the definition cannot be: metrics that it has not are gone, others stay.
func TestWithdrawnMetricsNeedNoVersion(t *testing.T) {
	for sentence, c := range map[string]struct {
		definition, want map[string]v1alpha1.Map
		less             bool
	}{
		"withdrawn": {nil, map[string]v1alpha1.Map{}, true},
		"others":    {counted("b_total"), counted("a_total"), false},
	} {
		got, less := intent.Payload{Maps: counted("a_total")}.Narrowed(c.definition)
		if diff := cmp.Diff(c.want, got.Maps); diff != "" || less != c.less {
			t.Errorf("%s: less is %v, maps (-want +got):\n%s", sentence, less, diff)
		}
	}
}

// TestANodeThatIsHeldHasNoOtherReaders: a grant that was taken back waits for no rollout. A new one waits for the version with
// which it was allowed.
func TestANodeThatIsHeldHasNoOtherReaders(t *testing.T) {
	many := uint32(9)
	for sentence, c := range map[string]struct{ before, now, want map[string]v1alpha1.Map }{
		"one more":      {readBy("web"), readBy("web", "shop"), readBy("web")},
		"the first":     {nil, readBy("web"), nil},
		"one less":      {readBy("web", "shop"), readBy("shop"), readBy("shop")},
		"another":       {readBy("web", "shop"), readBy("shop", "infra"), readBy("shop")},
		"none any more": {readBy("web"), nil, nil},
		"none of a size": {
			map[string]v1alpha1.Map{"m": {MaxEntries: &many, Export: readBy("web")["m"].Export}}, nil, map[string]v1alpha1.Map{"m": {MaxEntries: &many}},
		},
		"of another map": {
			map[string]v1alpha1.Map{"o": {SharedWith: []string{"b"}}}, readBy("a"),
			map[string]v1alpha1.Map{"o": {SharedWith: []string{"b"}}},
		},
		"none, before either": {nil, nil, nil},
		"other metrics":       {counted("a_total"), counted("b_total"), counted("a_total")},
		"metrics withdrawn":   {counted("a_total"), nil, nil},
	} {
		p := rolling()
		p.Previous.Maps, p.Maps = c.before, c.now
		o := open(t, p)
		held, alone := o.For(late(t)), open(t, *p.Previous)
		if diff := cmp.Diff(c.want, held.Payload().Maps, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: a node that is held has (-want +got):\n%s", sentence, diff)
		}
		if held.Revision() != alone.Revision() {
			t.Errorf("%s: it is another revision", sentence)
		}
		if diff := cmp.Diff(c.now, o.For("first").Payload().Maps); diff != "" {
			t.Errorf("%s: the first node has (-want +got):\n%s", sentence, diff)
		}
	}
}

func TestWhereNothingWasBeforeAHeldNodeRunsNothing(t *testing.T) {
	now := rolling()
	now.Previous = nil
	held := open(t, now).For(late(t))
	if p := held.Payload(); !held.Held() || len(p.Programs) != 0 || p.UID != now.UID || p.Serial != now.Serial || p.Application != now.Application {
		t.Errorf("it is told %+v", p)
	}
}

func TestATombstoneIsForEveryNode(t *testing.T) {
	dead := payload()
	dead.Tombstone, dead.Rollout = true, &intent.Rollout{Step: 1}
	if open(t, dead).For("first").Held() {
		t.Error("a node is held at what is to go")
	}
}

func TestRolloutsThatNoHonestSealerMakesAreRefused(t *testing.T) {
	for sentence, change := range map[string]func(*intent.Payload){
		"no step":                     func(p *intent.Payload) { p.Rollout.Step = 0 },
		"a version before that rolls": func(p *intent.Payload) { p.Previous.Rollout = p.Rollout },
		"two versions before":         func(p *intent.Payload) { q := payload(); p.Previous.Previous = &q },
		"another application's":       func(p *intent.Payload) { p.Previous.Application.Name = "other" },
		"another UID's":               func(p *intent.Payload) { p.Previous.UID = "other" },
		"a tombstone before":          func(p *intent.Payload) { p.Previous.Tombstone = true },
		"nothing to load before":      func(p *intent.Payload) { p.Previous.Programs = nil },
	} {
		p := rolling()
		change(&p)
		if _, err := sealer(t, 1).Seal(p); err == nil {
			t.Errorf("%s was sealed", sentence)
		}
	}
}

func TestVersionsAreToldApartByWhatNodesDo(t *testing.T) {
	for sentence, c := range map[string]struct {
		change func(*intent.Payload)
		same   bool
	}{
		"a later serial":   {func(p *intent.Payload) { p.Serial++ }, true},
		"another tag":      {func(p *intent.Payload) { p.Image, p.Generation = "r.example.com/x:v2", 9 }, true},
		"another signer":   {func(p *intent.Payload) { p.Signers, p.PolicyRevision = nil, "x" }, true},
		"a step further":   {func(p *intent.Payload) { p.Rollout = nil }, true},
		"another object":   {func(p *intent.Payload) { p.ObjectDigest = "sha256:other" }, false},
		"another variable": {func(p *intent.Payload) { p.Variables = nil }, false},
		"another node": {func(p *intent.Payload) {
			p.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}}
		}, false},
		"another interface":    {func(p *intent.Payload) { p.Programs[0].Attach[0].Interfaces.Names = []string{"eth1"} }, false},
		"a tombstone instead":  {func(p *intent.Payload) { p.Tombstone = true }, false},
		"another size of maps": {func(p *intent.Payload) { p.Maps = map[string]v1alpha1.Map{"m": {}} }, false},
		"a reader of a map":    {func(p *intent.Payload) { p.Maps = readBy("web") }, true},
	} {
		a, b := rolling(), rolling()
		c.change(&b)
		if got := a.SameVersion(&b); got != c.same {
			t.Errorf("%s: the same version is %v", sentence, got)
		}
	}
}

// TestReadersOfAMapThatHasMoreMakeNoVersion gives readers to a map that has a size as well.
func TestReadersOfAMapThatHasMoreMakeNoVersion(t *testing.T) {
	size := uint32(9)
	sized := func(m v1alpha1.Map) *intent.Payload {
		p := payload()
		m.MaxEntries = &size
		p.Maps = map[string]v1alpha1.Map{"m": m}
		return &p
	}
	for what, m := range map[string]v1alpha1.Map{"a grant": readBy("web")["m"], "metrics": counted("a_total")["m"]} {
		if !sized(m).SameVersion(sized(v1alpha1.Map{})) {
			t.Errorf("%s makes another version", what)
		}
	}
}

func TestWhatNodesMayFetchAreBothVersions(t *testing.T) {
	p := rolling()
	var got []string
	for _, v := range p.Versions() {
		got = append(got, v.ObjectDigest)
	}
	if diff := cmp.Diff([]string{p.ObjectDigest, p.Previous.ObjectDigest}, got); diff != "" {
		t.Error(diff)
	}
}

func TestADefinitionTooLargeToBeReadIsNotSealed(t *testing.T) {
	p := payload()
	p.Source = strings.Repeat("x", intent.MaxEnvelopeBytes*3/4-4096)
	open(t, p)
	p.Source += strings.Repeat("x", 8192)
	if _, err := sealer(t, 1).Seal(p); err == nil || !strings.Contains(err.Error(), "make the definition smaller") {
		t.Errorf("sealed what no agent reads: %v", err)
	}
}

func TestAHeldNodeIsToldWhatElseItMayGoOnWith(t *testing.T) {
	now, older := rolling(), payload()
	older.ObjectDigest = "sha256:" + strings.Repeat("d", 64)
	now.Withdrawn = []intent.Payload{older}
	held := open(t, now).For(late(t))
	if got := held.Names(open(t, older).Revision()); len(got) != 1 || got[0].Payload().ObjectDigest != older.ObjectDigest {
		t.Errorf("named: %+v", got)
	}
	if got := held.Names(open(t, now).Revision()); len(got) != 0 {
		t.Error("it may go on with the version that has not come to it")
	}
	if _, ok := held.Before(); ok {
		t.Error("there is a version before the one that it is held at")
	}
}

func TestEveryVersionOfTheSameBytesIsNamed(t *testing.T) {
	now, others := rolling(), *rolling().Previous
	others.Serial, others.NodeSelector = 8, &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}}
	now.Withdrawn = []intent.Payload{others}
	var serials []int64
	for _, o := range open(t, now).Names(open(t, others).Revision()) {
		serials = append(serials, o.Payload().Serial)
	}
	if diff := cmp.Diff([]int64{now.Previous.Serial, others.Serial}, serials); diff != "" {
		t.Error(diff)
	}
}
