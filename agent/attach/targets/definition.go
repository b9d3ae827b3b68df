package targets

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Expand turns one attachment of an application's definition into those on this node, but for
// what Resolve fills in. Where it fails with ErrWaiting, those that it found stand beside the error.
func (r *Round) Expand(application v1alpha1.Identity, program string, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	base := plan.Attachment{Application: application, Program: program, Instance: plan.InstanceOf(application, program, at, at.Tracepoint),
		Hook: at.Hook, Scope: plan.Scope(application, at), Priority: v1alpha1.DefaultPriority, AfterNamespaces: at.AfterNamespaces, Position: at.Position,
		Optional: at.Optional}
	if at.Priority != nil {
		base.Priority = *at.Priority
	}
	h, ok := hook.Lookup(at.Hook)
	if !ok {
		return nil, fmt.Errorf("resolve hook %q: no such hook", at.Hook)
	}
	if at.Hook == plan.XDP {
		mask, err := chain.ProceedOn(at.ProceedOn)
		if err != nil {
			return nil, err
		}
		base.ProceedOn = mask
		if at.XDPMode != v1alpha1.XDPAuto {
			base.XDPMode = at.XDPMode
		}
	}
	if at.Pods != nil {
		return r.inPods(base, h, at)
	}
	return r.expand(base, h, at)
}

// expand fills in what an attachment says of its target beside pods.
func (r *Round) expand(base plan.Attachment, h hook.Hook, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	if h.Shape == hook.NetworkDevice {
		return r.OnInterfaces(base, at)
	}
	if e := at.PerfEvent; h.Shape == hook.PerfEvent && e != nil {
		base.Event, base.Period, base.Frequency, base.PID = e.Event, e.Period, e.Frequency, e.PID
		return attach.OnEvent(base)
	}
	base.Tracepoint, base.Cgroup, base.NetworkNamespace = at.Tracepoint, cmp.Or(base.Cgroup, at.Cgroup), at.NetworkNamespace
	if n := at.Netfilter; n != nil {
		base.Netfilter = *n
	}
	if b := at.Binary; b != nil {
		base.Binary, base.Symbol, base.Offset, base.Symbols, base.PID = b.Path, b.Symbol, b.Offset, plan.ChooseSymbols(b.Symbols), b.PID
		if b.USDT != nil {
			base.USDT = b.USDT.Provider + ":" + b.USDT.Name
		}
	}
	if h.TakesFunctions() {
		return r.onFunctions(base, h, at)
	}
	return []plan.Attachment{base}, nil
}

// onFunctions returns an attachment for each function that the definition chooses, or one
// for all where the hook has one link for them.
func (r *Round) onFunctions(base plan.Attachment, h hook.Hook, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	chosen, err := r.host.Functions.Choose(at.Functions)
	if errors.Is(err, functions.ErrLater) {
		// The next reconcile goes on.
		r.wake()
		return nil, err
	}
	if missing := new(functions.MissingError); errors.As(err, &missing) {
		return nil, fmt.Errorf("%w: %w", attach.ErrTarget, err)
	} else if err != nil {
		return nil, err
	}
	if h.AttachesAtOnce() {
		base.Function, base.FunctionsID = describeFunctions(at.Functions), chosen.ID
		return []plan.Attachment{base}, nil
	}
	var all []plan.Attachment
	for _, name := range chosen.Names {
		one := base
		one.Function, one.Offset = name, at.Functions.Offset
		if h.FindsFunctions() {
			one.Module = chosen.Module(name)
		}
		if h.LoadsForTarget() {
			one.Instance = plan.InstanceOf(base.Application, base.Program, at, name)
		}
		all = append(all, one)
	}
	return all, nil
}

// Describe names the target that a definition asks for, where nothing was found for it.
func Describe(at v1alpha1.Attachment) string {
	switch {
	case at.Interfaces != nil:
		return describeInterfaces(at.Interfaces)
	case at.Functions != nil:
		return describeFunctions(at.Functions)
	case at.Tracepoint != "":
		return at.Tracepoint
	case at.Cgroup != "":
		return at.Cgroup
	case at.Binary != nil:
		return at.Binary.Path
	case at.PerfEvent != nil:
		return at.PerfEvent.Event
	case at.Pods != nil:
		return "pods"
	case at.Netfilter != nil:
		return plan.Target{Netfilter: *at.Netfilter, NetworkNamespace: at.NetworkNamespace}.String()
	}
	return at.NetworkNamespace
}

// describeInterfaces repeats a selection in a message.
func describeInterfaces(s *v1alpha1.Interfaces) string {
	var parts []string
	if len(s.Names) > 0 {
		parts = append(parts, "names "+strings.Join(s.Names, ", "))
	}
	if s.Primary {
		parts = append(parts, "primary")
	}
	if len(s.Kinds) > 0 {
		parts = append(parts, "kinds "+strings.Join(s.Kinds, ", "))
	}
	if s.MemberOf != "" {
		parts = append(parts, "members of "+s.MemberOf)
	}
	if s.Regex != "" {
		parts = append(parts, "regex "+s.Regex)
	}
	if len(s.Exclude) > 0 {
		parts = append(parts, "without "+strings.Join(s.Exclude, ", "))
	}
	return strings.Join(parts, ", ")
}

// maxDescribed is how many functions are named in a description.
const maxDescribed = 3

// describeFunctions repeats a choice of functions in a message.
func describeFunctions(f *v1alpha1.Functions) string {
	text := strings.Join(f.Names[:min(len(f.Names), maxDescribed)], ", ")
	if more := len(f.Names) - maxDescribed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if f.Module != "" {
		text += " of module " + f.Module
	}
	return text
}

// FindCgroup2 returns the mount point of cgroup2, from a mountinfo file (proc(5)).
func FindCgroup2(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	defer func() { _ = f.Close() }()
	mounts, err := mountinfo.GetMountsFromReader(f, mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	if len(mounts) == 0 {
		return "", errors.New("find cgroup2: it is not mounted; mount it: `" + attach.MountCgroup2 + "`")
	}
	return mounts[0].Mountpoint, nil
}
