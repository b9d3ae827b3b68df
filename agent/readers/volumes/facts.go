package volumes

import (
	"errors"
	"fmt"
	"maps"
	"os"
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

// maxTypes is the most bytes of types in a volume, in the whole pages that files take: those of two versions and their listings fit in its
// tmpfs. They are in memory, which is the agent's.
const maxTypes = 384 << 10

// bound leaves types out beyond maxTypes, in the order of names.
func bound(all map[string]folder.Fact, warn func(name string, err error)) {
	pages, most := 0, maxTypes/os.Getpagesize()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := all[name]
		takes := (len(one.BTF) + os.Getpagesize() - 1) / os.Getpagesize()
		if pages += takes; pages <= most {
			continue
		}
		pages -= takes
		warn(name, fmt.Errorf("the types of all maps in a volume have at most %d bytes, in whole pages", maxTypes))
		all[name] = folder.Fact{Flags: one.Flags}
	}
}
