package targets

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/agent/containers"
	"github.com/skep-dev/skep/agent/guard"
	"github.com/skep-dev/skep/agent/netns"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Pods are the pods of the node, as they are known when a reconcile begins. The zero value is
// that of an agent to which nobody tells its pods.
type Pods struct {
	// Snapshot has them; nil where nobody tells.
	Snapshot *containers.Snapshot
	// Err says why they are not known now, as before the container runtime has answered.
	Err error
	// Before has the pods of the last reconcile, where this one follows changes alone: of pods that
	// are in both, what the last one found counts. Nil in a full one.
	Before *containers.Snapshot
	// NamespaceLabels returns the labels of a namespace; false where they are not known. Nil
	// knows none but kubernetes.io/metadata.name.
	NamespaceLabels func(namespace string) (map[string]string, bool)
}

// labelNamespace is the label that the API server gives each namespace (corev1.LabelMetadataName).
const labelNamespace = "kubernetes.io/metadata.name"

// ErrNoPods is the error of an attachment in pods on a node whose agent is not told its pods.
var ErrNoPods = errors.New("this agent does not know the node's pods: set agent.pods.enabled of the chart, or --container-runtime-endpoint")

// check fails with ErrNoPods, or with ErrNotKnown.
func (p Pods) check() error {
	switch {
	case p.Err != nil:
		return fmt.Errorf("%w: %w", ErrNotKnown, p.Err)
	case p.Snapshot == nil:
		return ErrNoPods
	}
	return nil
}

// unchanged returns the ids of the sandboxes of the pods whose containers are the same as in the
// reconcile before, and the inodes of their network namespaces; nothing in a full reconcile.
func (p Pods) unchanged() (sandboxes map[string]bool, netns map[uint64]bool) {
	if p.Before == nil || p.Snapshot == nil {
		return nil, nil
	}
	before := make(map[string]containers.Pod, len(p.Before.Pods()))
	for _, pod := range p.Before.Pods() {
		before[pod.SandboxID] = pod
	}
	sandboxes, netns = make(map[string]bool, len(before)), make(map[uint64]bool, len(before))
	for _, pod := range p.Snapshot.Pods() {
		was, known := before[pod.SandboxID]
		same := known && was.NetnsID == pod.NetnsID && was.Sandbox == pod.Sandbox && was.CgroupID == pod.CgroupID &&
			slices.EqualFunc(p.Before.Of(was), p.Snapshot.Of(pod), func(a, b containers.Container) bool {
				return a.ID == b.ID && a.Process == b.Process && a.CgroupID == b.CgroupID
			})
		if same {
			sandboxes[pod.SandboxID], netns[pod.NetnsID] = true, true
		}
	}
	return sandboxes, netns
}

// choose returns the pods that an attachment of an application is for. An application of a
// namespace is for pods of its own namespace alone, whatever its definition says.
func (p Pods) choose(application v1alpha1.Identity, at v1alpha1.Attachment) ([]containers.Pod, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	selector, err := selectorOf(at.Pods.Selector)
	if err != nil {
		return nil, err
	}
	namespaces, err := selectorOf(at.Pods.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	var chosen []containers.Pod
	for _, pod := range p.Snapshot.Pods() {
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		is := pod.Namespace == application.Namespace
		if application.Kind != v1alpha1.KindBpfApplication {
			if is, err = p.inNamespaces(pod.Namespace, namespaces); err != nil {
				return nil, err
			}
		}
		if is {
			chosen = append(chosen, pod)
		}
	}
	return chosen, nil
}

// inNamespaces reports whether a selector chooses a namespace.
func (p Pods) inNamespaces(name string, selector labels.Selector) (bool, error) {
	if selector.Empty() {
		return true, nil
	}
	has := labels.Set{labelNamespace: name}
	if p.NamespaceLabels != nil {
		all, known := p.NamespaceLabels(name)
		if !known {
			return false, fmt.Errorf("%w: the labels of namespace %s are not known", ErrNotKnown, name)
		}
		has = labels.Merge(all, has)
	}
	return selector.Matches(has), nil
}

// selectorOf reads a selector of a definition; none chooses everything.
func selectorOf(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("read selector of pods: %w", err)
	}
	return selector, nil
}

// containersOf returns the containers of a pod that an attachment is for.
func (p Pods) containersOf(pod containers.Pod, at v1alpha1.Attachment) []containers.Container {
	all := slices.Clone(p.Snapshot.Of(pod))
	return slices.DeleteFunc(all, func(c containers.Container) bool {
		return len(at.Pods.Containers) > 0 && !slices.ContainsFunc(at.Pods.Containers, func(pattern string) bool {
			is, err := path.Match(pattern, c.Name)
			return err == nil && is
		})
	})
}

// Namespaces are the network namespaces of the pods, and which of them an attachment is for.
// Pods that share the node's network have none.
func (p Pods) Namespaces() Namespaces {
	n := Namespaces{Err: p.Err, Choose: func(application v1alpha1.Identity, at v1alpha1.Attachment) (ids []uint64, ok bool, err error) {
		if at.Pods == nil {
			return nil, false, nil
		}
		pods, err := p.choose(application, at)
		for _, pod := range pods {
			if hasNetwork(pod) {
				ids = append(ids, pod.NetnsID)
			}
		}
		return ids, true, err
	}}
	if p.Snapshot == nil {
		return n
	}
	for _, pod := range p.Snapshot.Pods() {
		if !hasNetwork(pod) {
			continue
		}
		n.All = append(n.All, netns.Namespace{ID: pod.NetnsID, In: describePod(pod), Open: func() (*os.File, error) { return p.openNetwork(pod) }})
	}
	return n
}

func hasNetwork(pod containers.Pod) bool { return pod.NetnsID != 0 && !pod.HostNetwork }

// openNetwork opens the network namespace of a pod.
func (p Pods) openNetwork(pod containers.Pod) (*os.File, error) {
	of := pod.Sandbox
	if all := p.Snapshot.Of(pod); of.PID == 0 && len(all) > 0 {
		of = all[0].Process
	}
	file, id, err := of.NetworkNamespace()
	if err == nil && id != pod.NetnsID {
		err = errors.Join(netns.ErrGone, file.Close())
	}
	return file, err
}

// describePod says in which pod a target is; a unit of a host is in no namespace.
func describePod(pod containers.Pod) string {
	if pod.Namespace == "" {
		return pod.Name
	}
	return "pod " + pod.Namespace + "/" + pod.Name
}

func describeContainer(c containers.Container) string {
	if c.Name == c.Pod.Name {
		return describePod(c.Pod)
	}
	return describePod(c.Pod) + " container " + c.Name
}

// inPods returns the attachments of a definition in the pods that it chooses. Where it chooses
// none there are none, which is no error.
func (r *Round) inPods(base plan.Attachment, h hook.Hook, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	if err := r.pods.check(); err != nil && !errors.Is(err, ErrNotKnown) {
		return nil, err
	}
	if h.Shape == hook.NetworkDevice {
		return r.OnInterfaces(base, at)
	}
	pods, err := r.pods.choose(base.Application, at)
	if err != nil {
		return nil, err
	}
	var all []plan.Attachment
	for _, one := range r.placesIn(pods, base, h, at) {
		found, err := r.expand(one, h, at)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// placesIn returns an attachment for each place that a hook has in pods: of cgroups, network
// namespaces and files those of each pod or container, and of all others one, whose programs
// are guarded.
func (r *Round) placesIn(pods []containers.Pod, base plan.Attachment, h hook.Hook, at v1alpha1.Attachment) []plan.Attachment {
	var all []plan.Attachment
	add := func(change func(*plan.Target)) {
		one := base
		change(&one.Target)
		all = append(all, one)
	}
	for _, pod := range pods {
		switch {
		case h.Shape == hook.NetworkNamespace && hasNetwork(pod):
			add(func(t *plan.Target) { t.NetnsID, t.In = pod.NetnsID, describePod(pod) })
		case h.Shape == hook.NetworkNamespace:
		case h.Shape == hook.Cgroup && len(at.Pods.Containers) == 0 && pod.CgroupID != 0:
			add(func(t *plan.Target) { t.Cgroup, t.CgroupID, t.In = "/"+pod.CgroupPath, pod.CgroupID, describePod(pod) })
		case h.Shape == hook.Cgroup:
			for _, c := range r.pods.containersOf(pod, at) {
				add(func(t *plan.Target) { t.Cgroup, t.CgroupID, t.In = "/"+c.CgroupPath, c.CgroupID, describeContainer(c) })
			}
		case h.Shape == hook.UserBinary:
			for _, c := range r.pods.containersOf(pod, at) {
				add(func(t *plan.Target) { t.Container, t.In = c.ID, describeContainer(c) })
			}
		case len(all) == 0:
			add(func(*plan.Target) {})
		}
	}
	return all
}

// Members returns the cgroups of the pods that an attachment is for, or of their containers
// where it chooses some. One that is gone meanwhile is left out. It fails with ErrNotKnown
// where they are not known now.
func (r *Round) Members(application v1alpha1.Identity, at v1alpha1.Attachment) ([]guard.Member, error) {
	pods, err := r.pods.choose(application, at)
	if err != nil {
		return nil, err
	}
	if r.hierarchy == nil {
		found, err := guard.FindHierarchy(r.host.CgroupRoot)
		if err != nil {
			return nil, fmt.Errorf("find cgroups of pods: %w", err)
		}
		r.hierarchy = &found
	}
	var members []guard.Member
	add := func(cgroup string, id uint64) {
		m, known := r.members[id]
		if !known {
			// The id of a cgroup is never used again, and a cgroup never gets another parent.
			found, err := r.hierarchy.Member(filepath.Join(r.host.CgroupRoot, cgroup))
			if err != nil || found.CgroupID != id {
				return
			}
			m = found
		}
		r.soughtMembers[id] = m
		members = append(members, m)
	}
	for _, pod := range pods {
		if len(at.Pods.Containers) == 0 && pod.CgroupID != 0 {
			add(pod.CgroupPath, pod.CgroupID)
			continue
		}
		for _, c := range r.pods.containersOf(pod, at) {
			add(c.CgroupPath, c.CgroupID)
		}
	}
	slices.SortFunc(members, func(a, b guard.Member) int { return cmp.Compare(a.CgroupID, b.CgroupID) })
	return members, nil
}
