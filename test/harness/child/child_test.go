package child_test

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/skep-dev/skep/test/harness/child"
)

// TestAChildOutlivesThreads ends many threads while children run. Started by exec alone with Pdeathsig, most of these
// would be killed with the thread that started them.
func TestAChildOutlivesThreads(t *testing.T) {
	const children, threads = 20, 200
	all := make([]*exec.Cmd, children)
	for i := range all {
		all[i] = exec.Command("sh", "-c", "read line")
		stdin, err := all[i].StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(all[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = stdin.Write([]byte("end\n"))
			if err := all[i].Wait(); err != nil {
				t.Errorf("child %d: %v", i, err)
			}
		})
	}
	var ended sync.WaitGroup
	begin := make(chan struct{})
	for range threads {
		ended.Go(func() {
			<-begin
			runtime.LockOSThread()
		})
	}
	close(begin)
	ended.Wait()
}

func TestWhatDoesNotStartIsAnError(t *testing.T) {
	if err := child.Start(exec.Command("/nowhere")); err == nil {
		t.Error("it started")
	}
	if err := child.Run(exec.Command("false")); err == nil {
		t.Error("it ended well")
	}
}
