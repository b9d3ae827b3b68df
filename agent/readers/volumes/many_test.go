package volumes_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/skep-dev/skep/agent/readers/csi"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/reader"
)

// crowd are how many pods have their volumes mounted at once.
const crowd = 200

// TestAThousandVolumesLeaveTheMountTableAsItWas has the kubelet's calls mount and unmount the volumes of a crowd at once, five times.
func TestAThousandVolumesLeaveTheMountTableAsItWas(t *testing.T) {
	n := newNode(t)
	namespaces := []string{"web", "shop", "plain", "other"}
	var grants []v1alpha1.MapExport
	for _, namespace := range namespaces {
		grants = append(grants, to(v1alpha1.MapRead, namespace))
	}
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", grants...)))
	kubelet := n.kubelet()
	var all []volumes.Request
	for i := range crowd {
		all = append(all, n.ofCluster(namespaces[i%len(namespaces)], "reader"))
	}
	before := mounts(t)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	var mounted, unmounted time.Duration
	for range rounds {
		mounted += n.atOnce(all, func(r volumes.Request) error {
			_, err := kubelet.NodePublishVolume(t.Context(), n.publish(r))
			return err
		})
		if more := mounts(t) - before; more < crowd {
			t.Fatalf("%d volumes are %d mounts", crowd, more)
		}
		n.lists(all[crowd-1], "Read")
		unmounted += n.atOnce(all, func(r volumes.Request) error {
			_, err := kubelet.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-" + r.At.Pod, TargetPath: n.path(r)})
			return err
		})
		if after := mounts(t); after != before {
			t.Fatalf("there are %d mounts, and were %d", after, before)
		}
	}
	t.Logf("%d volumes at once were mounted in %v and unmounted in %v", crowd, mounted/time.Duration(rounds), unmounted/time.Duration(rounds))
}

// mounts is how many there are in this namespace.
func mounts(t *testing.T) (lines int) {
	t.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	world.Must(t, err)
	for _, b := range all {
		if b == '\n' {
			lines++
		}
	}
	return lines
}

// kubelet is a client of the plug-in's socket, behind which the node's agent mounts.
func (n *node) kubelet() spec.NodeClient {
	n.t.Helper()
	dir := filepath.Dir(n.pods)
	p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: dir, Node: "node1", Version: "v1", Volumes: n.agent.Volumes(), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Serve(ctx) }()
	n.t.Cleanup(func() { cancel(); world.Must(n.t, <-done) })
	socket := filepath.Join(dir, "plugins", csi.Skep.Name, "csi.sock")
	await.True(n.t, "the plug-in's socket", time.Minute, func() bool { _, err := os.Stat(socket); return err == nil })
	c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	world.Must(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	return spec.NewNodeClient(c)
}

// publish is what the kubelet asks for a pod.
func (n *node) publish(r volumes.Request) *spec.NodePublishVolumeRequest {
	return &spec.NodePublishVolumeRequest{
		VolumeId: "csi-" + r.At.Pod, TargetPath: n.path(r),
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{
			Mount: &spec.VolumeCapability_MountVolume{VolumeMountGroup: fmt.Sprint(reader.ID)},
		}},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.name": "pod", "csi.storage.k8s.io/pod.namespace": r.Namespace, "csi.storage.k8s.io/pod.uid": r.At.Pod,
			"csi.storage.k8s.io/serviceAccount.name": r.ServiceAccount, "csi.storage.k8s.io/ephemeral": "true", "clusterApplication": r.Application.Name,
		},
	}
}

// atOnce does something for each volume, all at once, and returns how long all took.
func (n *node) atOnce(all []volumes.Request, do func(volumes.Request) error) time.Duration {
	n.t.Helper()
	began := time.Now()
	errs := make(chan error)
	for _, r := range all {
		go func() { errs <- do(r) }()
	}
	var failed []error
	for range all {
		if err := <-errs; err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		n.t.Fatalf("%d of %d failed, such as: %v", len(failed), len(all), failed[0])
	}
	return time.Since(began)
}
