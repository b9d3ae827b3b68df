package sharing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// fleet are applications that are known on a node.
type fleet struct {
	t   *testing.T
	key seals.Key
	all []version.Known
}

// add adds an application of namespace red, which change may change.
func (f *fleet) add(name string, maps map[string]v1alpha1.Map, change ...func(*intent.Payload)) intent.Payload {
	f.t.Helper()
	p := intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "red", Name: name}, UID: "uid-" + name, Serial: 1,
		ObjectDigest: "sha256:object", Maps: maps, Programs: []v1alpha1.Program{{Name: "f"}}}
	for _, c := range change {
		c(&p)
	}
	f.all = append(f.all, version.Known{Newest: f.key.Open(f.t, p)})
	return p
}

func from(application, name string) v1alpha1.Map {
	return v1alpha1.Map{From: &v1alpha1.MapSource{Application: application, Map: name}}
}

// TestAnOwnerIsFoundByBothIntents changes one thing about an owner that shares its map.
func TestAnOwnerIsFoundByBothIntents(t *testing.T) {
	shares := map[string]v1alpha1.Map{"theirs": {SharedWith: []string{"taker"}}}
	for sentence, c := range map[string]struct {
		owner func(*fleet)
		// uid of the owner that is found, or what the error says, which is a wait or not.
		uid, says string
		waits     bool
	}{
		"it shares": {owner: func(f *fleet) { f.add("owner", shares) }, uid: "uid-owner"},
		"it is not there": {owner: func(*fleet) {}, waits: true,
			says: "waits for map theirs of application owner: this node knows no application of that name; apply it, or correct the name"},
		"it is deleted": {owner: func(f *fleet) { f.add("owner", nil, func(p *intent.Payload) { p.Tombstone = true }) }, waits: true, says: "it was deleted"},
		"it is for other nodes": {owner: func(f *fleet) {
			f.add("owner", shares, func(p *intent.Payload) {
				p.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "other"}}
			})
		}, waits: true, says: "its node selector does not match this node"},
		"it shares with another": {owner: func(f *fleet) { f.add("owner", map[string]v1alpha1.Map{"theirs": {SharedWith: []string{"third"}}}) },
			says: "maps.mine.from: application owner does not share its map theirs with taker; add taker to spec.maps.theirs.sharedWith of owner"},
		"it shares another map": {
			owner: func(f *fleet) { f.add("owner", map[string]v1alpha1.Map{"other": {SharedWith: []string{"taker"}}}) }, says: "does not share its map theirs",
		},
		"it has the map from a third": {
			owner: func(f *fleet) { f.add("owner", map[string]v1alpha1.Map{"theirs": from("third", "m")}) }, says: "does not share its map theirs",
		},
		"it is of another namespace": {owner: func(f *fleet) {
			f.add("owner", shares, func(p *intent.Payload) { p.Application.Namespace = "blue" })
		}, waits: true, says: "no application of that name"},
		"it is of another kind": {owner: func(f *fleet) {
			f.add("owner", shares, func(p *intent.Payload) {
				p.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "owner"}
			})
		}, waits: true, says: "no application of that name"},
		"it was made again while the first is unloaded": {owner: func(f *fleet) {
			f.add("owner", shares, func(p *intent.Payload) { p.UID = "uid-again" })
			f.add("owner", nil, func(p *intent.Payload) { p.Tombstone, p.Serial = true, 9 })
		}, uid: "uid-again"},
		"it was made again and nobody told of the first": {owner: func(f *fleet) {
			f.add("owner", shares, func(p *intent.Payload) { p.UID, p.Created = "uid-again", 2 })
			f.add("owner", shares, func(p *intent.Payload) { p.Created = 1 })
		}, uid: "uid-again"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := &fleet{t: t, key: seals.New(t)}
			taker := f.add("taker", map[string]v1alpha1.Map{"mine": from("owner", "theirs")})
			c.owner(f)
			owner, err := sharing.Of(version.Node{Labels: map[string]string{"role": "this"}}, f.all).Owner(taker, "mine")
			if c.uid != "" {
				if err != nil || owner.Newest.Payload().UID != c.uid {
					t.Errorf("found %s, %v; want %s", owner.Newest.Payload().UID, err, c.uid)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("found %s, %v; want %q", owner.Newest.Payload().UID, err, c.says)
			}
			if wait := new(sharing.WaitError); errors.As(err, &wait) != c.waits {
				t.Errorf("%v waits: %v", err, !c.waits)
			}
		})
	}
}

// TestACycleIsToldToThoseInIt has a and b wait for each other by a third, and d wait for them.
func TestACycleIsToldToThoseInIt(t *testing.T) {
	f := &fleet{t: t, key: seals.New(t)}
	a := f.add("a", map[string]v1alpha1.Map{"x": from("b", "x")})
	f.add("b", map[string]v1alpha1.Map{"y": from("c", "y")})
	f.add("c", map[string]v1alpha1.Map{"z": from("a", "z"), "w": from("absent", "w")})
	d := f.add("d", map[string]v1alpha1.Map{"x": from("a", "x")})
	all := sharing.Of(version.Node{}, f.all)
	nothing := func(string) bool { return false }
	want := "maps.x.from: these applications wait for each other: a takes x from b, b takes y from c, c takes z from a; let one of them have both maps, " +
		"and share them"
	if err := all.Cycle(a, nothing); err == nil || err.Error() != want {
		t.Errorf("the cycle is %v, want %s", err, want)
	}
	if err := all.Cycle(d, nothing); err != nil {
		t.Errorf("d only waits for a cycle: %v", err)
	}
	if err := all.Cycle(a, func(uid string) bool { return uid == "uid-c" }); err != nil {
		t.Errorf("c runs: %v", err)
	}
	var names []string
	for _, i := range sharing.OwnersFirst(f.all) {
		names = append(names, f.all[i].Newest.Payload().Application.Name)
	}
	if diff := cmp.Diff([]string{"c", "b", "a", "d"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
