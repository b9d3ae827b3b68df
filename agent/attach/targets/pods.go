package targets

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Pods are the pods of the node, as they are known when a reconcile begins. The zero value is
// that of an agent without a source of pods.
type Pods struct {
	// Snapshot has them; nil without a source.
	Snapshot *containers.Snapshot
	// Err says why they are not known now, as before the container runtime has answered.
	Err error
	// Before has the pods of the last reconcile; nil where there was none. Of pods that are in both,
	// what was found before counts.
	Before *containers.Snapshot
	// Anew: in a full reconcile, all of that is found anew: in this one or, where IsHurried reports that something
	// waits for the next, in those that follow. A nil IsHurried reports nothing.
	Anew      bool
	IsHurried func() bool
	// IsNew reports whether an intent of the application is new since the last reconcile: what it
	// names is found anew in this one. Nil is of none.
	IsNew func(v1alpha1.Identity) bool
	// NamespaceLabels tells the labels of namespaces; nil knows none but kubernetes.io/metadata.name.
	NamespaceLabels NamespaceLabels
}

// NamespaceLabels returns the labels of a namespace. They are not known where neither the API server
// has told them nor any are kept. They are not current where they were kept and the API server has
// not answered since the agent started: they may have changed before the agent could keep them. It
// must not wait.
type NamespaceLabels func(namespace string) (labels map[string]string, known, current bool)

// labelNamespace is the label that the API server gives each namespace (corev1.LabelMetadataName).
const labelNamespace = "kubernetes.io/metadata.name"

// ErrNoPods is the error of an attachment in pods on a node whose agent is not told its pods.
var ErrNoPods = errors.New("this agent does not know the node's pods: set agent.pods.enabled of the chart, or --container-runtime-endpoint")

// check fails with ErrNoPods, or with ErrNotKnown. A host without a container runtime has units and cgroups in place of pods,
// which are in no namespace.
func (p Pods) check(application v1alpha1.Identity) error {
	switch {
	case p.Err != nil:
		return fmt.Errorf("%w: %w", ErrNotKnown, p.Err)
	case p.Snapshot == nil, application.IsNamespaced() && p.Snapshot.IsOfUnits():
		return ErrNoPods
	}
	return nil
}

// unchanged returns the ids of the sandboxes of the pods whose containers are the same as in the
// reconcile before, and the inodes of their network namespaces.
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
		same := known && was.NetnsID == pod.NetnsID && was.Sandbox == pod.Sandbox && was.CgroupID == pod.CgroupID && hasLabelsOf(was, pod) &&
			slices.EqualFunc(p.Before.Of(was), p.Snapshot.Of(pod), func(a, b containers.Container) bool {
				return a.ID == b.ID && a.Process == b.Process && a.CgroupID == b.CgroupID
			})
		if same {
			sandboxes[pod.SandboxID], netns[pod.NetnsID] = true, true
		}
	}
	return sandboxes, netns
}

// isNew reports whether an intent of the application is new since the last reconcile.
func (p Pods) isNew(application v1alpha1.Identity) bool {
	return p.IsNew != nil && p.IsNew(application)
}

// hasLabelsOf reports whether a pod has the labels that it had. Only one that lacked some gets others.
func hasLabelsOf(was, is containers.Pod) bool {
	return !was.IsCut || is.IsCut && maps.Equal(was.Labels, is.Labels)
}

// choose returns the pods that an attachment of an application is for. An application of a
// namespace is for pods of its own namespace alone, whatever its definition says. Where it fails
// with ErrNotKnown it may be for the unsure ones too, which are none where no pod is known.
func (p Pods) choose(application v1alpha1.Identity, at v1alpha1.Attachment) (chosen, unsure []containers.Pod, err error) {
	if err := p.check(application); err != nil {
		return nil, nil, err
	}
	selector, err := selectorOf(at.Pods.Selector)
	if err != nil {
		return nil, nil, err
	}
	namespaces, err := selectorOf(at.Pods.NamespaceSelector)
	if err != nil {
		return nil, nil, err
	}
	var why error
	for _, pod := range p.Snapshot.Pods() {
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		is, err := pod.Namespace == application.Namespace, error(nil)
		if !application.IsNamespaced() {
			is, err = p.inNamespaces(pod.Namespace, namespaces)
		}
		switch {
		case err != nil:
			why, unsure = cmp.Or(why, err), append(unsure, pod)
		case is:
			chosen = append(chosen, pod)
		}
	}
	return chosen, unsure, why
}

// noAnswer is what the container runtime has not answered for, of what Target.In says.
type noAnswer struct {
	// pods are those of which a container, or all, has no answer, and containers those of them that have one.
	pods, containers map[string]bool
	// cgroups are those of all pods that are known.
	cgroups map[uint64]bool
}

// noAnswer returns it, or nil where the runtime has answered for all. It is read once.
func (r *Round) noAnswer() *noAnswer {
	if r.hasNoAnswer != nil || r.pods.Snapshot == nil {
		return r.hasNoAnswer
	}
	is := &noAnswer{map[string]bool{}, map[string]bool{}, map[uint64]bool{}}
	for _, one := range r.pods.Snapshot.Skipped() {
		if one.Reason == containers.NoAnswer {
			is.pods[describePod(one.Pod)] = true
		}
	}
	if len(is.pods) == 0 {
		return nil
	}
	for _, pod := range r.pods.Snapshot.Pods() {
		is.cgroups[pod.CgroupID] = true
		for _, c := range r.pods.Snapshot.Of(pod) {
			is.cgroups[c.CgroupID], is.containers[describeContainer(c)] = true, true
		}
	}
	r.hasNoAnswer = is
	return is
}

// Unanswered reports of what Target.In says whether the container runtime has not answered for it: for its pod or a container of that, unless
// for this one it has. Nil is of nothing.
func (r *Round) Unanswered() func(in string) bool {
	is := r.noAnswer()
	if is == nil {
		return nil
	}
	return func(in string) bool {
		pod, _, _ := strings.Cut(in, plan.InContainer)
		return is.pods[pod] && !is.containers[in]
	}
}

// Stays tells which members of a scope stay, by their cgroups: where the container runtime has not answered for a pod that an
// application may be for, those of no pod that is known. Nil is none.
func (r *Round) Stays(application v1alpha1.Identity) func(cgroup uint64) bool {
	is := r.noAnswer()
	if is == nil || !slices.ContainsFunc(r.pods.Snapshot.Skipped(), func(s containers.Skipped) bool {
		return s.Reason == containers.NoAnswer && (s.Pod.Namespace == application.Namespace || !application.IsNamespaced())
	}) {
		return nil
	}
	return func(cgroup uint64) bool {
		// Of what this agent made a member itself, the runtime has told once.
		_, told := r.members[cgroup]
		return !told && !is.cgroups[cgroup]
	}
}

// Chosen returns the pods that an attachment is for, as far as that is known.
func (p Pods) Chosen(application v1alpha1.Identity, at v1alpha1.Attachment) []containers.Pod {
	pods, _, _ := p.choose(application, at)
	return pods
}

// OnNodesNetwork describes a pod that an attachment chooses and that has no network of its own; empty where there is none.
func (r *Round) OnNodesNetwork(application v1alpha1.Identity, at v1alpha1.Attachment) string {
	pods, _, _ := r.pods.choose(application, at)
	if i := slices.IndexFunc(pods, func(pod containers.Pod) bool { return pod.HostNetwork }); i >= 0 {
		return describePod(pods[i])
	}
	return ""
}

// Chooses reports whether an attachment is for a container of the pods, which have one.
func (p Pods) Chooses(application v1alpha1.Identity, at v1alpha1.Attachment) bool {
	pods, _, _ := p.choose(application, at)
	return slices.ContainsFunc(pods, func(pod containers.Pod) bool { return len(p.containersOf(pod, at)) > 0 })
}

// inNamespaces reports whether a selector chooses a namespace. It fails with ErrNotKnown where the
// labels are not known, and where those that are not current do not match: what runs by newer ones
// is not ended for that.
func (p Pods) inNamespaces(name string, selector labels.Selector) (bool, error) {
	if selector.Empty() {
		return true, nil
	}
	has := labels.Set{labelNamespace: name}
	if p.NamespaceLabels == nil {
		return selector.Matches(has), nil
	}
	all, known, current := p.NamespaceLabels(name)
	is := known && selector.Matches(labels.Merge(all, has))
	switch {
	case !known:
		return false, fmt.Errorf("%w: the labels of namespace %s are not known", ErrNotKnown, name)
	case !is && !current:
		return false, fmt.Errorf("%w: the labels of namespace %s are those of an earlier start, which the API server has not confirmed", ErrNotKnown, name)
	}
	return is, nil
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
		pods, _, err := p.choose(application, at)
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
	return plan.InPod + pod.Namespace + "/" + pod.Name
}

func describeContainer(c containers.Container) string {
	if c.Name == c.Pod.Name {
		return describePod(c.Pod)
	}
	return describePod(c.Pod) + plan.InContainer + c.Name
}

// inPods returns the attachments of a definition in the pods that it chooses. Where it chooses
// none there are none, which is no error. Where it fails with ErrNotKnown there may be others.
func (r *Round) inPods(base plan.Attachment, h hook.Hook, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	if err := r.pods.check(base.Application); err != nil && !errors.Is(err, ErrNotKnown) {
		return nil, err
	}
	if h.Shape == hook.NetworkDevice {
		return r.OnInterfaces(base, at)
	}
	pods, _, notKnown := r.pods.choose(base.Application, at)
	var all []plan.Attachment
	for _, one := range r.placesIn(pods, base, h, at) {
		found, err := r.expand(one, h, at)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, notKnown
}

// placesIn returns an attachment for each place that a hook has in pods: of cgroups, network namespaces and files those of
// each pod or container, and of all others one, whose programs are guarded. A namespace's are at cgroups of containers, which
// the kernel runs before those of pods, so that the cluster's decide what becomes of a call; and none on the node's network.
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
		case h.Shape == hook.NetworkNamespace, h.Shape == hook.Cgroup && base.Application.IsNamespaced() && pod.HostNetwork:
		case h.Shape == hook.Cgroup && !base.Application.IsNamespaced() && len(at.Pods.Containers) == 0 && pod.CgroupID != 0:
			add(func(t *plan.Target) { t.Cgroup, t.CgroupID, t.In = "/"+pod.CgroupPath, pod.CgroupID, describePod(pod) })
		case h.Shape == hook.Cgroup:
			// The runtime may tell of one twice.
			for _, c := range slices.CompactFunc(r.pods.containersOf(pod, at), func(a, b containers.Container) bool { return a.CgroupID == b.CgroupID }) {
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
// where it chooses some. One that is gone meanwhile is left out. Of pods that it may be for, those
// are returned that are members already, by their ids. It fails with ErrNotKnown where no pod is
// known now.
func (r *Round) Members(application v1alpha1.Identity, at v1alpha1.Attachment, already func() ([]uint64, error)) ([]guard.Member, error) {
	pods, unsure, err := r.pods.choose(application, at)
	if err != nil && len(unsure) == 0 {
		return nil, err
	}
	if r.hierarchy == nil {
		found, err := guard.FindHierarchy(r.host.CgroupRoot)
		if err != nil {
			return nil, fmt.Errorf("find cgroups of pods: %w", err)
		}
		r.hierarchy = &found
	}
	chosen := r.pods.cgroupsOf(pods, at)
	if len(unsure) > 0 {
		has, err := already()
		if err != nil {
			return nil, err
		}
		maybe := r.pods.cgroupsOf(unsure, at)
		chosen = append(chosen, slices.DeleteFunc(maybe, func(c cgroup) bool { return !slices.Contains(has, c.id) })...)
	}
	var members []guard.Member
	for _, c := range chosen {
		if m, ok := r.member(c); ok {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b guard.Member) int { return cmp.Compare(a.CgroupID, b.CgroupID) })
	return members, nil
}

// cgroup is the cgroup of a pod or a container; its path is below the root.
type cgroup struct {
	path string
	id   uint64
}

// cgroupsOf are the cgroups of pods, or of their containers where the attachment chooses some or the
// cgroup of the pod is not known.
func (p Pods) cgroupsOf(pods []containers.Pod, at v1alpha1.Attachment) []cgroup {
	var all []cgroup
	for _, pod := range pods {
		if len(at.Pods.Containers) == 0 && pod.CgroupID != 0 {
			all = append(all, cgroup{path: pod.CgroupPath, id: pod.CgroupID})
			continue
		}
		for _, c := range p.containersOf(pod, at) {
			all = append(all, cgroup{path: c.CgroupPath, id: c.CgroupID})
		}
	}
	return all
}

// member returns the member of a scope that a cgroup is, and false for one that is gone.
func (r *Round) member(c cgroup) (guard.Member, bool) {
	m, known := r.members[c.id]
	if !known {
		// The id of a cgroup is never used again, and a cgroup never gets another parent.
		found, err := r.hierarchy.Member(filepath.Join(r.host.CgroupRoot, c.path))
		if err != nil || found.CgroupID != c.id {
			return guard.Member{}, false
		}
		m = found
	}
	r.soughtMembers[c.id] = m
	return m, true
}
