package prepare

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// maxPlaces is how many attachments an application may have on a node, and maxOfNamespace how many
// those of a namespace have together. Each is a link, with a descriptor and a pin, that every sweep
// looks at before it does anything for others.
const maxPlaces, maxOfNamespace = 2000, 4 * 2000

// placed is how many attachments applications have, by namespace and UID: those that were prepared, or, where more
// run, those. So what runs keeps its places, whatever comes before it, and counts until it has ended.
type placed map[string]*ofNamespace

// ofNamespace is how many attachments the applications of a namespace have, by UID, and all together; runs is how many run.
type ofNamespace struct {
	byUID, runs map[string]int
	all         int
}

// of returns what a namespace has; nil of the cluster, whose applications are an admin's.
func (p placed) of(namespace string) *ofNamespace {
	if namespace != "" && p[namespace] == nil {
		p[namespace] = &ofNamespace{byUID: map[string]int{}, runs: map[string]int{}}
	}
	return p[namespace]
}

// note notes what an application is to have.
func (p placed) note(of v1alpha1.Identity, uid string, places int) {
	if n := p.of(of.Namespace); n != nil {
		places = max(places, n.runs[uid])
		n.all += places - n.byUID[uid]
		n.byUID[uid] = places
	}
}

// has returns what an application has, and what all of its namespace have.
func (p placed) has(of v1alpha1.Identity, uid string) (its, all int) {
	if n := p[of.Namespace]; n != nil {
		return n.byUID[uid], n.all
	}
	return 0, 0
}

// count counts one more that runs.
func (p placed) count(of v1alpha1.Identity, uid string) {
	if n := p.of(of.Namespace); n != nil {
		n.runs[uid]++
		p.note(of, uid, 0)
	}
}

// countRunning counts what runs, once in a reconcile.
func (v *Versions) countRunning() {
	if v.hasCounted {
		return
	}
	v.hasCounted = true
	for l := range v.Look.Links() {
		if !v.Look.Seen(l.Path).Severed {
			v.placed.count(l.Attachment.Application, l.UID)
			v.countRunningAt(l.UID, l.Attachment)
		}
	}
	for device := range v.Look.Chains() {
		for _, m := range v.Look.GivenTo(device) {
			v.placed.count(m.Identity, m.UID)
		}
	}
}

// left is how many an application may have, beside what the others of its namespace have. It is not less than
// what runs: others, and itself, may have former places for a while that the kernel is about to end.
func (p placed) left(of v1alpha1.Identity, uid string) int {
	its, all := p.has(of, uid)
	return min(max(maxOfNamespace-(all-its), its), maxPlaces)
}

// resolveAttachments turns an intent into resolved attachments. A target that is
// not there is told and waited for; what the definition says wrongly rejects
// the intent.
func (v *Versions) resolveAttachments(o intent.Opened, out *report.Outcome) (plan.Application, error) {
	v.countRunning()
	payload := o.Payload()
	revision := v.Look.Revision(payload.UID, o.Revision())
	r := resolving{Versions: v, revision: revision, out: out, seen: map[string]bool{},
		app: plan.Application{UID: payload.UID, Identity: payload.Application, Revision: o.Revision(), Taken: revision.TakenKey()}}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			at.Optional = at.Optional || program.Optional
			if err := r.add(program.Name, v.atOnce(r.app.Identity, revision, program.Name, at)); err != nil {
				return r.app, err
			}
		}
	}
	r.fill()
	r.takeShared()
	r.tellAbsent()
	v.placed.note(payload.Application, payload.UID, len(r.app.Attachments))
	return r.app, nil
}

// resolving is the state of resolveAttachments.
type resolving struct {
	*Versions
	revision *loader.Revision
	out      *report.Outcome
	// app has what was resolved, and seen the keys of that. inPods are the indexes of its attachments
	// in chosen pods, and absent is what has no target.
	app    plan.Application
	seen   map[string]bool
	inPods []int
	absent []report.Unmade
}

// add resolves an attachment of a program. It fails where the definition is wrong.
func (r *resolving) add(program string, at v1alpha1.Attachment) error {
	if why := skipped(r.app.Identity, r.revision, program, at); why != "" {
		r.absent = append(r.absent, report.Skip(program, at, why))
		return nil
	}
	if h, _ := hook.Lookup(at.Hook); h.RunsOnce() {
		r.absent = append(r.absent, report.HasRun(program, at))
		return nil
	}
	found, err := r.resolve(r.app, program, at)
	tooMany := r.LookupRound.TooMany(r.app.Identity, at)
	for _, one := range tooMany {
		r.absent = append(r.absent, report.Skip(program, at, one.Error()))
	}
	if err == nil && at.Pods != nil && len(found) == 0 && len(tooMany) == 0 {
		r.absent = append(r.absent, r.nowhere(program, at))
	}
	if err := r.noteMissing(program, at, err); err != nil {
		return err
	}
	before := len(r.app.Attachments)
	if err := r.addFound(found, errors.Is(err, targets.ErrNotKnown)); err != nil {
		return err
	}
	for i := before; at.Pods != nil && i < len(r.app.Attachments); i++ {
		r.inPods = append(r.inPods, i)
	}
	return r.bound()
}

// nowhere is an attachment that has no place in any pod.
func (r *resolving) nowhere(program string, at v1alpha1.Attachment) report.Unmade {
	if pod := r.LookupRound.OnNodesNetwork(r.app.Identity, at); pod != "" {
		return report.Skip(program, at, pod+" is on the node's network (hostNetwork), where "+at.Hook+" is left out: choose pods with a network of their own")
	}
	return report.InNoPods(program, at)
}

// noteMissing notes why an attachment has no target, or not all, and returns what is no such
// error.
func (r *resolving) noteMissing(program string, at v1alpha1.Attachment, err error) error {
	switch {
	case report.IsAbsent(err) && at.Optional:
		r.absent = append(r.absent, report.Skip(program, at, err.Error()))
	case errors.Is(err, targets.ErrWaiting) || errors.Is(err, attach.ErrTarget):
		r.absent = append(r.absent, report.Unresolved(program, at, err))
		if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
			if !unanswered.Late {
				r.out.Leave(report.Answer{})
			}
			r.out.Errs = append(r.out.Errs, r.placing(program, err))
		}
	case err != nil:
		return r.placing(program, err)
	}
	return nil
}

// addFound adds attachments that were resolved. One that is there twice is an error, unless
// some may be.
func (r *resolving) addFound(found []plan.Attachment, maybeTwice bool) error {
	r.app.Attachments = slices.Grow(r.app.Attachments, len(found))
	for i := range found {
		a := &found[i]
		key := r.Look.KeyOf(a)
		if r.seen[key] && maybeTwice {
			continue
		}
		if r.seen[key] {
			return r.placing(a.Program, fmt.Errorf("the definition attaches it to %s %s twice; once is enough", a.Hook, a.Target))
		}
		r.seen[key] = true
		r.app.Attachments = append(r.app.Attachments, *a)
	}
	return nil
}

// bound fails where the application has more places than are left for it. Pods are not its doing: what
// it has in them counts for nothing here.
func (r *resolving) bound() error {
	limit, whose := r.limit()
	places := len(r.app.Attachments) - len(r.inPods)
	if places <= limit {
		return nil
	}
	return fmt.Errorf("place programs of %s: they have %d places, and %s has %d on a node; choose fewer functions, or hooks with one link for many, "+
		"such as kprobe.multi",
		r.app.Identity, places, whose, limit)
}

// limit is how many places the application may have, and whose limit that is.
func (r *resolving) limit() (limit int, whose string) {
	limit = r.placed.left(r.app.Identity, r.app.UID)
	if limit == maxPlaces {
		return limit, "an application"
	}
	return limit, fmt.Sprintf("an application of a namespace whose others have %d of %d", maxOfNamespace-limit, maxOfNamespace)
}

// fill leaves out what is in pods beyond the places that are left: first what does not run.
func (r *resolving) fill() {
	limit, whose := r.limit()
	places := len(r.app.Attachments)
	if places <= limit {
		return
	}
	var runs, others []int
	for _, i := range r.inPods {
		if r.Look.IsAttached(r.app.UID, r.app.Attachments[i]) {
			runs = append(runs, i)
		} else {
			others = append(others, i)
		}
	}
	out := slices.Concat(runs, others)[limit-(places-len(r.inPods)):]
	slices.Sort(out)
	var programs []string
	for _, i := range out {
		programs = append(programs, r.app.Attachments[i].Program)
	}
	var kept []plan.Attachment
	for i, a := range r.app.Attachments {
		if _, leaves := slices.BinarySearch(out, i); !leaves {
			kept = append(kept, a)
		}
	}
	r.app.Attachments = kept
	slices.Sort(programs)
	for _, program := range slices.Compact(programs) {
		r.out.Errs = append(r.out.Errs, r.placing(program,
			fmt.Errorf("with it, there are %d places, and %s has %d on a node, so that it is not in all pods; choose fewer pods or functions", places, whose, limit)))
	}
}

// tellAbsent puts what has no target into the outcome.
func (r *resolving) tellAbsent() {
	for _, u := range r.absent {
		r.out.Links = append(r.out.Links, u)
		if u.Status.State == report.Failed {
			r.out.Errs = append(r.out.Errs, r.placing(u.Program, errors.New(u.Status.Error)))
		}
	}
}

// placing says of which program an error is.
func (r *resolving) placing(program string, err error) error {
	return fmt.Errorf("place program %s of %s: %w", program, r.app.Identity, err)
}

// atOnce is the attachment by one link for all functions, where the program was loaded for
// that. Where it was loaded for both, another attachment may be why.
func (v *Versions) atOnce(of v1alpha1.Identity, r *loader.Revision, program string, at v1alpha1.Attachment) v1alpha1.Attachment {
	many, ok := plan.AtOnce(at)
	if !ok || r == nil || r.Programs[plan.InstanceOf(of, program, many, "")] == nil {
		return at
	}
	if r.Programs[plan.InstanceOf(of, program, at, "")] != nil && report.IsAbsent(v.LookupRound.Supports(many)) {
		return at
	}
	return many
}

// skipped says why nothing is loaded for an attachment; empty where something is.
func skipped(of v1alpha1.Identity, r *loader.Revision, program string, at v1alpha1.Attachment) string {
	if r == nil {
		return ""
	}
	for _, load := range plan.Loads(of, program, at) {
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
	if h, _ := hook.Lookup(at.Hook); at.Position != "" {
		if err := attach.CheckPosition(h, at.Position); err != nil {
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
	for _, l := range v.Look.SeenLinks(uid) {
		is := l.Attachment
		if is.Program != a.Program || is.Hook != a.Hook || is.Target.Asked() != a.Target.Asked() {
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
