package limit

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// item is something of a name, of a size.
type item struct {
	name string
	size int
}

func (i item) of() (string, int) { return i.name, i.size }

func TestWhoeverHasMostGivesWay(t *testing.T) {
	for sentence, c := range map[string]struct {
		items []item
		limit int
		lost  []item
	}{
		"nothing is lost where there is room":                        {[]item{{"a", 1}, {"b", 9}}, 10, nil},
		"one that takes all leaves the small alone":                  {[]item{{"a", 5}, {"a", 6}, {"b", 1}}, 10, []item{{"a", 6}}},
		"two that have as much give way alike":                       {[]item{{"a", 3}, {"a", 3}, {"b", 3}, {"b", 3}, {"c", 1}}, 7, []item{{"a", 3}, {"b", 3}}},
		"the last of many that have as much gives way alone":         {[]item{{"a", 1}, {"b", 1}, {"c", 1}}, 2, []item{{"c", 1}}},
		"of many that have too much each, those that have room stay": {[]item{{"a", 4}, {"b", 4}, {"c", 4}}, 9, []item{{"c", 4}}},
		"what follows what has no room has none":                     {[]item{{"a", 1}, {"a", 50}, {"a", 1}}, 10, []item{{"a", 50}, {"a", 1}}},
		"without any room all is lost":                               {[]item{{"a", 1}, {"b", 1}}, -1, []item{{"a", 1}, {"b", 1}}},
		"what one name alone has is bounded by what there is":        {[]item{{"a", 4}, {"a", 4}, {"a", 4}}, 10, []item{{"a", 4}}},
		"what a small one does not need is the others' to be taken":  {[]item{{"a", 6}, {"a", 1}, {"b", 2}}, 8, []item{{"a", 1}}},
	} {
		t.Run(sentence, func(t *testing.T) {
			kept, lost := Fit(c.items, c.limit, item.of)
			if diff := cmp.Diff(c.lost, lost, cmp.AllowUnexported(item{})); diff != "" {
				t.Error(diff)
			}
			if len(kept)+len(lost) != len(c.items) {
				t.Errorf("kept %v, lost %v", kept, lost)
			}
		})
	}
}

// FuzzFit has a name that holds no more than its part of the limit lose nothing, and all
// stay within the limit.
func FuzzFit(f *testing.F) {
	f.Add([]byte{1, 9, 1, 9, 2, 1}, 10)
	f.Fuzz(func(t *testing.T, raw []byte, limit int) {
		limit = min(max(limit, 0), 1<<20)
		var items []item
		has := map[string]int{}
		for i := 0; i+1 < len(raw); i += 2 {
			one := item{fmt.Sprint(raw[i] % 8), int(raw[i+1])}
			items = append(items, one)
			has[one.name] += one.size
		}
		kept, lost := Fit(items, limit, item.of)
		together := 0
		for _, one := range kept {
			together += one.size
		}
		if together > limit {
			t.Errorf("%d are kept, and %d have room", together, limit)
		}
		for _, one := range lost {
			if has[one.name]*len(has) <= limit {
				t.Errorf("%s loses %d of its %d", one.name, one.size, has[one.name])
			}
		}
	})
}
