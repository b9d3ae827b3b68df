package agent_test

import (
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
)

func TestAnEndpointIsTheSocketsPath(t *testing.T) {
	for endpoint, valid := range map[string]bool{
		"unix:///run/containerd/containerd.sock": true, "/run/crio/crio.sock": true, "run/crio.sock": false, "tcp://127.0.0.1:1": false,
	} {
		s, err := agent.Options{CgroupRoot: "/sys/fs/cgroup"}.RuntimeContainers(endpoint, "")(func(...containers.Pod) {})
		if (err == nil) != valid {
			t.Errorf("%s: %v", endpoint, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
