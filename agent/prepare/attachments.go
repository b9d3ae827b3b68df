package prepare

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// maxPlaces is how many attachments an application may have on a node. Each is a link, with
// a descriptor and a pin, that every sweep looks at.
const maxPlaces = 2000

// resolveAttachments turns an intent into resolved attachments. A target that is
// not there is told and waited for; what the definition says wrongly rejects
// the intent.
func (v *Versions) resolveAttachments(o intent.Opened, out *report.Outcome) (plan.Application, error) {
	payload := o.Payload()
	revision := v.Look.Set.Revisions[payload.UID][o.Revision()]
	app := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: o.Revision(), Taken: revision.TakenKey()}
	var absent []report.Unmade
	seen := map[string]bool{}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			at = v.atOnce(revision, program.Name, at)
			if why := skipped(revision, program.Name, at); why != "" {
				absent = append(absent, report.Skip(program.Name, at, why))
				continue
			}
			at.Optional = at.Optional || program.Optional
			found, err := v.resolve(app, program.Name, at)
			tooMany := v.LookupRound.TooMany(app.Identity, at)
			for _, one := range tooMany {
				absent = append(absent, report.Skip(program.Name, at, one.Error()))
			}
			switch {
			case report.IsAbsent(err) && at.Optional:
				absent = append(absent, report.Skip(program.Name, at, err.Error()))
			case errors.Is(err, targets.ErrWaiting) || errors.Is(err, attach.ErrTarget):
				absent = append(absent, report.Unresolved(program.Name, at, err))
				if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
					out.Unsettled = out.Unsettled || !unanswered.Late
					out.Errs = append(out.Errs, fmt.Errorf("place program %s of %s: %w", program.Name, payload.Application, err))
				}
			case err == nil && at.Pods != nil && len(found) == 0 && len(tooMany) == 0:
				absent = append(absent, report.InNoPods(program.Name, at))
			case err != nil:
				return app, fmt.Errorf("place program %s of %s: %w", program.Name, payload.Application, err)
			}
			for _, a := range found {
				key := a.Key()
				if seen[key] && errors.Is(err, targets.ErrNotKnown) {
					continue
				}
				if seen[key] {
					return app, fmt.Errorf("place program %s of %s: the definition attaches it to %s %s twice; once is enough", a.Program, payload.Application, a.Hook, a.Target)
				}
				seen[key] = true
				app.Attachments = append(app.Attachments, a)
			}
			if over := len(app.Attachments) - maxPlaces; over > 0 && at.Pods != nil {
				// Pods are not the application's doing: those beyond the bound are left out.
				app.Attachments = app.Attachments[:maxPlaces]
				out.Errs = append(out.Errs, fmt.Errorf("place program %s of %s: it has %d places more in pods than the %d that an application has on a node; choose fewer pods or functions",
					program.Name, payload.Application, over, maxPlaces))
			}
			if len(app.Attachments) > maxPlaces {
				return app, fmt.Errorf("place programs of %s: they have more than %d places on this node; choose fewer functions, or hooks with one link for many, such as kprobe.multi", payload.Application, maxPlaces)
			}
		}
	}
	for _, u := range absent {
		out.Links = append(out.Links, u)
		if u.Status.State == report.Failed {
			out.Errs = append(out.Errs, fmt.Errorf("place program %s of %s: %s", u.Program, payload.Application, u.Status.Error))
		}
	}
	return app, nil
}

// atOnce is the attachment by one link for all functions, where the program was loaded for
// that. Where it was loaded for both, another attachment may be why.
func (v *Versions) atOnce(r *kernel.Revision, program string, at v1alpha1.Attachment) v1alpha1.Attachment {
	many, ok := plan.AtOnce(at)
	if !ok || r == nil || r.Programs[plan.InstanceOf(program, many, "")] == nil {
		return at
	}
	if r.Programs[plan.InstanceOf(program, at, "")] != nil && report.IsAbsent(v.LookupRound.Supports(many)) {
		return at
	}
	return many
}

// skipped says why nothing is loaded for an attachment; empty where something is.
func skipped(r *kernel.Revision, program string, at v1alpha1.Attachment) string {
	if r == nil {
		return ""
	}
	for _, load := range plan.Loads(program, at) {
		if why := r.Skipped[load.Instance]; why != "" && r.Programs[load.Instance] == nil {
			return why
		}
	}
	return ""
}

// resolve turns one attachment of a definition into those on this node. Where a file
// system does not answer, the target of the application's link counts.
func (v *Versions) resolve(app plan.Application, program string, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	if at.Optional {
		if err := v.LookupRound.Supports(at); err != nil {
			return nil, err
		}
	}
	all, err := v.LookupRound.Expand(app.Identity, program, at)
	if at.Pods != nil {
		return v.resolveInPods(app, program, at, all, err)
	}
	if err != nil {
		// In other network namespaces there may be targets nevertheless.
		return all, err
	}
	resolved := make([]plan.Attachment, 0, len(all))
	for _, one := range all {
		found, err := v.resolveOne(app.UID, one)
		if err != nil {
			return nil, err
		}
		resolved = append(resolved, found...)
	}
	return resolved, nil
}

// resolveOne finds the targets of an attachment that Expand made.
func (v *Versions) resolveOne(uid string, one plan.Attachment) ([]plan.Attachment, error) {
	found, err := v.LookupRound.Resolve(one)
	if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
		if made := v.madeOn(uid, one); len(made) > 0 {
			found, err = made, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return onTargets(one, found), nil
}

// onTargets is an attachment to each of its targets.
func onTargets(one plan.Attachment, found []plan.Target) []plan.Attachment {
	all := make([]plan.Attachment, 0, len(found))
	for _, target := range found {
		one.Target = target
		all = append(all, one)
	}
	return all
}

// madeOn returns the targets of the application's links for an attachment: of one that
// runs, and those that were found in the same file.
func (v *Versions) madeOn(uid string, a plan.Attachment) []plan.Target {
	var made []plan.Target
	var best plan.Target
	for _, l := range v.Look.State.Links {
		is := l.Attachment
		if l.UID != uid || is.Program != a.Program || is.Hook != a.Hook || is.Target.Asked() != a.Target.Asked() {
			continue
		}
		if len(made) == 0 || !l.Severed {
			best = is.Target
		}
		made = append(made, is.Target)
	}
	if len(made) > 0 && best.USDT == "" {
		return []plan.Target{best}
	}
	return slices.DeleteFunc(made, func(t plan.Target) bool { return t.BinaryID != best.BinaryID })
}
