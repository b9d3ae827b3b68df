package report

import (
	"errors"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// Outcome is what one reconcile found out about one application.
type Outcome struct {
	// State is what was decided; nil until that is, and where no intent of it is known.
	State State
	// Links are attachments without a link, and Errs what went wrong.
	Links []Unmade
	Errs  []error
	// TakenMaps are the maps that the version that is to run has from other applications.
	TakenMaps []TakenMap
	// left is what is left to do, one each.
	left []Left
	// inPods are actions in single pods that failed; see SettlePods.
	inPods []failure
}

// TakenMap is a map that an application has from another one.
type TakenMap struct {
	// Map is its name in the application's object, OwnersMap that in the Owner's.
	Map       string            `json:"map"`
	Owner     v1alpha1.Identity `json:"owner"`
	OwnersMap string            `json:"ownersMap"`
	// Message says why it is not the map that the owner has now; empty where it is.
	Message string `json:"message,omitempty"`
}

// failure is an action that failed.
type failure struct {
	action plan.Action
	err    error
}

// Unmade is an attachment without a link.
type Unmade struct {
	Program string
	Status  LinkStatus
}

// Unresolved is an attachment whose target is not there. An interface may come;
// another target that is missing is a failure, though one that fixes itself.
func Unresolved(program string, at v1alpha1.Attachment, err error) Unmade {
	state := Failed
	if errors.Is(err, targets.ErrWaiting) {
		state = Waiting
	}
	return Unmade{program, notMade(at, state, err.Error())}
}

// notMade is the status of an attachment that the node has no place for.
func notMade(at v1alpha1.Attachment, state LinkState, why string) LinkStatus {
	s := LinkStatus{Hook: at.Hook, Target: targets.Describe(at), State: state, Error: why,
		On: plan.Target{Tracepoint: at.Tracepoint, Cgroup: at.Cgroup, NetworkNamespace: at.NetworkNamespace}}
	if at.Priority != nil {
		s.Priority = *at.Priority
	}
	switch {
	case at.Functions != nil:
		s.On.Function = s.Target
	case at.Binary != nil:
		s.On.Binary = at.Binary.Path
	}
	return s
}

// onDevice is a device as a target, by its Label.
func onDevice(d plan.Device, label string) plan.Target {
	name, in, _ := strings.Cut(label, " in ")
	return plan.Target{Ifindex: d.Index, NetnsID: d.NetnsID, Interface: name, In: in}
}

// IsAbsent reports whether an error says that the node lacks a hook or a target.
func IsAbsent(err error) bool {
	unanswered := new(targets.UnansweredError)
	return errors.Is(err, attach.ErrTarget) || errors.Is(err, link.ErrNoSymbol) || errors.Is(err, ebpf.ErrNotSupported) ||
		errors.Is(err, targets.ErrWaiting) && !errors.As(err, &unanswered)
}

// Skip is an attachment that the definition leaves to the node, and that it is without.
func Skip(program string, at v1alpha1.Attachment, why string) Unmade {
	return Unmade{program, notMade(at, Skipped, why)}
}

// HasRun is an attachment to nothing of a program that ran once.
func HasRun(program string, at v1alpha1.Attachment) Unmade {
	return Unmade{program, LinkStatus{Hook: at.Hook, State: Ran}}
}

// SettlePods decides what the failures in single pods are. What is wrong with a pod is no failure
// of an application that has the program attached in others: the owner of one pod could have it
// fail everywhere.
func (o *Outcome) SettlePods(uid string, attached func(program, hook string) bool) {
	failed := o.inPods
	o.inPods = nil
	for _, f := range failed {
		at := f.action.Attachment
		o.fail(uid, f.action, f.err, attached(at.Program, at.Hook) || at.Optional && IsAbsent(f.err))
	}
}

// InNoPods is an attachment for which the node has no pod.
func InNoPods(program string, at v1alpha1.Attachment) Unmade {
	why := "no pod of this node is chosen by " + describePods(at.Pods)
	if at.Pods != nil && len(at.Pods.Containers) > 0 {
		why += " with such a container; a unit or cgroup of a host has one, of its own name"
	}
	return Unmade{program, notMade(at, NoPods, why)}
}

// describePods repeats the labels of a choice of pods in a message.
func describePods(p *v1alpha1.Pods) string {
	if p == nil || p.Selector == nil || len(p.Selector.MatchLabels)+len(p.Selector.MatchExpressions) == 0 {
		return "pods"
	}
	return "pods (" + metav1.FormatLabelSelector(p.Selector) + ")"
}

// Fail notes an action that failed for an application.
func (o *Outcome) Fail(uid string, a plan.Action, err error) {
	if a.Attachment.In != "" && a.Verb != plan.Detach {
		o.inPods = append(o.inPods, failure{a, err})
		return
	}
	o.fail(uid, a, err, a.Attachment.Optional && IsAbsent(err))
}

func (o *Outcome) fail(uid string, a plan.Action, err error, skipped bool) {
	state := Failed
	if skipped {
		state = Skipped
	} else {
		o.Errs = append(o.Errs, err)
	}
	if wait := new(retry.ConflictError); errors.As(err, &wait) {
		state = DriftConflict
	} else if errors.Is(err, targets.ErrWaiting) {
		state = Waiting
	}
	if a.Attachment.Hook != "" && a.Verb != plan.Detach {
		o.Links = append(o.Links, Unmade{a.Attachment.Program, LinkStatus{Hook: a.Attachment.Hook,
			Target: a.Attachment.Place(), State: state, Error: err.Error(), On: a.Attachment.Target, Priority: a.Attachment.Priority}})
	}
	for _, m := range a.Members {
		if m.UID == uid {
			o.Links = append(o.Links, Unmade{m.Program, LinkStatus{Hook: plan.XDP, Target: a.Interface, State: state, Error: err.Error(),
				On: onDevice(a.Device, a.Interface), Priority: m.Priority}})
		}
	}
}
