package volumes_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
)

// TestAMounterThatHangsHoldsUpNoSocket takes grants back while the mounter answers nothing: each volume waits for it as long as it may,
// and all sockets have ended before that.
func TestAMounterThatHangsHoldsUpNoSocket(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	pods := []volumes.Request{n.mounts(n.ofCluster("web", "a")), n.mounts(n.ofCluster("web", "b")), n.mounts(n.ofCluster("web", "c"))}
	n.stopMounter()
	l, err := mounter.Listen(n.socket)
	world.Must(t, err)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	for _, r := range pods {
		// One volume's wait for the mounter is 20 seconds.
		world.Until(t, "the socket of "+r.At.String()+" to end it", 15*time.Second, func() bool { _, err := n.answers(r); return err != nil })
	}
	world.Must(t, l.Close())
	n.startMounter()
	for _, r := range pods {
		n.lists(r, "")
	}
}
