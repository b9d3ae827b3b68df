package hooks_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// isChild is the environment variable of a process that does what hooks see.
const isChild = "SKEP_TEST_CHILD"

// runsOn causes what a hook sees until the program ran, and fails the test if it does not.
// The program leaves its version.
func runsOn(t *testing.T, a *agent.Agent, at v1alpha1.Attachment, version uint32) {
	t.Helper()
	h, _ := hook.Lookup(at.Hook)
	world.Until(t, "the program to run on "+h.Name, 20*time.Second, func() bool {
		cause(t, a, h, at)
		return lastRun(t, a) == version
	})
}

// cause causes what the hook sees.
func cause(t *testing.T, a *agent.Agent, h hook.Hook, at v1alpha1.Attachment) {
	t.Helper()
	switch {
	case h.Shape == hook.NetworkDevice:
		events.Frame(t, "hk0")
		events.Frame(t, "hk1")
	case h.Shape == hook.Cgroup:
		events.InCgroup(t, filepath.Join(need.Cgroup(t), at.Cgroup))
	case h.Shape == hook.UserBinary:
		// What it does and how it ends is of no interest.
		cmd := exec.CommandContext(t.Context(), at.Binary.Path, "-test.run=^TestWhatIsProbed$")
		cmd.Env = append(os.Environ(), isChild+"=1")
		_ = cmd.Run()
	case at.NetworkNamespace != "":
		world.Within(t, at.NetworkNamespace, func() error {
			err := errors.Join(events.LoopbackUp(), world.SendFrame(1))
			events.Dial(t.Context(), "udp4", "127.0.0.1:9")
			return err
		})
	case h.Shape == hook.NetworkNamespace:
		if err := events.LoopbackUp(); err != nil {
			t.Fatal(err)
		}
		events.Dial(t.Context(), "udp4", "127.0.0.1:9")
	case h.Name == "raw_tp.w":
		if err := testRun(t); err != nil {
			t.Fatal(err)
		}
	case h.Name == "iter":
		_, l := world.One(t, a)
		if _, err := os.ReadFile(l.Pin); err != nil {
			t.Fatal(err)
		}
	default:
		if _, err := unix.Getpgid(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatIsProbed is no test by itself: it runs the function that hooks of a binary see.
func TestWhatIsProbed(t *testing.T) {
	if os.Getenv(isChild) == "" {
		t.Skip("it is run by other tests")
	}
	world.ProbedFunction()
}
