package application

import (
	"fmt"
	"testing"
)

// TestPlacesAreHandedOn has names of two namespaces and of the cluster come and go.
func TestPlacesAreHandedOn(t *testing.T) {
	var turns turns
	var called []string
	turns.again = func(name string) { called = append(called, name) }
	take := func(namespace string, count, want int) {
		t.Helper()
		had := 0
		for i := range count {
			if turns.take(turn{namespace, fmt.Sprint(namespace, i)}) {
				had++
			}
		}
		if had != want {
			t.Errorf("%d of %d of %q have a place, want %d", had, count, namespace, want)
		}
	}
	take("a", 6, placesOfNamespace)
	take("b", 1, 1)
	take("", placesOfCluster+1, placesOfCluster)
	turns.giveBack("a5")
	turns.giveBack("b0")
	if called != nil {
		t.Errorf("%q are called, and there is no place for them", called)
	}
	turns.giveBack("a0")
	if len(called) != 1 || called[0] != "a4" {
		t.Fatalf("%q are called for the place of another", called)
	}
	// It was handed to it, and not to what comes first.
	if turns.take(turn{"a", "a6"}) || !turns.take(turn{"a", "a4"}) {
		t.Error("the place is not the one's that waited longest")
	}
	// What is not there any more hands its place on, too.
	turns.giveBack("a4")
	turns.giveBack("a5")
	turns.giveBack("a1")
	if fmt.Sprint(called) != "[a4 a5 a6]" {
		t.Errorf("called: %q", called)
	}
	for i := range placesOfNamespaces {
		turns.take(turn{fmt.Sprint("namespace", i), fmt.Sprint("one", i)})
	}
	if turns.take(turn{"late", "late"}) {
		t.Error("a namespace has a place beyond all of theirs")
	}
	turns.giveBack("one0")
	if turns.giveBack("one0"); turns.take(turn{"late", "late"}) {
		t.Error("it has a place before those that waited longer")
	}
}
