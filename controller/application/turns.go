package application

import (
	"slices"
	"sync"
)

// Namespaces have so many places together. One may have leastPlaces of them, or as many as half of those that are free: what
// waits for the registries of one holds up no other. Those of the cluster are its own.
const (
	leastPlaces        = 4
	placesOfNamespaces = 96
	placesOfCluster    = 32
)

// turns has what waits for places take turns.
type turns struct {
	mu sync.Mutex
	// places are the namespaces of those that have one, by name.
	places map[string]string
	// waiting is in the order of arrival. again has something that waited be looked at again, which has a place then.
	waiting []turn
	again   func(name string)
}

// turn is a name, and the namespace it counts for; empty is the cluster.
type turn struct{ namespace, name string }

// take reports whether something has a place, until giveBack. If not, it is called again when there is one.
func (t *turns) take(one turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, one)
	_, has := t.places[one.name]
	if !has && !t.hasPlace(one.namespace) {
		if i < 0 {
			t.waiting = append(t.waiting, one)
		}
		return false
	}
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.give(one)
	return true
}

// giveBack hands on the place that something has, if it has one.
func (t *turns) giveBack(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, has := t.places[name]; !has {
		return
	}
	delete(t.places, name)
	for {
		i := slices.IndexFunc(t.waiting, func(one turn) bool { return t.hasPlace(one.namespace) })
		if i < 0 {
			return
		}
		next := t.waiting[i]
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.give(next)
		t.again(next.name)
	}
}

func (t *turns) give(one turn) {
	if t.places == nil {
		t.places = map[string]string{}
	}
	t.places[one.name] = one.namespace
}

// hasPlace reports whether there is a place for a namespace.
func (t *turns) hasPlace(namespace string) bool {
	own, free := 0, placesOfNamespaces
	for _, of := range t.places {
		if of == namespace {
			own++
		}
		if of != "" {
			free--
		}
	}
	if namespace == "" {
		return own < placesOfCluster
	}
	return own < min(free+own, max(leastPlaces, free/2))
}
