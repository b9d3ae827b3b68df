package text

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// The bounds of looking for names that are like another.
const (
	// nearestNames is how many are kept.
	nearestNames = 3
	// maxTypos is how many letters they differ in, and maxCompared the longest name
	// whose letters are compared.
	maxTypos, maxCompared = 2, 64
	// minContained is the shortest name that is looked for inside another.
	minContained = 4
)

// Nearest collects, out of any number of names, those most like one that was not found.
type Nearest struct {
	name string
	best []nearName
}

// nearName is a name and how far it is from the one sought; 0 is nearest.
type nearName struct {
	name     string
	distance int
}

// NewNearest returns a Nearest to the name.
func NewNearest(name string) *Nearest { return &Nearest{name: name} }

// Add offers a name. It keeps a copy where the name is among the nearest.
func (n *Nearest) Add(name []byte) {
	d, ok := n.distance(string(name))
	if !ok {
		return
	}
	one := nearName{string(name), d}
	at, found := slices.BinarySearchFunc(n.best, one, func(a, b nearName) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	if found || at == nearestNames {
		return
	}
	n.best = slices.Insert(n.best, at, one)
	n.best = n.best[:min(len(n.best), nearestNames)]
}

// String lists the names after a semicolon; it is empty where none is near.
func (n *Nearest) String() string {
	if len(n.best) == 0 {
		return ""
	}
	names := make([]string, 0, len(n.best))
	for _, one := range n.best {
		names = append(names, CutRunes(Line(one.name), maxCompared))
	}
	return "; near it are " + strings.Join(names, ", ")
}

// distance is how far a name is away, unless that is too far.
func (n *Nearest) distance(name string) (int, bool) {
	longer, shorter := max(len(n.name), len(name)), min(len(n.name), len(name))
	if strings.EqualFold(n.name, name) {
		return 0, name != ""
	}
	if longer <= maxCompared && longer-shorter <= maxTypos && shorter > maxTypos {
		if d := levenshtein.ComputeDistance(n.name, name); d <= maxTypos {
			return d, true
		}
	}
	inside := shorter >= minContained && (strings.Contains(name, n.name) || strings.Contains(n.name, name))
	return maxTypos + longer - shorter, inside
}
