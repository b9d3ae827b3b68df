package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/pods/containers"
)

func TestAnAgentInAPIDNamespaceOfItsOwnSaysSo(t *testing.T) {
	for pid, want := range map[int]bool{1: true, 4711: false} {
		var said bytes.Buffer
		containers.WarnOfOwnPIDs(slog.New(slog.NewTextHandler(&said, nil)), pid)
		if got := strings.Contains(said.String(), "hostPID"); got != want {
			t.Errorf("process %d: %s", pid, &said)
		}
	}
}

func TestAnEndpointIsTheSocketsPath(t *testing.T) {
	for endpoint, valid := range map[string]bool{
		"unix:///run/containerd/containerd.sock": true, "/run/crio/crio.sock": true, "run/crio.sock": false, "tcp://127.0.0.1:1": false,
	} {
		s, err := Options{CgroupRoot: "/sys/fs/cgroup"}.RuntimeContainers(endpoint, "")(func(...containers.Pod) {})
		if (err == nil) != valid {
			t.Errorf("%s: %v", endpoint, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
