package order_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan/order"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestWhoRunsFirst lists programs in the order in which they are to run.
func TestWhoRunsFirst(t *testing.T) {
	turn := func(kind, namespace, name string, priority int32, after bool) order.Turn {
		id := v1alpha1.Identity{Kind: kind, Namespace: namespace, Name: name}
		return order.Turn{Rank: order.RankOf(id, after), Priority: priority, Application: id, Program: "f", UID: name}
	}
	cluster, team := v1alpha1.KindClusterBpfApplication, v1alpha1.KindBpfApplication
	want := []order.Turn{
		turn(cluster, "", "first", 0, false),
		turn(cluster, "", "last-of-the-first", 1000, false),
		turn(team, "a", "first", 0, false),
		// What a namespace asks for does not count.
		turn(team, "b", "behind", 0, true),
		turn(team, "a", "last", 1000, false),
		turn(cluster, "", "behind", 0, true),
		turn(cluster, "", "last", 1000, true),
	}
	got := slices.Clone(want)
	rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	if slices.SortFunc(got, order.Turn.Compare); !slices.Equal(got, want) {
		t.Errorf("they run as\n%v, want\n%v", got, want)
	}
}

// TestMoversLeadToOrder moves what is to move as the agent does, each before the first that is to run later, or else to the
// end, and finds all in order but for what is fixed.
func TestMoversLeadToOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		n := 1 + random.IntN(8)
		hasFixed := random.IntN(2) == 0
		now := make([]order.Place, n)
		for i := range now {
			now[i] = order.Place{ID: i, Turn: order.Turn{Rank: order.Rank(random.IntN(3)), Priority: int32(random.IntN(3)), UID: fmt.Sprint(i)}}
		}
		random.Shuffle(n, func(i, j int) { now[i], now[j] = now[j], now[i] })
		// Those that are fixed are in order among themselves.
		for i := range now {
			now[i].Position = i * 10
			isBehind := func(p order.Place) bool { return p.Fixed && p.Turn.Compare(now[i].Turn) > 0 }
			now[i].Fixed = hasFixed && random.IntN(3) == 0 && !slices.ContainsFunc(now[:i], isBehind)
		}
		before := slices.Clone(now)
		movers := order.Movers(now)
		if !slices.Equal(now, before) {
			t.Fatal("the places were changed")
		}
		for _, m := range movers {
			if m.Fixed {
				t.Fatalf("%v is to move, and is fixed", m)
			}
			now = slices.DeleteFunc(now, func(p order.Place) bool { return p.ID == m.ID })
			to := slices.IndexFunc(now, func(p order.Place) bool { return p.Turn.Compare(m.Turn) > 0 })
			if to < 0 {
				to = len(now)
			}
			now = slices.Insert(now, to, m)
		}
		if !slices.IsSortedFunc(now, func(a, b order.Place) int { return a.Turn.Compare(b.Turn) }) {
			t.Fatalf("%v\nwas moved to\n%v", before, now)
		}
		if len(movers) == n {
			t.Fatalf("all of %v move", before)
		}
	}
}

// TestTheClustersMove: a namespace could have a move of its own fail.
func TestTheClustersMove(t *testing.T) {
	places := []order.Place{{ID: 0, Turn: order.Turn{Rank: order.OfNamespaces}}}
	for i := range 5 {
		places = append(places, order.Place{ID: i + 1, Turn: order.Turn{Rank: order.BeforeNamespaces, Priority: int32(i)}, Position: i + 1})
	}
	if got := order.Movers(places); len(got) != 5 || got[0].ID != 5 || got[4].ID != 1 {
		t.Errorf("%v move, want those of the cluster, the last one first", got)
	}
}
