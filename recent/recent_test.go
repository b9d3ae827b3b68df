package recent_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/skep-dev/skep/recent"
)

func texts(entries, bytes int) *recent.Cache[string] {
	return recent.New(recent.Options[string]{Entries: entries, Bytes: bytes, Size: func(s string) int { return len(s) }})
}

func TestTheValueUsedLongestAgoMakesRoom(t *testing.T) {
	for sentence, c := range map[string]struct{ entries, bytes int }{
		"for an entry": {3, 1000},
		"for bytes":    {1000, 12},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := texts(c.entries, c.bytes)
			for _, key := range []string{"a", "b", "c"} {
				r.Put(key, "1234")
			}
			r.Get("a")
			r.Put("d", "1234")
			for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
				if _, ok := r.Get(key); ok != want {
					t.Errorf("%s is kept: %t, want %t", key, ok, want)
				}
			}
			if entries, bytes := r.Held(); entries != 3 || bytes != 12 {
				t.Errorf("%d entries of %d bytes", entries, bytes)
			}
		})
	}
}

func TestAValueTakesThePlaceOfItsKey(t *testing.T) {
	r := texts(10, 100)
	for range 100 {
		r.Put("a", "1234")
	}
	if entries, bytes := r.Held(); entries != 1 || bytes != 4 {
		t.Errorf("%d entries of %d bytes", entries, bytes)
	}
	r.Put("b", "1")
	r.Put("a", fmt.Sprintf("%51s", ""))
	if _, ok := r.Get("a"); ok {
		t.Error("a value that takes more than half is kept, or the one before it")
	}
	if entries, bytes := r.Held(); entries != 1 || bytes != 1 {
		t.Errorf("%d entries of %d bytes: a value that is too large took the place of another", entries, bytes)
	}
}

func TestUsesAtOnceStayWithinBounds(t *testing.T) {
	r := texts(8, 64)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range 1000 {
				r.Put(fmt.Sprint(i, n%16), fmt.Sprintf("%*s", n%40, ""))
				r.Get(fmt.Sprint(n%8, i))
				if entries, bytes := r.Held(); entries > 8 || bytes > 64 {
					t.Errorf("%d entries of %d bytes", entries, bytes)
				}
			}
		})
	}
	group.Wait()
}
