package prepare

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// resolveInPods resolves an attachment in pods, of which Expand found the places, or an error. A
// container without the file or the function is no failure where another one has it, and an
// error of all is a missing target. Where not all pods are known, what runs stays, and some of it
// is returned twice. So does what runs in a pod that the runtime does not answer for.
func (v *Versions) resolveInPods(app plan.Application, program string, at v1alpha1.Attachment, places []plan.Attachment, err error) ([]plan.Attachment, error) {
	resolved, err := v.stayInPods(app, program, at, places, err)
	if queued := new(decide.QueuedError); errors.As(err, &queued) {
		return nil, err
	}
	made := v.keysOf(resolved)
	resolved = slices.Grow(resolved, len(places))
	var missing error
	errs := []error{err}
	for _, one := range places {
		found, err := v.resolveOne(app.UID, one)
		switch {
		case err == nil:
			for i := range found {
				if len(made) == 0 || !made[v.Look.KeyOf(&found[i])] {
					resolved = append(resolved, found[i])
				}
			}
		case errors.Is(err, targets.ErrWaiting):
			errs = append(errs, err)
		default:
			// What is wrong with one container, whatever it does, is no matter of the others. What
			// runs in it stays, unless its target is gone.
			if made := v.madeOn(app.UID, one); len(made) > 0 && !errors.Is(err, attach.ErrTarget) {
				resolved = append(resolved, onTargets(one, made)...)
				continue
			}
			missing = cmp.Or(missing, err)
		}
	}
	if len(resolved) == 0 && missing != nil {
		errs = append(errs, fmt.Errorf("%w: %w", attach.ErrTarget, missing))
	}
	return v.oncePerFile(app.UID, resolved), errors.Join(errs...)
}

// stayInPods returns the attachments in pods that the application has and that stay: all of them where the pods are not
// known, and otherwise those in pods that the container runtime has not answered for.
func (v *Versions) stayInPods(app plan.Application, program string, at v1alpha1.Attachment, places []plan.Attachment, err error) ([]plan.Attachment, error) {
	notKnown := errors.Is(err, targets.ErrNotKnown) && (at.Interfaces == nil || len(places) == 0)
	unanswered := v.LookupRound.Unanswered()
	if !notKnown && unanswered == nil {
		return nil, err
	}
	stays := func(l *plan.Link) bool {
		return notKnown || !l.Severed && unanswered(l.Attachment.In)
	}
	if v.isUnguarded(app, program, at, stays) {
		why := cmp.Or(err, errors.New("the container runtime has not answered for a container of theirs"))
		return nil, &decide.QueuedError{Why: fmt.Sprintf("what runs in pods stays without a guard until they are known: %v", why)}
	}
	return v.madeInPods(app, program, at, stays), err
}

// keysOf are the keys of attachments.
func (v *Versions) keysOf(all []plan.Attachment) map[string]bool {
	keys := make(map[string]bool, len(all))
	for i := range all {
		keys[v.Look.KeyOf(&all[i])] = true
	}
	return keys
}

// isUnguarded reports whether a link of the program is of an agent that gave it no guard there. Its program is loaded
// no more, or will not be, and nothing else may stand in for it where the pods are not known.
func (v *Versions) isUnguarded(app plan.Application, program string, at v1alpha1.Attachment, stays func(*plan.Link) bool) bool {
	return plan.Scope(app.Identity, at) != "" && slices.ContainsFunc(v.Look.SeenLinks(app.UID), func(l *plan.Link) bool {
		is := l.Attachment
		return is.Program == program && is.Hook == at.Hook && is.Scope == "" && is.In != "" && stays(l)
	})
}

// madeInPods returns the attachments in pods that the application has and that stay.
func (v *Versions) madeInPods(app plan.Application, program string, at v1alpha1.Attachment, stays func(*plan.Link) bool) []plan.Attachment {
	var made []plan.Attachment
	for _, l := range v.Look.SeenLinks(app.UID) {
		is := l.Attachment
		if is.Program == program && is.Hook == at.Hook && is.Scope == plan.Scope(app.Identity, at) && (is.In != "" || is.Scope != "") && stays(l) {
			made = append(made, is)
		}
	}
	return made
}

// oncePerFile keeps one of the attachments to the same place in the same file: the kernel runs a
// probe in a file for the processes of all containers that share it. It keeps the one that is
// there already.
func (v *Versions) oncePerFile(uid string, all []plan.Attachment) []plan.Attachment {
	if !slices.ContainsFunc(all, func(a plan.Attachment) bool { return a.Container != "" }) {
		return all
	}
	kept, once := make(map[plan.Target]int, len(all)), make([]plan.Attachment, 0, len(all))
	for _, one := range all {
		place := one.Target
		if place.Container == "" {
			once = append(once, one)
			continue
		}
		place.Container, place.In = "", ""
		if i, twice := kept[place]; !twice {
			kept[place] = len(once)
			once = append(once, one)
		} else if v.Look.IsAttached(uid, one) {
			once[i] = one
		}
	}
	return once
}

// setScopes tells the guards of an intent's programs which tasks are those of the chosen pods,
// before anything is attached. A version that is loaded still has none.
func (v *Versions) setScopes(o intent.Opened, out *report.Outcome) error {
	payload := o.Payload()
	revision := v.Look.Revision(payload.UID, o.Revision())
	if revision == nil {
		return nil
	}
	scopes := revision.Scopes()
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			name := plan.Scope(payload.Application, at)
			scope, left := scopes[name]
			if !left {
				continue
			}
			delete(scopes, name)
			found, err := v.LookupRound.Members(payload.Application, at, scope.Cgroups)
			if errors.Is(err, targets.ErrNotKnown) || errors.Is(err, targets.ErrNoPods) {
				// They stay as they are.
				continue
			}
			if err != nil {
				return fmt.Errorf("find pods of %s: %w", payload.Application, err)
			}
			if err := scope.SetBeside(found, v.LookupRound.Stays(payload.Application)); err != nil {
				out.Errs = append(out.Errs, fmt.Errorf("guard programs of %s: %w", payload.Application, err))
			}
		}
	}
	return nil
}
