package application

import (
	"slices"
	"sync"
)

// Namespaces have so many places together. One may have leastPlaces of them, or as many as half of those that are free: what
// waits for the registries of one holds up no other, also if there are many such namespaces: the one that has the fewest is
// next. Those of the cluster are its own.
const (
	leastPlaces        = 4
	placesOfNamespaces = 96
	placesOfCluster    = 32
)

// turns has what waits for places take turns.
type turns struct {
	mu sync.Mutex
	// places are the namespaces of those that have one, by name; own counts them.
	places map[string]string
	own    map[string]int
	// lines are what waits. again has something that waited be looked at again, which has a place then.
	lines []line
	again func(name string)
}

// line is what waits of a namespace, in the order of arrival. Among lines, that comes first which was not called for longest.
type line struct {
	namespace string
	names     []string
}

// turn is a name, and the namespace it counts for; empty is the cluster.
type turn struct{ namespace, name string }

// take reports whether something has a place, until giveBack. If not, it is called again when there is one.
func (t *turns) take(one turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, has := t.places[one.name]; has {
		return true
	}
	if t.hasPlace(one.namespace) {
		t.give(one)
		return true
	}
	i := slices.IndexFunc(t.lines, func(l line) bool { return l.namespace == one.namespace })
	switch {
	case i < 0:
		t.lines = append(t.lines, line{one.namespace, []string{one.name}})
	case !slices.Contains(t.lines[i].names, one.name):
		t.lines[i].names = append(t.lines[i].names, one.name)
	}
	return false
}

// giveBack hands on the place that something has, if it has one.
func (t *turns) giveBack(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	namespace, has := t.places[name]
	if !has {
		return
	}
	delete(t.places, name)
	if t.own[namespace]--; t.own[namespace] == 0 {
		delete(t.own, namespace)
	}
	for i := t.next(); i >= 0; i = t.next() {
		l := t.lines[i]
		called := l.names[0]
		if t.lines, l.names = slices.Delete(t.lines, i, i+1), l.names[1:]; len(l.names) > 0 {
			t.lines = append(t.lines, l)
		}
		t.give(turn{l.namespace, called})
		t.again(called)
	}
}

// next is the first line of a namespace that may have a place, and has the fewest. It is negative if there is none.
func (t *turns) next() int {
	next := -1
	for i, l := range t.lines {
		if t.hasPlace(l.namespace) && (next < 0 || t.own[l.namespace] < t.own[t.lines[next].namespace]) {
			next = i
		}
	}
	return next
}

func (t *turns) give(one turn) {
	if t.places == nil {
		t.places, t.own = map[string]string{}, map[string]int{}
	}
	t.places[one.name] = one.namespace
	t.own[one.namespace]++
}

// hasPlace reports whether there is a place for a namespace.
func (t *turns) hasPlace(namespace string) bool {
	own := t.own[namespace]
	if namespace == "" {
		return own < placesOfCluster
	}
	free := placesOfNamespaces - (len(t.places) - t.own[""])
	return free > 0 && own < max(leastPlaces, free/2)
}
