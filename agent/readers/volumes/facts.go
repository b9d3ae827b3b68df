package volumes

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/bytecode/objectfile"
)

// facts are what an object says of its maps and the kernel does not. Nil knows of none.
type facts struct{ maps map[string]fact }

type fact struct {
	folder.Types
	// flags are those that the kernel does not keep.
	flags uint32
}

func (f *facts) of(name string) fact {
	if f == nil {
		return fact{}
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
	read, err := objectfile.Read(file)
	if err != nil {
		return fmt.Errorf("read the types of maps: %w", err)
	}
	all := map[string]fact{}
	for name := range l.maps {
		spec := read.Spec.Maps[name]
		if spec == nil {
			continue
		}
		one := fact{flags: spec.Flags & (unix.BPF_F_RDONLY | unix.BPF_F_WRONLY)}
		if one.Types, err = folder.TypesOf(spec.Key, spec.Value); err != nil {
			// Its readers know them.
			k.o.Log.Warn("a map is published without its types", "map", name, "error", err)
		}
		all[name] = one
	}
	l.facts = &facts{all}
	return nil
}
