package policies

import (
	"errors"
	"strings"
	"testing"

	"github.com/skep-dev/skep/confined"
)

// TestAWorkerWithoutThreadsIsNoFaultOfAPolicy has two that ended by a crash of the Go runtime.
func TestAWorkerWithoutThreadsIsNoFaultOfAPolicy(t *testing.T) {
	for errno, c := range map[string]struct {
		fault bool
		says  string
	}{
		"11": {false, "no more processes and threads may be made here"},
		"12": {true, "failed to create new OS thread"},
	} {
		said := "runtime: failed to create new OS thread (have 5 already; errno=" + errno + ")\nfatal error: newosproc\n"
		e := &endedError{Death: confined.Death{Err: errors.New("exit status 2"), Said: said}, begun: true}
		if e.exhausted() != c.fault || !strings.Contains(e.Error(), c.says) {
			t.Errorf("errno %s: it is the fault of the policy: %v, and says %s", errno, e.exhausted(), e)
		}
	}
}
