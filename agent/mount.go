package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/skep-dev/skep/atomicfile"
)

// bootID changes with every start of the machine; see random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// noteMount writes down which bpf file system holds the pins, and tells
// whether it was another one earlier in this boot: then what was pinned there
// runs on out of this agent's reach, and what it loads now runs beside it.
func (c *cache) noteMount(boot string, device uint64) (other bool, err error) {
	path := c.sub(mountFile)
	now := fmt.Sprintf("%s %d", strings.TrimSpace(boot), device)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read which file system held the pins: %w", err)
	}
	if string(before) == now {
		return false, nil
	}
	if err := atomicfile.WriteUnsynced(path, []byte(now)); err != nil {
		return false, fmt.Errorf("note which file system holds the pins: %w", err)
	}
	was, _, _ := strings.Cut(string(before), " ")
	return was == strings.TrimSpace(boot), nil
}

// checkMount warns of a second bpf file system.
func (a *Agent) checkMount() error {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	device, err := a.store.Device()
	if err != nil {
		return err
	}
	other, err := a.cache.noteMount(string(boot), device)
	if other {
		a.opts.Log.Warn("another bpf file system held the pins earlier in this boot; what it holds runs on beside what is loaded now. Unmount the one too many, and start again",
			"path", a.store.Root())
	}
	return err
}
