package nodemode

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// Status is all a host knows of itself, as skep status -o json prints it.
type Status struct {
	// Run is the skep run that answers, or that left this.
	Run RunStatus `json:"run"`

	Source   SourceStatus   `json:"source"`
	Settings SettingsStatus `json:"settings"`
	// UnloadProtection is set while a change of policies waits for a human.
	UnloadProtection *UnloadProtection `json:"unloadProtection,omitempty"`
	// Problems are definitions and files that cannot be read.
	Problems     []schemas.Problem `json:"problems"`
	Applications []Application     `json:"applications"`
	// Synced is when the last sync ended.
	Synced time.Time `json:"synced"`
}

// SourceStatus is where definitions come from.
type SourceStatus struct {
	// Address has no password in it.
	Address string `json:"address"`
	// Revision is the commit the definitions were read from; empty for a folder.
	Revision string `json:"revision,omitempty"`
	// Error is why the source could not be read last time.
	Error string `json:"error,omitempty"`
	// Cautions are what its author may not have meant, such as a signer among definitions.
	Cautions []string `json:"cautions,omitempty"`
	// UnloadProtection is set while the source is another than the one before, does not
	// define much of what runs, and waits for a human.
	UnloadProtection *UnloadProtection `json:"unloadProtection,omitempty"`
}

// SettingsStatus is who decides.
type SettingsStatus struct {
	// Revision identifies active signers and policies.
	Revision string `json:"revision"`
	// PolicyRevision identifies the policies of all namespaces, without the signers, as the history of applications records it.
	PolicyRevision string `json:"policyRevision,omitempty"`
	// Signers are the names of active signers, and Policies the folders and profiles that policies are read from.
	Signers  []string `json:"signers"`
	Policies []string `json:"policies"`
	// Cautions are what the author of policies and signers may not have meant, such as a
	// policy that replaces baseline.
	Cautions []string `json:"cautions,omitempty"`
	// Error is why newer files did not become active.
	Error string `json:"error,omitempty"`
}

// UnloadProtection is a change that would unload much of what runs.
type UnloadProtection struct {
	// Revision is what to confirm.
	Revision string `json:"revision"`
	// Reason says what changed.
	Reason string `json:"reason"`
	// Applications would be unloaded.
	Applications []string `json:"applications"`
}

// ReasonSucceeded is the reason of Ready of an application that runs as it is defined.
const ReasonSucceeded = "Succeeded"

// Application is one application: what the gate says and what the agent does.
type Application struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Source is the file the definition stands in.
	Source string `json:"source,omitempty"`
	// Image is the definition's.
	Image string `json:"image,omitempty"`
	// Digest is what runs, or what was evaluated where nothing runs.
	Digest string `json:"digest,omitempty"`
	// RunningImage is the reference of what runs, and WantedDigest what Image
	// resolved to, where those are two versions.
	RunningImage string `json:"runningImage,omitempty"`
	WantedDigest string `json:"wantedDigest,omitempty"`
	// Signers are those whose signatures counted.
	Signers []string `json:"signers"`
	// Reasons and Warnings are the gate's, of the newest definition.
	Reasons  []policies.Reason `json:"reasons"`
	Warnings []policies.Reason `json:"warnings"`
	// Audited are what policies in Audit mode would deny.
	Audited []policies.Reason `json:"audited"`
	// Problems are why its definition cannot be read, where it runs without one.
	Problems []schemas.Problem `json:"problems,omitempty"`
	// Unloaded is why it was unloaded, where it is defined and does not run since.
	Unloaded string `json:"unloaded,omitempty"`
	// Suspended definitions are evaluated, and neither loaded nor updated.
	Suspended bool `json:"suspended,omitempty"`
	// Error is why the agent did not get to know of the newest verdict.
	Error string `json:"error,omitempty"`
	// Conditions are Verified, Allowed, Deployed and Ready.
	Conditions []metav1.Condition `json:"conditions"`
	// History has the last versions, the newest first.
	History []v1alpha1.ApplicationVersion `json:"history,omitempty"`
	// Programs are those the agent holds.
	Programs []agent.ProgramStatus `json:"programs"`
	// Agent is all the agent says.
	Agent *agent.ApplicationStatus `json:"agent,omitempty"`
}

// Identity names the application.
func (a Application) Identity() v1alpha1.Identity {
	return v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}
}

// Condition is the status of one condition: True, False or Unknown.
func (a Application) Condition(kind string) metav1.Condition {
	if c := meta.FindStatusCondition(a.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// Status is the gate's side as of the last sync, and the agent's side as of
// now.
func (h *Host) Status() Status {
	h.mu.Lock()
	s, versions := h.status, h.published
	s.Applications = append([]Application{}, s.Applications...)
	h.mu.Unlock()
	s.Run = h.opts.running(h.began)
	if h.agent == nil {
		for i := range s.Applications {
			s.Applications[i].concludeDry()
		}
		return s
	}
	agent := map[v1alpha1.Identity]agent.ApplicationStatus{}
	for _, a := range h.agent.Status() {
		agent[a.Application] = a
	}
	for i := range s.Applications {
		a := &s.Applications[i]
		if on, ok := agent[a.Identity()]; ok {
			a.join(on)
			delete(agent, a.Identity())
		}
		a.History = asOfNow(versions[uidOf(a.Identity())], a.Agent)
		a.conclude()
	}
	for _, left := range agent {
		a := Application{Kind: left.Application.Kind, Namespace: left.Application.Namespace, Name: left.Application.Name,
			Reasons: []policies.Reason{}, Warnings: []policies.Reason{}, Audited: []policies.Reason{}, Signers: []string{}}
		a.join(left)
		a.History = asOfNow(versions[uidOf(a.Identity())], a.Agent)
		a.conclude()
		s.Applications = append(s.Applications, a)
	}
	slices.SortFunc(s.Applications, func(x, y Application) int { return x.Identity().Compare(y.Identity()) })
	return s
}

// join adds the agent's side.
func (a *Application) join(on agent.ApplicationStatus) {
	a.Agent, a.Programs = &on, on.Programs
	if on.Revision != "" && (a.Image != on.Image || a.Digest != "" && a.Digest != on.Digest) {
		a.RunningImage, a.WantedDigest = on.Image, a.Digest
	}
	if on.Digest != "" {
		a.Digest, a.Signers = on.Digest, append([]string{}, on.Signers...)
	}
	a.Conditions = append([]metav1.Condition{}, a.Conditions...)
	for _, c := range on.Conditions {
		meta.SetStatusCondition(&a.Conditions, c)
	}
}

// concludeDry sets Ready, on a dry run, to what the gate says. What is allowed
// is not ready, since nothing is loaded.
func (a *Application) concludeDry() {
	c := a.Condition(v1alpha1.ConditionAllowed)
	c.Type = v1alpha1.ConditionReady
	switch {
	case c.Status != metav1.ConditionTrue:
	case a.Suspended:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "DryRun", "allowed and suspended: it would be neither loaded nor updated"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "DryRun", "allowed: it would be loaded; a dry run loads nothing"
	}
	a.Conditions = append([]metav1.Condition{}, a.Conditions...)
	meta.SetStatusCondition(&a.Conditions, c)
}

// Skipped are the programs that the definition leaves to this host and that it is without, but for those
// of the sets of an alternative after the one that runs.
func (a *Application) Skipped() (programs []agent.ProgramStatus) {
	spare := map[string]bool{}
	if a.Agent != nil {
		for _, alternative := range a.Agent.Alternatives {
			chosen := slices.IndexFunc(alternative.Sets, func(s agent.SetStatus) bool { return s.Error == "" })
			for _, set := range alternative.Sets[chosen+1:] {
				for _, name := range set.Programs {
					spare[name] = chosen >= 0
				}
			}
		}
	}
	for _, p := range a.Programs {
		runs := func(l agent.LinkStatus) bool { return l.State != agent.Skipped }
		if len(p.Links) > 0 && !spare[p.Name] && !slices.ContainsFunc(p.Links, runs) {
			programs = append(programs, p)
		}
	}
	return programs
}

// conclude sets Ready from the others: the first that is not true says why, and since when.
func (a *Application) conclude() {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonSucceeded, Message: "loaded and attached as defined"}
	if a.Error != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NotHandedOver", a.Error
		meta.SetStatusCondition(&a.Conditions, ready)
		return
	}
	if a.Suspended && a.Agent == nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Suspended", "it is suspended and was never loaded"
		meta.SetStatusCondition(&a.Conditions, ready)
		return
	}
	for _, kind := range []string{v1alpha1.ConditionAllowed, v1alpha1.ConditionDeployed} {
		c := a.Condition(kind)
		switch {
		case c.Reason == "" && a.Agent != nil:
			// The gate has not evaluated it; what the agent says counts.
		case c.Reason == "NotSelected":
			ready.Reason, ready.Message = c.Reason, c.Message
		case c.Status != metav1.ConditionTrue:
			ready.Status, ready.Reason, ready.Message = c.Status, or(c.Reason, "Progressing"), or(c.Message, "not deployed yet")
			ready.LastTransitionTime = c.LastTransitionTime
			meta.SetStatusCondition(&a.Conditions, ready)
			return
		}
		if c.LastTransitionTime.After(ready.LastTransitionTime.Time) {
			ready.LastTransitionTime = c.LastTransitionTime
		}
	}
	meta.SetStatusCondition(&a.Conditions, ready)
}

func or(s, nothing string) string {
	if s == "" {
		return nothing
	}
	return s
}

// publish replaces the gate's side of the status, and logs what changed.
func (h *Host) publish(began time.Time, outcomes []outcome, on protections, sourceErr error) {
	s := Status{
		Source: SourceStatus{
			Address: h.opts.source().Shown(), Revision: h.catalog.tree.Revision, Cautions: h.catalog.defs.misplaced, Error: message(sourceErr),
			UnloadProtection: on.source,
		},
		Settings: SettingsStatus{Cautions: h.settings.cautions, Error: message(h.settings.err), Signers: []string{},
			Policies: h.opts.ActivePolicies()},
		UnloadProtection: on.policies, Problems: append([]schemas.Problem{}, h.catalog.defs.problems...), Synced: h.opts.Now(),
		Applications: []Application{},
	}
	if h.settings.evaluator != nil {
		s.Settings.Revision, s.Settings.Signers = h.settings.evaluator.Revision(), h.settings.trust.Names()
		_, s.Settings.PolicyRevision, _ = strings.Cut(h.settings.evaluator.RevisionIn(""), "/")
	}
	h.mu.Lock()
	before := h.status
	h.mu.Unlock()
	was := map[v1alpha1.Identity]Application{}
	for _, a := range before.Applications {
		was[a.Identity()] = a
	}
	for _, o := range outcomes {
		if o.def.app == nil && o.err == nil && (!o.Runs() || o.action == lifecycle.Unload) {
			continue
		}
		a := h.describe(o, was[o.id].Conditions)
		h.opts.logChange(was[o.id], a)
		s.Applications = append(s.Applications, a)
		for _, p := range a.Problems {
			if !slices.ContainsFunc(s.Problems, func(one schemas.Problem) bool { return one.Source == p.Source && one.Message == p.Message }) {
				s.Problems = append(s.Problems, p)
			}
		}
	}
	h.opts.logProtection(before.Source.UnloadProtection, s.Source.UnloadProtection)
	h.opts.logProtection(before.UnloadProtection, s.UnloadProtection)
	// Metrics first: whoever sees the status finds them as they are.
	h.metrics.synced(h.opts.Now().Sub(began), s)
	recordVersions(h, outcomes)
	h.mu.Lock()
	h.status, h.published = s, maps.Clone(h.versions.of)
	h.mu.Unlock()
	for what, err := range map[string]error{"read source": sourceErr, "read settings": h.settings.err} {
		if err != nil {
			h.opts.Log.Error(what, "error", err)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// describe is the gate's side of one application. The conditions before keep
// their transition times where nothing changed.
func (h *Host) describe(o outcome, before []metav1.Condition) Application {
	a := Application{
		Kind: o.id.Kind, Namespace: o.id.Namespace, Name: o.id.Name,
		Signers: []string{}, Reasons: []policies.Reason{}, Warnings: []policies.Reason{}, Audited: []policies.Reason{}, Programs: []agent.ProgramStatus{},
		Conditions: append([]metav1.Condition{}, before...), Error: message(o.err),
	}
	switch {
	case o.action == lifecycle.Unload:
		a.Unloaded = o.why
	case o.def.app != nil && o.action == lifecycle.Keep && o.Live != nil && o.Live.Tombstone:
		a.Unloaded = o.Live.Reason
	}
	if o.def.app == nil && o.Hidden {
		a.Problems = h.catalog.problemsOf(o.Live)
	}
	if o.def.app != nil {
		a.Source, a.Image = o.def.source, o.def.app.Body().Bytecode.Image
		a.Suspended = o.def.app.Body().Suspend
		if o.Err == nil {
			evidence, decision := o.Verdict.Evidence(), o.Verdict.Decision()
			a.Digest = o.Verdict.Image().Digest
			a.Signers = append(a.Signers, evidence.Signers()...)
			a.Reasons = append(a.Reasons, decision.Denied...)
			a.Warnings = append(append(a.Warnings, decision.Warnings...), noGroups(o.def.app.Body().Maps)...)
			a.Audited = append(a.Audited, decision.Audited...)
		}
		if t := h.tags[uidOf(o.id)]; t != nil && t.moved != "" {
			a.Warnings = append(a.Warnings, policies.Reason{Rule: "resolve/tag", Path: "spec.bytecode.image",
				Message: "the tag stands for " + t.moved + " now; " + t.digest + " stays active",
				Fix:     "change the definition, or its annotation " + gate.AnnotationRequestedAt + ", to take the new one"})
		}
	}
	if len(o.grants.Reasons) > 0 && o.action == lifecycle.Keep {
		a.Warnings = append(a.Warnings, policies.Reason{Rule: "running/grants", Path: "spec.maps", Message: o.grants.Why(), Fix: "grant what the policies allow"})
	}
	meta.SetStatusCondition(&a.Conditions, o.Verified(o.why))
	meta.SetStatusCondition(&a.Conditions, o.Allowed(o.why))
	return a
}

// logProtection says once that something waits for a human.
func (o Options) logProtection(was, is *UnloadProtection) {
	if is == nil || was != nil && was.Revision == is.Revision {
		return
	}
	o.Log.Error("unload protection holds: much of what runs would be unloaded, and is kept until it is confirmed", "reason", is.Reason,
		"applications", strings.Join(is.Applications, ", "), "confirm", "skep confirm "+is.Revision+" --state "+o.State)
}

// sameRule reports whether two reasons are of one rule, whatever their messages say.
func sameRule(a, b policies.Reason) bool { return a.Rule == b.Rule }

// logChange says once what a person would want to know.
func (o Options) logChange(was, is Application) {
	before, now := was.Condition(v1alpha1.ConditionAllowed), is.Condition(v1alpha1.ConditionAllowed)
	said := func(c metav1.Condition) string { return strings.SplitN(c.Message, lifecycle.AuditMark, 2)[0] }
	if before.Status == now.Status && said(before) == said(now) && was.Digest == is.Digest && slices.EqualFunc(was.Audited, is.Audited, sameRule) {
		return
	}
	o.Log.Info("application "+text.Words(now.Reason), "application", is.Identity().String(), "digest", is.Digest, "message", now.Message)
}
