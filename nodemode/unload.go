package nodemode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
)

// Unloaded is what Unload did.
type Unloaded struct {
	// Gone were Skep's programs and are in the kernel no more.
	Gone []inventory.Program
	// Left are still in the kernel: another pin or process holds them.
	Left []inventory.Program
}

// freed is how long the kernel may take to free a program that nothing holds.
const freed = 2 * time.Second

// Unload removes every program, link and pin of Skep's on this host, and the intents that would
// load them at the next start. The readers' folders below maps go, too. It looks in the kernel whether they are gone. Of state it keeps
// keys and caches. It fails, and unloads nothing, while a Host runs on state or on bpffs.
func Unload(ctx context.Context, state, bpffs, maps string) (Unloaded, error) {
	unlock, err := lockUnused(state)
	if err != nil {
		return Unloaded{}, fmt.Errorf("unload: %w", err)
	}
	defer unlock()
	before, err := managed(ctx, bpffs)
	if err != nil {
		return Unloaded{}, fmt.Errorf("unload: %w", err)
	}
	agentState := filepath.Join(state, agentFolder)
	if _, err = os.Stat(bpffs); errors.Is(err, fs.ErrNotExist) {
		err = agent.RemoveState(agentState)
	} else {
		err = agent.Cleanup(bpffs, agentState)
	}
	if err == nil {
		err = errors.Join(agent.RemoveReaders(maps), forget(state))
	}
	if err != nil {
		return Unloaded{}, fmt.Errorf("unload: %w", err)
	}
	// A folder that holds files of others stays.
	_ = os.Remove(bpffs)
	return await(ctx, bpffs, before)
}

// lockUnused holds the lock of a state folder. A folder that is not there has none.
func lockUnused(state string) (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(state, lockFile), os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return func() {}, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: run the command as the user of skep run, which is root in general", err)
	case err != nil:
		return nil, err
	}
	if err := alone(lock); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("state %s: %w; stop it first", state, err)
	}
	return func() { _ = lock.Close() }, nil
}

// alone has this process alone use a state folder.
func alone(lock *os.File) error {
	err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("another skep run uses it")
	}
	return err
}

// list is what is in the kernel; the BPF file system is that of bpffs.
func list(ctx context.Context, bpffs string) ([]inventory.Program, error) {
	o := inventory.Options{Managed: bpffs}
	if !strings.HasPrefix(bpffs, "/sys/fs/bpf/") {
		o.BPFFS = bpffs
	}
	all, err := inventory.List(ctx, o)
	return all.Programs, err
}

// managed are Skep's programs.
func managed(ctx context.Context, bpffs string) ([]inventory.Program, error) {
	all, err := list(ctx, bpffs)
	return slices.DeleteFunc(all, func(p inventory.Program) bool { return !p.Managed }), err
}

// await waits until the kernel has freed the programs, and says which it has not.
func await(ctx context.Context, bpffs string, before []inventory.Program) (Unloaded, error) {
	enough := time.NewTimer(freed)
	defer enough.Stop()
	for {
		now, err := list(ctx, bpffs)
		if err != nil {
			return Unloaded{}, fmt.Errorf("unload: look whether it is done: %w", err)
		}
		var u Unloaded
		for _, p := range before {
			at := slices.IndexFunc(now, func(q inventory.Program) bool { return q.ID == p.ID })
			if at < 0 {
				u.Gone = append(u.Gone, p)
			} else {
				u.Left = append(u.Left, now[at])
			}
		}
		if len(u.Left) == 0 {
			return u, nil
		}
		select {
		case <-ctx.Done():
			return u, ctx.Err()
		case <-enough.C:
			return u, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
