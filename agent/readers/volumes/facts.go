package volumes

import (
	"errors"
	"fmt"
	"maps"
	"slices"

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
	if l == nil || l.facts.Load() != nil {
		return nil
	}
	k.learning.Lock()
	defer k.learning.Unlock()
	if l.facts.Load() != nil {
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
	warn := func(name string, err error) {
		k.o.Log.Warn("a map is published without its types", "map", name, "error", err)
	}
	all, err := folder.FactsOf(file, maps.Keys(l.maps), warn)
	if err != nil {
		return fmt.Errorf("read the types of maps: %w", err)
	}
	bound(all, warn)
	l.facts.Store(&facts{all})
	return nil
}

// maxTypes is the most bytes of types in a volume. They are in memory, which is the agent's.
const maxTypes = 512 << 10

// bound leaves types out beyond maxTypes, in the order of names.
func bound(all map[string]folder.Fact, warn func(name string, err error)) {
	bytes := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := all[name]
		if bytes += len(one.BTF); bytes <= maxTypes {
			continue
		}
		bytes -= len(one.BTF)
		warn(name, fmt.Errorf("the types of all maps in a volume have at most %d bytes", maxTypes))
		all[name] = folder.Fact{Flags: one.Flags}
	}
}
