package prepare

import (
	"cmp"
	"errors"
	"path"
	"strings"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// isCounted reports whether the ledger counts an attachment: one of a namespace, at a target that tasks of others run, too, or one
// of its pods at which the kernel runs so many that none would be left to the cluster.
func isCounted(a plan.Attachment) bool {
	h, _ := hook.Lookup(a.Hook)
	switch h.Shape {
	case hook.Tracepoint, hook.KernelFunction, hook.UserBinary, hook.Cgroup, hook.NetworkNamespace:
		return a.Application.Namespace != ""
	case hook.NetworkDevice, hook.PerfEvent, hook.None:
	}
	return false
}

// isOwn reports whether the target of an attachment is one that pods have.
func isOwn(a plan.Attachment) bool {
	h, _ := hook.Lookup(a.Hook)
	return h.Shape == hook.Cgroup || h.Shape == hook.NetworkNamespace
}

// countRunningAt counts what runs at such a target. Until its places in a file, or its functions, are known, it counts by
// the definition's name for them.
func (v *Versions) countRunningAt(uid string, a plan.Attachment) {
	if !isCounted(a) {
		return
	}
	use, _ := v.useOf(a)
	v.ledger.Run(a.Application, uid, use)
}

// useOf is what an attachment takes. Where that cannot be found out, an error says why, and the use has the
// definition's name for it.
func (v *Versions) useOf(a plan.Attachment) (quota.Use, error) {
	h, _ := hook.Lookup(a.Hook)
	switch {
	case isOwn(a):
		use := quota.Use{Binary: a.Target.String()}
		if own := cmp.Or(a.CgroupID, a.NetnsID); own != 0 {
			use.Targets = []quota.Target{{Name: a.Hook, Own: own}}
		}
		return use, nil
	case h.Shape == hook.Tracepoint:
		// Programs of raw_tp, tp_btf and tracepoint run one after the other at one place.
		return quota.Use{Targets: []quota.Target{{Name: "tracepoint " + path.Base(a.Tracepoint)}}}, nil
	case h.AttachesAtOnce():
		return quota.Use{Targets: v.functionsOf(h, a)}, nil
	case h.Shape == hook.KernelFunction:
		return quota.Use{Targets: []quota.Target{{Name: "function " + hook.SameFunction(attach.Symbol(h, a.Function))}}}, nil
	}
	places, err := v.LookupRound.Places(a)
	use := quota.Use{Binary: a.Binary, File: fileOf(a.Target), Places: places}
	if len(places) == 0 {
		use.Targets = []quota.Target{{File: use.File, Name: a.Symbol + string(a.Symbols), Offset: a.Offset}}
	}
	return use, err
}

// Shared counts what namespaces have at targets that tasks of others run, too.
func (v *Versions) Shared() quota.Counts { return v.ledger.Counts() }

// Shares returns what each namespace has there, and may have.
func (v *Versions) Shares() map[string]v1alpha1.NamespaceShare { return v.ledger.Shares() }

// fileOf identifies the file of a binary, without its times, and without its size where BinaryID has it for a choice of symbols. A container
// that changes the mode or times of a file on overlayfs is given a copy of these alone (metacopy), and the kernel puts probes into the one
// file below. Two files that are alike by the rest count as one.
func fileOf(t plan.Target) string {
	parts := strings.Split(t.BinaryID, ":")
	if parts[0] == "overlay" && len(parts) > 4 {
		return strings.Join([]string{parts[0], parts[1], parts[4]}, ":")
	}
	if t.Symbols != "" && len(parts) > 2 {
		parts = parts[:len(parts)-2]
	}
	return strings.Join(parts, ":")
}

// functionsOf are the functions of an attachment that has one link for many.
func (v *Versions) functionsOf(h hook.Hook, a plan.Attachment) []quota.Target {
	kernel := v.LookupRound.Host().Functions
	names := kernel.Names(a.FunctionsID)
	if len(names) == 0 {
		// After a start of the agent, what runs is counted before its definition is looked at. That of a version before is not.
		v.chooseFunctions(a)
		names = kernel.Names(a.FunctionsID)
	}
	if len(names) == 0 {
		return []quota.Target{{Name: "functions " + a.Function + " " + a.FunctionsID}}
	}
	all := make([]quota.Target, 0, len(names))
	for _, name := range names {
		all = append(all, quota.Target{Name: "function " + hook.SameFunction(attach.Symbol(h, name))})
	}
	return all
}

// chooseFunctions finds the functions that the definitions of an attachment choose, in all versions.
func (v *Versions) chooseFunctions(a plan.Attachment) {
	for _, p := range v.Sharing.Versions(a.Application) {
		for _, program := range p.Programs {
			for _, at := range program.Attach {
				if program.Name == a.Program && at.Functions != nil {
					// It remembers what it finds.
					_ = v.LookupRound.Supports(at)
				}
			}
		}
	}
}

// takeShared leaves out what has no room at targets that all namespaces share. What runs has its room
// before anything that does not, and keeps it. What runs of another version, and may stay until this one is whole, counts, too.
func (r *resolving) takeShared() {
	defer r.ledger.Settle(r.app.UID)
	runs := r.running()
	if r.takeAll(runs) {
		return
	}
	var others []int
	for i, a := range r.app.Attachments {
		switch {
		case !isCounted(a):
		case runs(a):
			use, _ := r.useOf(a)
			r.ledger.Add(r.app.Identity, r.app.UID, use)
		default:
			others = append(others, i)
		}
	}
	out, leftOut := map[int]bool{}, map[string]int{}
	for _, i := range others {
		a := r.app.Attachments[i]
		err := r.take(a)
		if err == nil {
			continue
		}
		out[i] = true
		if leftOut[a.Program]++; leftOut[a.Program] <= maxTold {
			r.leaveOut(a, a.Place(), err)
		} else if leftOut[a.Program] == maxTold+1 {
			r.leaveOut(a, "others", errors.New("more targets of the program have no room"))
		}
	}
	if len(out) == 0 {
		return
	}
	kept := r.app.Attachments[:0]
	for i, a := range r.app.Attachments {
		if !out[i] {
			kept = append(kept, a)
		}
	}
	r.app.Attachments = kept
}

// take takes what an attachment uses, or says why that cannot be.
func (r *resolving) take(a plan.Attachment) error {
	if err := r.LookupRound.CheckPlaces(a); err != nil {
		return err
	}
	use, err := r.useOf(a)
	if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
		if !unanswered.Late {
			r.out.Leave(report.Answer{})
		}
		return err
	}
	// Another error of Places is the one that the attachment fails with.
	return r.ledger.Take(r.app.Identity, r.app.UID, use)
}

// running returns what reports whether an attachment runs: a link through a container that ended stays for the others
// that have the file.
func (r *resolving) running() func(plan.Attachment) bool {
	var all map[plan.Attachment]bool
	return func(a plan.Attachment) bool {
		if r.Look.IsAttached(r.app.UID, a) {
			return true
		}
		if all == nil {
			all = map[plan.Attachment]bool{}
			for _, l := range r.Look.SeenLinks(r.app.UID) {
				inFile, shared := l.Attachment.InSharedFile()
				all[l.Attachment.Unnamed()] = !l.Severed
				all[inFile] = all[inFile] || shared && !l.Severed
			}
		}
		inFile, shared := a.InSharedFile()
		return all[a.Unnamed()] || shared && all[inFile]
	}
}

// takeAll takes what the application uses if there is room for all of it, and nothing else. What it has run until now counts
// no more.
func (r *resolving) takeAll(runs func(plan.Attachment) bool) bool {
	r.ledger.Release(r.app.UID)
	for _, a := range r.app.Attachments {
		if !isCounted(a) {
			continue
		}
		if isOwn(a) && runs(a) {
			use, _ := r.useOf(a)
			r.ledger.Add(r.app.Identity, r.app.UID, use)
		} else if r.take(a) != nil {
			r.ledger.Release(r.app.UID)
			return false
		}
	}
	return true
}

// maxTold is how many targets of a program a status lists that have no room.
const maxTold = 3

// leaveOut notes that an attachment to a target is left out.
func (r *resolving) leaveOut(a plan.Attachment, target string, err error) {
	state := report.Failed
	switch {
	case errors.Is(err, targets.ErrWaiting):
		state = report.Waiting
		// It is missing, however long that takes.
		r.out.Errs = append(r.out.Errs, r.placing(a.Program, err))
	case a.Optional:
		state = report.Skipped
	}
	r.absent = append(r.absent, report.Unmade{Program: a.Program,
		Status: report.LinkStatus{Hook: a.Hook, Target: target, State: state, Error: err.Error()}})
}
