package application

import (
	"fmt"
	"slices"
	"testing"
)

// TestPlacesAreHandedOn has names of namespaces and of the cluster come and go.
func TestPlacesAreHandedOn(t *testing.T) {
	var turns turns
	var called []string
	turns.again = func(name string) { called = append(called, name) }
	take := func(namespace string, count, want int) {
		t.Helper()
		had := 0
		for i := range count {
			if turns.take(turn{namespace, fmt.Sprint(namespace, "/", i)}) {
				had++
			}
		}
		if had != want {
			t.Errorf("%d of %d of %q have a place, want %d", had, count, namespace, want)
		}
	}
	// Each takes as many as half of those that are free then.
	take("a", 200, placesOfNamespaces/3)
	take("b", 200, 21)
	take("", placesOfCluster+1, placesOfCluster)
	if turns.giveBack("a/150"); called != nil {
		t.Errorf("%q are called, and there is no place for them", called)
	}
	turns.giveBack("a/0")
	if !slices.Equal(called, []string{"b/21"}) {
		t.Fatalf("%q are called for the place of one that has more than half", called)
	}
	// It was handed to it, and not to what comes first.
	if turns.take(turn{"b", "b/new"}) || !turns.take(turn{"b", "b/21"}) {
		t.Error("the place is not the one's that waited longest")
	}
	// What is not looked at any more hands its place on, too.
	turns.giveBack("b/21")
	if !slices.Equal(called, []string{"b/21", "b/22"}) {
		t.Errorf("called: %q", called)
	}
}

// TestANamespaceHasAPlaceWhileThereIsOne has many namespaces take all they may.
func TestANamespaceHasAPlaceWhileThereIsOne(t *testing.T) {
	var turns turns
	for namespace := range 5 {
		for i := range placesOfNamespaces {
			turns.take(turn{fmt.Sprint("n", namespace), fmt.Sprint(namespace, "/", i)})
		}
	}
	own := func(namespace string) (count int) {
		for _, of := range turns.places {
			if of == namespace {
				count++
			}
		}
		return count
	}
	if last := own("n4"); last < leastPlaces || len(turns.places) > placesOfNamespaces {
		t.Errorf("the last namespace has %d places, of %d that are taken", last, len(turns.places))
	}
	for i := range placesOfNamespaces {
		turns.take(turn{fmt.Sprint("one", i), fmt.Sprint("one", i)})
	}
	if len(turns.places) != placesOfNamespaces {
		t.Errorf("%d places are taken of %d", len(turns.places), placesOfNamespaces)
	}
}

// TestTheNamespaceWithTheFewestPlacesIsNext has so many namespaces that they share all places, and more that waits in each.
func TestTheNamespaceWithTheFewestPlacesIsNext(t *testing.T) {
	var turns turns
	var called []string
	turns.again = func(name string) { called = append(called, name) }
	for i := range 3 * leastPlaces {
		for namespace := range placesOfNamespaces / leastPlaces {
			turns.take(turn{fmt.Sprint("n", namespace), fmt.Sprint(namespace, "/", i)})
		}
	}
	if turns.take(turn{"late", "late"}) || len(turns.places) != placesOfNamespaces {
		t.Fatalf("%d places are taken", len(turns.places))
	}
	if turns.giveBack("0/0"); !slices.Equal(called, []string{"late"}) {
		t.Errorf("%q are called, and a namespace without a place waits", called)
	}
}
