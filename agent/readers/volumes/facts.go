package volumes

import (
	"errors"
	"fmt"
	"maps"

	"github.com/skep-dev/skep/agent/readers/folder"
)

// facts are what an object says of its maps and the kernel does not. Nil knows of none.
type facts struct{ maps map[string]folder.Fact }

func (f *facts) of(name string) folder.Fact {
	if f == nil {
		return folder.Fact{}
	}
	return f.maps[name]
}

// learn reads the object of what is loaded, once. Without it, no grant is applied: the object may forbid what one grants.
func (k *Keeper) learn(l *loaded) error {
	if l == nil || l.facts != nil {
		return nil
	}
	if l.err != nil {
		return fmt.Errorf("open maps: %w", l.err)
	}
	if l.runs.ObjectDigest == "" {
		return errors.New("the intent of what is loaded is not known; its maps can be read when another version is loaded")
	}
	file, err := k.o.Objects.Read(l.runs.ObjectDigest)
	if err != nil {
		return fmt.Errorf("read the types of maps: %w", err)
	}
	all, err := folder.FactsOf(file, maps.Keys(l.maps), func(name string, err error) {
		k.o.Log.Warn("a map is published without its types", "map", name, "error", err)
	})
	if err != nil {
		return fmt.Errorf("read the types of maps: %w", err)
	}
	l.facts = &facts{all}
	return nil
}
