package containers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/nri/pkg/api"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/process"
)

// The bounds of an answer of the runtime. The kubelet's is 16 MiB for a message, too.
const (
	maxMessage    = 16 << 20
	maxContainers = 4096
	// maxName is for an id or a name, in bytes; maxLabels for the labels of a pod, keys and
	// values together.
	maxName   = 512
	maxLabels = 16 << 10
)

// details are what a runtime says beyond the CRI, in JSON, where it is asked for more
// ("verbose"). containerd and CRI-O have these names.
type details struct {
	PID         int    `json:"pid"`
	SandboxID   string `json:"sandboxID"`
	RuntimeSpec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

// parseDetails reads the key "info" of a verbose status. PID is 0 where the runtime has no
// process for it.
func parseDetails(info map[string]string) (details, error) {
	text, ok := info["info"]
	if !ok {
		return details{}, errors.New("parse info: the runtime added none to the status")
	}
	var d details
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return details{}, fmt.Errorf("parse info: %w", err)
	}
	if d.PID < 0 || d.PID > process.MaxPID {
		return details{}, fmt.Errorf("parse info: %d is not the id of a process", d.PID)
	}
	if len(d.SandboxID) > maxName || len(d.RuntimeSpec.Linux.CgroupsPath) > 4096 {
		return details{}, errors.New("parse info: a path or an id is too long")
	}
	return d, nil
}

// checkID fails for an id that no runtime gives. Cgroups are named for ids.
func checkID(id string) error {
	if id == "" || len(id) > maxName || strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-") != "" ||
		strings.Trim(id, ".") == "" {
		return fmt.Errorf("check id %.64q: it is not one of a container", id)
	}
	return nil
}

// Labels of the pod's sandbox that the kubelet adds to those of the pod. They repeat the
// metadata, which counts.
const kubeletLabels = "io.kubernetes.pod."

// podOf reads a pod of its sandbox's status. Processes and cgroups are not in it.
func podOf(status *cri.PodSandboxStatus, labels *kept) (Pod, error) {
	m := status.GetMetadata()
	p := Pod{UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), SandboxID: status.GetId(),
		HostNetwork: status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE}
	for _, name := range []string{p.UID, p.Namespace, p.Name} {
		if name == "" || len(name) > maxName {
			return p, fmt.Errorf("read sandbox: its uid, namespace or name is absent or has more than %d bytes", maxName)
		}
	}
	p.Labels, p.IsCut = labels.of(status.GetLabels())
	return p, checkID(p.SandboxID)
}

// listedPod is a pod of which no more than its metadata is known.
func listedPod(m *cri.PodSandboxMetadata) Pod {
	return Pod{UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName()}
}

// containerOf reads a container of its status. Its pod, process and cgroup are not in it.
func containerOf(status *cri.ContainerStatus) (Container, error) {
	c := Container{ID: status.GetId(), Name: status.GetMetadata().GetName(),
		Image: cmp.Or(status.GetImage().GetUserSpecifiedImage(), status.GetImage().GetImage(), status.GetImageRef())}
	if c.Name == "" || len(c.Name) > maxName || len(c.Image) > 4*maxName {
		return c, errors.New("read container: its name is absent, or its name or image is too long")
	}
	return c, checkID(c.ID)
}

// announcedOf reads the container that NRI says is about to start. Of its process it has the id
// alone, and of cgroups and networks nothing.
func announcedOf(q *api.StartContainerRequest, labels *kept) (Container, error) {
	of, pod := q.GetContainer(), q.GetPod()
	status := &cri.PodSandboxStatus{Id: pod.GetId(), Labels: pod.GetLabels(),
		Metadata: &cri.PodSandboxMetadata{Uid: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()}}
	c := Container{ID: of.GetId(), Name: of.GetName()}
	var err error
	if c.Pod, err = podOf(status, labels); err != nil {
		return c, err
	}
	if pid := of.GetPid(); pid == 0 || pid > process.MaxPID {
		return c, fmt.Errorf("read container %.64q: it was announced with the process %d", c.ID, pid)
	}
	if of.GetPodSandboxId() != c.Pod.SandboxID {
		return c, fmt.Errorf("read container %.64q: it was announced with the sandboxes %.64q and %.64q", c.ID, c.Pod.SandboxID, of.GetPodSandboxId())
	}
	c.PID = int(of.GetPid())
	return c, checkID(c.ID)
}
