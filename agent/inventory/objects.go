package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/bytecode/plain"
)

// gone tells that an object vanished between its id and itself.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) }

// walk calls visit for every id. An object that is gone is passed over.
func walk[ID ~uint32](ctx context.Context, next func(ID) (ID, error), visit func(ID) error) error {
	for id := ID(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if id, err = next(id); gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		if err := visit(id); err != nil && !gone(err) {
			return fmt.Errorf("read object %d: %w", id, err)
		}
	}
}

// ProgramIDs are the ids of all programs in the kernel, in ascending order. They cost
// one call for each, and List costs many.
func ProgramIDs(ctx context.Context) ([]uint32, error) {
	var ids []uint32
	err := walk(ctx, ebpf.ProgramGetNextID, func(id ebpf.ProgramID) error {
		ids = append(ids, uint32(id))
		return nil
	})
	return ids, err
}

func listPrograms(ctx context.Context) ([]Program, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return nil, fmt.Errorf("read clock: %w", err)
	}
	boot := time.Now().Add(-time.Duration(up.Nano()))
	owners := ownerReader{known: map[ebpf.MapID]*owner.Owner{}}
	found := []Program{}
	err := walk(ctx, ebpf.ProgramGetNextID, func(id ebpf.ProgramID) error {
		p, err := readProgram(id, boot)
		if err != nil {
			return err
		}
		// In the program's own order: a chain's owner stands before its members'.
		p.Owner = owners.of(p.Maps)
		slices.Sort(p.Maps)
		found = append(found, p)
		return nil
	})
	return found, err
}

func readProgram(id ebpf.ProgramID, boot time.Time) (Program, error) {
	p, err := plain.Of(ebpf.NewProgramFromID(id))
	if err != nil {
		return Program{}, err
	}
	defer p.Close()
	info, err := plain.Of(p.Info())
	if err != nil {
		return Program{}, err
	}
	stats, err := plain.Of(p.Stats())
	if err != nil {
		return Program{}, err
	}
	out := Program{ID: uint32(id), Type: info.Type.String(), Name: info.Name, Tag: info.Tag, Runs: stats.RunCount, RunTime: stats.Runtime}
	if since, ok := info.LoadTime(); ok {
		out.LoadedAt = boot.Add(since).Truncate(time.Second)
	}
	out.UID, _ = info.CreatedByUID()
	out.JitedBytes, _ = info.JitedSize()
	out.MemlockBytes, _ = info.Memlock()
	out.VerifiedInstructions, _ = info.VerifiedInstructions()
	out.Maps = []uint32{}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		out.Maps = append(out.Maps, uint32(id))
	}
	return out, nil
}

func listMaps(ctx context.Context) ([]Map, error) {
	found := []Map{}
	err := walk(ctx, ebpf.MapGetNextID, func(id ebpf.MapID) error {
		m, err := plain.Of(ebpf.NewMapFromID(id))
		if err != nil {
			return err
		}
		defer m.Close()
		info, err := plain.Of(m.Info())
		if err != nil {
			return err
		}
		out := Map{ID: uint32(id), Type: info.Type.String(), Name: info.Name, KeySize: info.KeySize, ValueSize: info.ValueSize,
			MaxEntries: info.MaxEntries, Flags: info.Flags, Frozen: info.Frozen()}
		out.MemlockBytes, _ = info.Memlock()
		found = append(found, out)
		return nil
	})
	return found, err
}
