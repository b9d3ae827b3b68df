package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestPinsThatAreMadeAreWatched has two applications come, of which the second may be attached while the agent does not follow pins.
func TestPinsThatAreMadeAreWatched(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	o := w.Options()
	o.SweepInterval = time.Hour
	a, stop := w.Run(o)
	defer stop()
	for _, name := range []string{"first", "second"} {
		p := w.Intent(name, "raw_tp_count", world.RawProgram())
		w.Give(a, p)
		dir := filepath.Join(w.BPFFS, p.UID, "+links")
		world.Until(t, "the pins of "+name+" to be watched", time.Minute, func() bool { return isWatched(t, dir) })
	}
}

// isWatched reports whether this process has an inotify watch of a directory (proc_pid_fdinfo(5)).
func isWatched(t *testing.T, dir string) bool {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	all, err := filepath.Glob("/proc/self/fdinfo/*")
	world.Must(t, err)
	for _, one := range all {
		// One that was closed meanwhile is none.
		body, _ := os.ReadFile(one)
		for line := range strings.Lines(string(body)) {
			if strings.HasPrefix(line, "inotify ") && strings.Contains(line, fmt.Sprintf(" ino:%x ", world.Inode(t, dir))) {
				return true
			}
		}
	}
	return false
}
