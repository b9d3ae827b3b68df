package agenda_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/agenda"
)

type number int

func (n number) Compare(other number) int { return cmp.Compare(n, other) }

// TestWhatIsAddedComesInOrderAndOnce: what was looked at is looked at again, before what comes after it.
func TestWhatIsAddedComesInOrderAndOnce(t *testing.T) {
	a, adds := agenda.New([]number{5, 1, 3}), map[number][]number{3: {1, 5, 4}, 4: {4}}
	var got []number
	for n, ok := a.Next(); ok; n, ok = a.Next() {
		got = append(got, n)
		for _, one := range adds[n] {
			a.Add(one)
		}
		delete(adds, n)
	}
	if want := []number{1, 3, 1, 4, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
