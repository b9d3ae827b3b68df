package containers

import (
	"slices"
	"testing"
)

// TestAChangeNamesItsPods has pods and containers come and go.
func TestAChangeNamesItsPods(t *testing.T) {
	var told [][]string
	s := newState(func(changed ...Pod) {
		names := []string{}
		for _, p := range changed {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		told = append(told, names)
	})
	web, db := Pod{SandboxID: "1", Name: "web"}, Pod{SandboxID: "2", Name: "db"}
	for _, c := range []struct {
		what string
		do   func()
		want [][]string
	}{
		{"before the first answer", func() { s.addPod(web) }, nil},
		{"the first answer", s.answered, [][]string{{}}},
		{"the next answer", s.answered, nil},
		{"a pod", func() { s.addPod(db) }, [][]string{{"db"}}},
		{"a container", func() { s.add(Container{ID: "c", Pod: web}, web) }, [][]string{{"web"}}},
		{"one that is left out", func() { s.skip(Skipped{ID: "x"}) }, nil},
		{"the end of one that is not known", func() { s.remove("x") }, nil},
		{"the end of a container", func() { s.remove("c") }, [][]string{{"web"}}},
		{"a list without a pod", func() { s.listed(map[string]bool{"1": true}) }, [][]string{{"db"}}},
		{"others", func() { s.replace(map[string]Container{"d": {ID: "d", Pod: db}, "w": {ID: "w", Pod: web}}) }, [][]string{{"db", "web"}}},
		{"the same", func() { s.replace(map[string]Container{"d": {ID: "d", Pod: db}, "w": {ID: "w", Pod: web}}) }, nil},
		{"one less", func() { s.replace(map[string]Container{"w": {ID: "w", Pod: web}}) }, [][]string{{"db"}}},
		{"nobody asks any more", func() { s.retire(); s.addPod(db) }, nil},
	} {
		told = nil
		if c.do(); !slices.EqualFunc(told, c.want, slices.Equal[[]string]) {
			t.Errorf("%s: told %v, want %v", c.what, told, c.want)
		}
	}
}
