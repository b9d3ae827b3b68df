package agent_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) {
	world.MaybeChild()
	if os.Getenv(busyFile) != "" {
		fmt.Fprintln(os.Stderr, beBusy())
		os.Exit(1)
	}
	if isBehindDoor = os.Getenv(behindDoor) != ""; isBehindDoor {
		// Processes that tests start are others.
		_ = os.Unsetenv(behindDoor)
		os.Exit(m.Run())
	}
	events.MaybeChild()
	tasks.Main(m)
}

func TestOneProgramLoadsSurvivesAndGoes(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "sk0", "sk1")
	a, stop := w.Start()
	p := w.Intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "sk0")})
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	before := a.Status()
	if len(before) != 1 || len(before[0].Programs) != 1 || len(before[0].Programs[0].Links) != 1 || before[0].Programs[0].ID == 0 {
		t.Fatalf("Status = %+v", before)
	}
	stop()

	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	after := a.Status()
	if after[0].Programs[0].ID != before[0].Programs[0].ID || after[0].Programs[0].Links[0].ID != before[0].Programs[0].Links[0].ID {
		t.Errorf("the restarted agent did not adopt: %+v then %+v", before, after)
	}
	tomb := intent.Payload{Application: p.Application, UID: p.UID, Serial: p.Serial + 1, Tombstone: true, Reason: "gone from git"}
	if err := w.Accept(a, tomb); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(w.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("left behind: %s", e.Name())
	}
}
