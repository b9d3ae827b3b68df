package containers

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestAnAgentInAPIDNamespaceOfItsOwnSaysSo(t *testing.T) {
	for pid, want := range map[int]bool{1: true, 4711: false} {
		var said bytes.Buffer
		WarnOfOwnPIDs(slog.New(slog.NewTextHandler(&said, nil)), pid)
		if got := strings.Contains(said.String(), "hostPID"); got != want {
			t.Errorf("process %d: %s", pid, &said)
		}
	}
}
