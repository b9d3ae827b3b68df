package aggregated

import (
	"fmt"
	"testing"
)

func TestWatchesLeavePlacesToReads(t *testing.T) {
	b := NewBounds(Limits{What: "reads", Burst: 2, PerSecond: 1, OfUser: 1, OfAll: 5, OfLasting: 3})
	var leave func()
	for n := range 3 {
		var err error
		if leave, err = b.Enter(fmt.Sprint("watches-", n), true); err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := b.Enter("ann", true); err == nil {
		t.Error("one more watch has a place")
	}
	for n := range 2 {
		if _, err := b.Enter(fmt.Sprint("reads-", n), false); err != nil {
			t.Error(n, err)
		}
	}
	if _, err := b.Enter("bob", false); err == nil {
		t.Error("one more read has a place")
	}
	leave()
	if _, err := b.Enter("ann", true); err != nil {
		t.Error("after one ended:", err)
	}
}

func TestAUserHasAUsersPlaces(t *testing.T) {
	b := NewBounds(Limits{What: "reads", Burst: 10, PerSecond: 1, OfUser: 2, OfAll: 5})
	leave, err := b.Enter("ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Enter("ann", false); err != nil {
		t.Error("a second request:", err)
	}
	if _, err := b.Enter("ann", false); err == nil {
		t.Error("a third request has a place")
	}
	if _, err := b.Enter("bob", false); err != nil {
		t.Error("another user:", err)
	}
	leave()
	if _, err := b.Enter("ann", false); err != nil {
		t.Error("after one ended:", err)
	}
}

func TestServiceAccountsOfANamespaceHaveOneShare(t *testing.T) {
	b := NewBounds(Limits{What: "reads", Burst: 10, PerSecond: 1, OfUser: 2, OfAll: 5})
	for n := range 2 {
		if _, err := b.Enter(fmt.Sprint("system:serviceaccount:team-a:worker-", n), false); err != nil {
			t.Error(n, err)
		}
	}
	_, err := b.Enter("system:serviceaccount:team-a:worker-2", false)
	if want := "service accounts of namespace team-a may have 2 reads on their way at once; end one"; err == nil || err.Error() != want {
		t.Errorf("a third account: %v", err)
	}
	for _, name := range []string{"system:serviceaccount:team-b:worker-0", "service accounts of namespace team-a"} {
		if _, err := b.Enter(name, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
