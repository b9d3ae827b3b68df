// Package containers says which containers run on this node, whose they are, and where
// they are: their process, their cgroup, their network namespace, their files.
//
// It asks the container runtime over CRI, and believes nothing of the answer that the kernel
// does not confirm: a container's process has to be in the container's cgroup. It asks no API
// server. A second source has the units of systemd and plain cgroups, for hosts without
// Kubernetes. The package attaches nothing, and decides nothing about what is chosen.
//
// A Source reads beside its caller. It begins when somebody first asks for a Snapshot, and ends
// after some minutes without a request. A runtime that is away takes no container away: a
// container leaves the Snapshot when its process ended.
//
// Size: what the runtime says, over CRI and NRI, is compared with what the kernel shows, and both
// sources fill one state. A part of it alone would say what nothing has confirmed.
package containers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/pods/process"
)

// Container is one running container, of any kind: init and sidecar containers too. The
// zero value is no container.
type Container struct {
	// ID is the runtime's, unique among all lives of all containers. A container that is
	// restarted is another one.
	ID string
	// Name is the container's in its Pod.
	Name string
	// Pod is the one that the runtime made the container in.
	Pod Pod
	// Process is the container's first process, which the runtime started, and the way to its
	// files and namespaces: Root, NetworkNamespace.
	process.Process
	// CgroupPath is the container's cgroup below the mount of cgroup2, without a slash at
	// its begin or end.
	CgroupPath string
	// CgroupID is the cgroup's inode number, which is its id for the kernel.
	CgroupID uint64
	// Image is the reference by which the image was asked for, or where the runtime keeps
	// none, the image's id.
	Image string
}

// Pod is a group of containers. What identifies it is the metadata that the runtime got
// with the pod's sandbox, which labels and annotations cannot change.
type Pod struct {
	// UID, Namespace and Name are those that the kubelet gave the sandbox: the API server's
	// object has them, too, but for the UID of a static pod, which is a hash of its file.
	UID, Namespace, Name string
	// Labels are the pod's when its sandbox was made. A later change in the API server does
	// not reach them. Shared by all copies: not to be changed.
	Labels map[string]string
	// IsCut reports that the pod has more labels than are kept. Those that selectors name are
	// among Labels.
	IsCut bool
	// SandboxID is the runtime's.
	SandboxID string
	// Sandbox is the process that holds the pod's namespaces. It has PID 0 where the
	// runtime keeps none.
	Sandbox process.Process
	// HostNetwork reports that the pod's network namespace is the node's.
	HostNetwork bool
	// NetnsID is the inode number of the pod's network namespace: the sandbox's, and where
	// that has no process, the one of the first container that was seen. 0 is unknown.
	NetnsID uint64
	// CgroupPath and CgroupID are the pod's cgroup, above those of its containers, as
	// Container has them. They are empty where the pod has none of its own: where the name of
	// the cgroup above does not have the pod's UID in it.
	CgroupPath string
	CgroupID   uint64
}

// Source tells which containers run. Its methods may be called from any goroutine.
type Source interface {
	// Snapshot returns the containers that run, without waiting for anything. The Snapshot
	// is never nil. An error says why it may be incomplete or old: ErrNotRead before the
	// first answer, an *AwayError while the runtime does not answer. The containers in the
	// Snapshot run all the same, and none that was in one before is absent for the error. Where
	// there was no answer yet, the Snapshot is empty and not whole.
	Snapshot() (*Snapshot, error)
	// Close ends all work and waits for its end.
	Close() error
}

// ErrNotRead is the error of a Snapshot before the first answer, and again after
// Options.IdleAfter without a caller. The Snapshot has no container then, which says nothing
// about those that run.
var ErrNotRead = errors.New("read containers: the first answer is not there yet")

// ErrClosed is the error of a Snapshot of a closed Source.
var ErrClosed = errors.New("read containers: the source is closed")

// AwayError is the error of a runtime that does not answer, or not as it should.
type AwayError struct {
	// Endpoint is the runtime's socket, or the mount of cgroup2.
	Endpoint string
	// Since is when the first call failed.
	Since time.Time
	// Err is why the last one did.
	Err error
}

// Error implements error.
func (a *AwayError) Error() string {
	return fmt.Sprintf("read containers of %s: no valid answer since %s: %v", a.Endpoint, a.Since.UTC().Format(time.RFC3339), a.Err)
}

// Unwrap returns the cause.
func (a *AwayError) Unwrap() error { return a.Err }

// Skipped is a container, or a pod's sandbox, that the runtime says runs, and that is left
// out. It is looked at again within ten seconds.
type Skipped struct {
	// ID is the container's, or the sandbox's.
	ID string
	// Pod has what is known of its pod: nothing, or all but the processes and cgroups.
	Pod Pod
	// Reason is why, for programs; Err for people.
	Reason Reason
	Err    error
}

// Reason is why a container is left out.
type Reason string

// The reasons.
const (
	// NoAnswer: the runtime returned an error for the container alone.
	NoAnswer Reason = "NoAnswer"
	// Malformed: the answer has no process, no identity, or is too large.
	Malformed Reason = "Malformed"
	// NoProcess: the process is not there. It has ended, or it is in another PID namespace.
	NoProcess Reason = "NoProcess"
	// OtherCgroup: the process is not in the container's cgroup.
	OtherCgroup Reason = "OtherCgroup"
	// NoCgroup: the container's cgroup is not below the mount of cgroup2.
	NoCgroup Reason = "NoCgroup"
	// NoSandbox: the container's pod is left out.
	NoSandbox Reason = "NoSandbox"
	// Unreadable: the kernel does not let this process look.
	Unreadable Reason = "Unreadable"
)

// Snapshot is the containers at one time. It does not change.
type Snapshot struct {
	// containers are ordered by namespace, pod, name and ID.
	containers []Container
	byID       map[string]int
	pods       []Pod
	skipped    []Skipped
	partial    bool
}

// NewSnapshot returns the Snapshot of the containers and of the pods that have none; those of
// the containers are added. It is for Sources of other packages, and for tests.
func NewSnapshot(containers []Container, pods ...Pod) *Snapshot {
	s := &Snapshot{containers: slices.Clone(containers), byID: make(map[string]int, len(containers))}
	slices.SortFunc(s.containers, func(a, b Container) int {
		return cmp.Or(comparePods(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	seen := make(map[string]bool, len(pods))
	add := func(p Pod) {
		if !seen[p.SandboxID] {
			seen[p.SandboxID] = true
			s.pods = append(s.pods, p)
		}
	}
	for i, c := range s.containers {
		s.byID[c.ID] = i
		add(c.Pod)
	}
	for _, p := range pods {
		add(p)
	}
	slices.SortFunc(s.pods, comparePods)
	return s
}

// LeavingOut returns the Snapshot with these left out. It is for Sources of other packages, and for tests.
func (s *Snapshot) LeavingOut(skipped ...Skipped) *Snapshot {
	changed := *s
	changed.skipped = skipped
	return &changed
}

func comparePods(a, b Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.SandboxID, b.SandboxID))
}

// IsWhole reports whether the whole list was read once, since when the Snapshot has followed
// it. What is absent from one that is not whole may run all the same.
func (s *Snapshot) IsWhole() bool { return !s.partial }

// IsOfUnits reports whether the pods are units and cgroups of a host, which are in no namespace.
func (s *Snapshot) IsOfUnits() bool { return len(s.pods) > 0 && s.pods[len(s.pods)-1].Namespace == "" }

// Pods are all, by namespace and name; those without a container too. The slice is shared:
// not to be changed.
func (s *Snapshot) Pods() []Pod { return s.pods }

// Skipped are the containers and sandboxes that are left out, by ID. The slice is shared: not
// to be changed.
func (s *Snapshot) Skipped() []Skipped { return s.skipped }

// Has reports whether the container with the ID is there. A nil Snapshot has none.
func (s *Snapshot) Has(id string) bool {
	if s == nil {
		return false
	}
	_, ok := s.byID[id]
	return ok
}

// Container returns the one with the ID.
func (s *Snapshot) Container(id string) (Container, bool) {
	i, ok := s.byID[id]
	if !ok {
		return Container{}, false
	}
	return s.containers[i], true
}

// Of returns the containers of the pod in its present life, by name.
func (s *Snapshot) Of(p Pod) []Container {
	i, _ := slices.BinarySearchFunc(s.containers, p, func(c Container, p Pod) int { return comparePods(c.Pod, p) })
	end := i
	for end < len(s.containers) && s.containers[end].Pod.SandboxID == p.SandboxID {
		end++
	}
	return s.containers[i:end:end]
}
