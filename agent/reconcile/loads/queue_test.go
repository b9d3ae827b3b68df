package loads

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// TestNamespacesTakeTurns runs the queue of loads with loads that do nothing.
func TestNamespacesTakeTurns(t *testing.T) {
	for sentence, c := range map[string]struct {
		// arrive lists, for each pick, the loads that begin to wait before it, as
		// namespace and number.
		arrive [][]string
		want   []string
	}{
		"one namespace after the other": {
			[][]string{{"a1", "a2", "a3", "b1", "c1"}, {}, {}, {}, {}}, []string{"a1", "b1", "c1", "a2", "a3"},
		},
		"the one that waits longest within a namespace": {
			[][]string{{"a3"}, {"a2"}, {"a1"}}, []string{"a3", "a2", "a1"},
		},
		"one that comes late is next": {
			[][]string{{"a1", "a2", "a3", "a4"}, {}, {"b1"}, {}}, []string{"a1", "a2", "b1", "a3"},
		},
		"two that come again and again leave the third its turn": {
			[][]string{{"a1", "c1", "c2", "c3"}, {}, {"b1"}, {"a2"}, {"b2"}, {"a3"}}, []string{"a1", "c1", "b1", "a2", "c2", "b2"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			q := NewQueue(time.Now, slog.New(slog.DiscardHandler), nil)
			var waiting, got []string
			for _, come := range c.arrive {
				waiting = append(waiting, come...)
				var queue []Request
				for _, name := range slices.Sorted(slices.Values(waiting)) {
					if !slices.Contains(come, name) {
						queue = append(queue, nothing(name, &got))
					}
				}
				if err := q.keep(nil, queue); err != nil {
					t.Fatal(err)
				}
				for _, name := range come {
					queue = append(queue, nothing(name, &got))
				}
				if err := q.keep(nil, queue); err != nil {
					t.Fatal(err)
				}
				q.StartNext(queue)
				q.wait.Wait()
				q.Collect()
				waiting = slices.DeleteFunc(waiting, func(name string) bool { return name == got[len(got)-1] })
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
			if err := q.keep(nil, nil); err != nil || len(q.served)+len(q.since)+len(q.results) > 0 {
				t.Errorf("an idle queue remembers %v %v %v (%v)", q.served, q.since, q.results, err)
			}
		})
	}
}

// nothing is a load that notes that it was started.
func nothing(name string, started *[]string) Request {
	return Request{key: name, Line: name, Tenants: []string{name[:1]},
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			*started = append(*started, name)
			return func(*btf.Cache) (io.Closer, error) { return nil, fmt.Errorf("load %s: it is none", name) }, nil
		}}
}
