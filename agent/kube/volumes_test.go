package kube_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/kube"
)

func TestBpfmansPodsNeedPins(t *testing.T) {
	for _, node := range []agent.Options{{StateDir: "/state", VolumePins: true}, {StateDir: "/state", Mounter: "/socket"}} {
		o := kube.Options{NodeName: "node1", Config: &rest.Config{}, TrustFile: "/trust", BpfmanVolumes: true, Node: node}
		if _, err := kube.New(o); err == nil || !strings.Contains(err.Error(), "--volume-bpfman") {
			t.Errorf("with %+v it says %v", node, err)
		}
	}
}
