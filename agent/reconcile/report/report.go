// Package report makes the status of applications out of the outcomes of a reconcile and of
// what the kernel runs. It changes nothing.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/position"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// ApplicationStatus is one application on this node, as skep status prints it.
type ApplicationStatus struct {
	Application v1alpha1.Identity `json:"application"`
	UID         string            `json:"uid"`
	// Serial is the newest intent's; Tombstone tells that it is to go by it.
	Serial    int64 `json:"serial"`
	Tombstone bool  `json:"tombstone,omitempty"`
	// Unloading reports of a tombstone that something is left in the kernel.
	Unloading bool `json:"unloading,omitempty"`
	// Version is the serial under which what is wanted here was first sealed.
	Version int64 `json:"version"`
	// Held tells that Wanted is the version before the newest intent's, whose
	// rollout has not come to this node.
	Held bool `json:"retained,omitempty"`
	// Revision is what runs; empty where nothing does.
	Revision string `json:"revision,omitempty"`
	// Pins is the folder that has the pins of the revision: a map's is m-NAME in it, with the
	// bytes of NAME other than letters, digits and _ as %xx. It is another one after an update.
	Pins string `json:"pins,omitempty"`
	// Wanted is the newest intent's revision.
	Wanted string `json:"wanted,omitempty"`
	// Image is the reference as written, Digest what it resolved to, and Signers
	// whose signatures counted.
	Image   string   `json:"image,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Signers []string `json:"signers,omitempty"`
	// Programs that are in the kernel or are to be.
	Programs []ProgramStatus `json:"programs"`
	// Alternatives are those of what runs.
	Alternatives []AlternativeStatus `json:"alternatives,omitempty"`
	// Maps tells what became of each map at the last change of revision.
	Maps []loader.MapReport `json:"maps,omitempty"`
	// TakenMaps are those that it has from other applications.
	TakenMaps []TakenMap `json:"takenMaps,omitempty"`
	// SharedTargets is what the applications of its namespace have together at targets that tasks of others run, too; nil
	// where they have nothing.
	SharedTargets *v1alpha1.NamespaceShare `json:"sharedTargets,omitempty"`
	// Conditions hold Deployed.
	Conditions []metav1.Condition `json:"conditions"`
	// Skipped says what the definition leaves to the node and the node is without; empty
	// where that is nothing but later sets of alternatives.
	Skipped string `json:"skipped,omitempty"`
	// Error is the last one, in one line, with the kernel's own last words.
	Error string `json:"error,omitempty"`
	// Unsupported tells that the kernel lacks what the newest intent needs, as
	// Error says.
	Unsupported bool `json:"unsupported,omitempty"`
	// VerifierLog is all the verifier said at the last rejection.
	VerifierLog string `json:"verifierLog,omitempty"`
	// UnmanagedFiles are the paths among its pins that are not Skep's or cannot be read,
	// each with why. They are left alone.
	UnmanagedFiles []string `json:"unmanagedFiles,omitempty"`
	// ReadersFolder is where members of the groups that maps are granted to find them, and UnpublishedMaps say why they do
	// not find others.
	ReadersFolder   string   `json:"readersFolder,omitempty"`
	UnpublishedMaps []string `json:"unpublishedMaps,omitempty"`
}

// ProgramStatus is one function of an application.
type ProgramStatus struct {
	Name string `json:"name"`
	// ID is the kernel's id, 0 where it is not loaded, Tag the hash of its
	// instructions.
	ID  uint32 `json:"id"`
	Tag string `json:"tag,omitempty"`
	// Links are the places it attaches to.
	Links []LinkStatus `json:"links"`
}

// LinkState says how one attachment is doing.
type LinkState string

// The states of an attachment.
const (
	// Attached runs.
	Attached LinkState = "Attached"
	// Waiting has no target yet.
	Waiting LinkState = "Waiting"
	// Failed was rejected; Error says why.
	Failed LinkState = "Failed"
	// NoPods is in no pod, since the node has none that is chosen. That is no failure.
	NoPods LinkState = "NoPods"
	// Ran is no place: the program ran once, when its version was loaded.
	Ran LinkState = "Ran"
	// Skipped is left to the node by the definition, which is without it; Error says why.
	Skipped LinkState = "Skipped"
	// SwitchedOff is a member of a chain that runs without it. It leaves when the next chain is loaded.
	SwitchedOff LinkState = "SwitchedOff"
	// DriftConflict was taken away so often that it is put back ever more slowly.
	DriftConflict LinkState = "DriftConflict"
)

// LinkStatus is one attachment.
type LinkStatus struct {
	Hook   string `json:"hook"`
	Target string `json:"target"`
	// ID is the kernel's id of the link, 0 where there is none.
	ID uint32 `json:"linkId,omitempty"`
	// XDPMode is how the interface runs an XDP program, and XDPReason why its driver does not,
	// where that was tried.
	XDPMode   v1alpha1.XDPMode `json:"xdpMode,omitempty"`
	XDPReason string           `json:"xdpReason,omitempty"`
	// Filter is that of a program which no link attaches, as tc filter show names it.
	Filter string `json:"filter,omitempty"`
	// Pin is the link's path, or that of the filter's program; reading an iterator's runs it.
	Pin   string    `json:"pin,omitempty"`
	State LinkState `json:"state"`
	Error string    `json:"error,omitempty"`
	// Behind are the programs of others that the kernel runs before it on the same hook: each can end the run.
	Behind []others.Program `json:"behind,omitempty"`
	// NeverRan is how many packets the interface received, or sent on egress, while the program was attached and did not run
	// once; 0 where it ran, or that is not known.
	NeverRan uint64 `json:"neverRan,omitempty"`
	// PositionLost says why the program is not on the side of those of others that its definition asks for.
	PositionLost string `json:"positionLost,omitempty"`
	// On is Target as the node has it, or as far as a definition names it. Priority is the definition's, and Program the kernel's id of
	// what runs there.
	On       plan.Target `json:"-"`
	Priority int32       `json:"-"`
	Program  uint32      `json:"-"`
}

// Application is what a status is made of, besides the outcome.
type Application struct {
	version.Known
	// Maps are what became of the maps at the last change of revision.
	Maps []loader.MapReport
	// VerifierLog is what the verifier said at the last rejection.
	VerifierLog string
	// Rejected reports that the newest version could not be had before.
	Rejected bool
	// Conflict says that another intent was sent under the newest one's serial.
	Conflict error
	// Before is the last status.
	Before ApplicationStatus
}

// View is what one reconcile saw.
type View struct {
	Look *live.Look
	// Positions are where programs are to run among those of others; nil asks for none.
	Positions *position.Round
	// UnmanagedFiles by the UID they lie under.
	UnmanagedFiles map[string][]string
	Now            time.Time
}

// Orphan returns the status of an application whose intent this node
// does not have. It is kept as it is: absence unloads nothing. The outcome may be nil.
func (v View) Orphan(uid string, out *Outcome) ApplicationStatus {
	s := v.remains(uid)
	runs := "it runs"
	if s.isOff() {
		runs = "it is switched off, and is in a chain still"
	}
	s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionUnknown, Reason: "IntentLost",
		Message: runs + ", and this node has no intent for it; send the intent or a tombstone", LastTransitionTime: metav1.NewTime(v.Now)}}
	if out != nil {
		s.Error = describeAll(out.Errs)
	}
	return s
}

// remains is what the kernel runs of an application, whatever is wanted of it.
func (v View) remains(uid string) ApplicationStatus {
	s := ApplicationStatus{UID: uid, Programs: []ProgramStatus{}, UnmanagedFiles: v.UnmanagedFiles[uid]}
	names := map[string]bool{}
	for l := range v.Look.LinksOf(uid) {
		s.Application, names[l.Attachment.Program] = l.Attachment.Application, true
		s.Revision = cmp.Or(v.Look.RevisionOf(l, v.Look.Facts(l)), s.Revision)
	}
	for _, m := range v.Look.Members(uid) {
		s.Application, s.Revision, names[m.Program] = m.Identity, m.Revision, true
	}
	for _, r := range v.Look.Set.Remnants.Of(uid) {
		s.Application = r.Attachment.Application
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		one := ProgramStatus{Name: name, Links: v.linksOf(uid, name)}
		for _, r := range v.Look.Revisions()[uid] {
			one.ID, one.Tag = r.Identify(name)
		}
		s.Programs = append(s.Programs, one)
	}
	s.Pins = v.Look.Set.RevisionPins(uid, s.Revision)
	return s
}

// links reports whether a link of the application runs the revision.
func (v View) links(uid, revision string) bool {
	for l := range v.Look.LinksOf(uid) {
		if v.Look.RevisionOf(l, v.Look.Facts(l)) == revision {
			return true
		}
	}
	return slices.ContainsFunc(v.Look.Members(uid), func(m plan.Member) bool { return m.Revision == revision })
}

// describeAll joins errors, one a line. An event that the node has no counter for fails on every
// CPU, and is told of the first.
func describeAll(errs []error) string {
	var lines []string
	told := map[string]bool{}
	for _, err := range errs {
		lacks := new(attach.LackingError)
		if errors.As(err, &lacks) && lacks.Hook.Shape == hook.PerfEvent {
			if told[lacks.Error()] {
				continue
			}
			told[lacks.Error()] = true
		}
		if err != nil {
			lines = append(lines, err.Error())
		}
	}
	return strings.Join(lines, "\n")
}

// Application returns the status of an application that this node has an intent of.
func (v View) Application(app Application, out *Outcome) ApplicationStatus {
	payload := app.Newest.Payload()
	s := ApplicationStatus{
		Application: payload.Application, UID: payload.UID,
		Serial: payload.Serial, Version: payload.VersionSerial(), Tombstone: payload.Tombstone, Held: app.Newest.Held(),
		Image: payload.Image, Digest: payload.ImageDigest, Signers: payload.Signers,
		Programs: []ProgramStatus{}, Maps: app.Maps, VerifierLog: app.VerifierLog, UnmanagedFiles: v.UnmanagedFiles[payload.UID],
	}
	if !payload.Tombstone {
		s.Wanted = app.Newest.Revision()
	}
	// What is to go, cannot be had or is not whole leaves something else running.
	left := v.remains(payload.UID)
	s.Revision, s.Programs = left.Revision, left.Programs
	if runs := out.Version(); runs != nil {
		s.Programs = v.programs(*runs, out, left.Programs)
		for _, one := range left.Programs {
			if !slices.ContainsFunc(s.Programs, func(other ProgramStatus) bool { return other.Name == one.Name }) {
				s.Programs = append(s.Programs, one)
			}
		}
		if left.Revision == "" || len(out.Errs) == 0 || v.links(payload.UID, runs.Revision()) {
			s.Revision = runs.Revision()
		}
	}
	s.Pins = v.Look.Set.RevisionPins(payload.UID, s.Revision)
	s.Alternatives, s.TakenMaps = out.alternatives(), out.TakenMaps
	s.Skipped = describeSkipped(out, s.Alternatives)
	s.Unloading = payload.Tombstone && v.Look.Set.Has(payload.UID)
	s.Error = describeAll(append(slices.Clip(out.Errs), app.Conflict))
	s.Unsupported = errors.Is(errors.Join(out.Errs...), ebpf.ErrNotSupported)
	s.Conditions = []metav1.Condition{v.deployedCondition(app, out, s)}
	return s
}

// programs lists the functions of the intent that runs, and their links, which are among what remains.
func (v View) programs(o intent.Opened, out *Outcome, remains []ProgramStatus) []ProgramStatus {
	var all []ProgramStatus
	payload := o.Payload()
	for _, program := range payload.Programs {
		one := ProgramStatus{Name: program.Name, Links: []LinkStatus{}}
		if r := v.Look.Revision(payload.UID, o.Revision()); r != nil {
			one.ID, one.Tag = r.Identify(program.Name)
		}
		if i := slices.IndexFunc(remains, func(p ProgramStatus) bool { return p.Name == program.Name }); i >= 0 {
			one.Links = append(one.Links, remains[i].Links...)
		}
		for _, u := range out.Links {
			if u.Program == program.Name {
				one.Links = addUnmade(one.Links, u.Status)
			}
		}
		all = append(all, one)
	}
	return all
}

// addUnmade adds what could not be done: to the link it was about, or as one
// that there is not.
func addUnmade(links []LinkStatus, u LinkStatus) []LinkStatus {
	for i, l := range links {
		if l.Hook == u.Hook && l.Target == u.Target {
			links[i].Error = u.Error
			if u.State == DriftConflict {
				links[i].State = DriftConflict
			}
			return links
		}
	}
	return append(links, u)
}

func (v View) linksOf(uid, program string) []LinkStatus {
	var all []LinkStatus
	for l := range v.Look.LinksOf(uid) {
		if l.Attachment.Program == program {
			facts := v.Look.Facts(l)
			one := linkStatus(l.Attachment.Hook, l.Attachment.Place(), l.Path, facts)
			one.On, one.Priority = l.Attachment.Target, l.Attachment.Priority
			one.Behind, one.NeverRan = v.Look.Others.Ahead(l.Attachment, facts), LinkNeverRan(v.Look, l, facts, v.Now)
			if v.Positions != nil {
				one.PositionLost = v.Positions.Describe(l.UID, l.Attachment)
			}
			all = append(all, one)
		}
	}
	for device, c := range v.Look.Chains() {
		for _, m := range v.Look.GivenTo(device) {
			if m.UID == uid && m.Program == program {
				on := v.Look.Interface(device)
				one := linkStatus(plan.XDP, on.Label(), v.Look.Set.ChainPin(device), v.Look.ChainFacts(c))
				one.On, one.Priority = plan.Target{Ifindex: device.Index, NetnsID: device.NetnsID, Interface: on.Name, In: on.In}, m.Priority
				one.XDPMode, one.XDPReason = c.Mode, c.Fallback
				if one.State == Attached && c.Version.IsOff(m) {
					one.State = SwitchedOff
				}
				one.NeverRan = MemberNeverRan(v.Look, c, m, v.Now)
				all = append(all, one)
			}
		}
	}
	slices.SortFunc(all, func(a, b LinkStatus) int {
		return cmp.Or(strings.Compare(a.Hook, b.Hook), strings.Compare(a.Target, b.Target))
	})
	return all
}

func linkStatus(hook, target, path string, facts pins.Facts) LinkStatus {
	s := LinkStatus{Hook: hook, Target: target, ID: uint32(facts.ID), Pin: path, State: Attached, Program: uint32(facts.Program)}
	if f := facts.Filter; f.Pref > 0 {
		s.Filter = fmt.Sprintf("clsact pref %d handle %#x", f.Pref, f.Handle)
	}
	if facts.Severed {
		s.State, s.Error = Failed, "somebody else detached it, or its target went"
	}
	return s
}

// isOff reports whether nothing of what is in the kernel runs, since it is switched off.
func (s ApplicationStatus) isOff() bool {
	off := false
	for _, p := range s.Programs {
		for _, l := range p.Links {
			if l.State == SwitchedOff {
				off = true
			} else if l.ID != 0 || l.Filter != "" {
				return false
			}
		}
	}
	return off
}

// IsAttached reports whether a program of it runs at a place.
func (s ApplicationStatus) IsAttached() bool {
	return slices.ContainsFunc(s.Programs, func(p ProgramStatus) bool {
		return slices.ContainsFunc(p.Links, func(l LinkStatus) bool { return l.State == Attached })
	})
}

// describeDeployed sums up what its programs do where all are as defined. What is attached need not have run.
func (s ApplicationStatus) describeDeployed() string {
	noPods := false
	for _, p := range s.Programs {
		for _, l := range p.Links {
			if l.NeverRan > 0 {
				return "every program is attached"
			}
			noPods = noPods || l.State == NoPods
		}
	}
	if noPods && !s.IsAttached() {
		return "every program is loaded and runs nowhere, since this node has no pod that is selected"
	}
	return "every program runs"
}

// KeepsMap reports whether a map of another application is not the one that it has now.
func (s ApplicationStatus) KeepsMap() bool {
	return slices.ContainsFunc(s.TakenMaps, func(m TakenMap) bool { return m.Message != "" })
}

// NodeState is the state in a word, as a BpfNode has it, and why where it is not Loaded.
func (s ApplicationStatus) NodeState() (v1alpha1.NodeState, string) {
	var c metav1.Condition
	for _, one := range s.Conditions {
		if one.Type == v1alpha1.ConditionDeployed {
			c = one
		}
	}
	message := cmp.Or(s.Error, c.Message)
	switch {
	case s.Unsupported:
		return v1alpha1.NodeUnsupported, message
	case s.Error != "" || c.Status == metav1.ConditionUnknown:
		// Unknown is what runs without an intent.
		return v1alpha1.NodeFailed, message
	case s.Tombstone && s.Revision == "" && !s.Unloading:
		return v1alpha1.NodeRemoved, ""
	case c.Status == metav1.ConditionTrue && len(s.UnmanagedFiles) == 0 && !s.KeepsMap() && s.notes() == "":
		return v1alpha1.NodeLoaded, ""
	case c.Status == metav1.ConditionTrue:
		return v1alpha1.NodeLoaded, message
	case c.Reason == "NotSelected" && s.Revision == "":
		return v1alpha1.NodeNotSelected, ""
	case c.Reason == "Waiting":
		return v1alpha1.NodeWaiting, message
	}
	return v1alpha1.NodePending, message
}

// maxUnmanagedFiles bounds how many strays a condition names.
const maxUnmanagedFiles = 3

// whyNotDeployed says in one word and one sentence why an application does not run as it is to; both are
// empty where it does.
func (v View) whyNotDeployed(app Application, out *Outcome, s ApplicationStatus) (reason, message string) {
	if app.Newest.Payload().Tombstone {
		return whyNotGone(app, out, s)
	}
	keepsPrevious := s.Revision != "" && s.Revision != s.Wanted && !s.isOff()
	hindrance := out.Hindrance()
	if app.Rejected && s.Error != "" {
		// Another attempt is under way: what is known until it ends is the last one.
		hindrance = Refused{}
	}
	switch h := hindrance.(type) {
	case Queued:
		return "Queued", h.Why
	case Loading:
		return "Loading", build.ErrLoading.Error()
	case Fetching:
		return "Fetching", objects.ErrFetching.Error()
	case AwaitingMap:
		switch {
		case s.Error != "":
		case keepsPrevious:
			return "Waiting", "the previous revision runs on, and the newest " + h.Why
		default:
			return "Waiting", h.Why
		}
	case Refused:
	}
	switch {
	case s.Error != "" && keepsPrevious:
		return "KeptPrevious", "the previous revision runs on: " + s.Error
	case s.Error != "":
		return "Failed", s.Error
	case (out.WhatEnds() != "" || len(v.Look.Set.Remnants.Of(s.UID)) > 0 && attachesNothing(out.Version())) && !s.IsAttached():
		return "Unloading", "it is attached nowhere here, and the kernel has not ended what ran: " + cmp.Or(out.WhatEnds(), "it ends links in the background")
	}
	switch out.State.(type) {
	case Running, FallingBack:
		if at := out.waiting(); at != nil {
			return "Waiting", at.Status.Error
		}
		return "", ""
	case Staying, Unloading:
	}
	if s.Held {
		return "Retained", "the rollout has not come to this node, and there was no version before"
	}
	return "NotSelected", "the node selector does not match this node"
}

// attachesNothing reports whether a version, or none, has nothing to attach on any node.
func attachesNothing(live *intent.Opened) bool {
	return live == nil || !slices.ContainsFunc(live.Payload().Programs, func(p v1alpha1.Program) bool { return len(p.Attach) > 0 })
}

// whyNotGone says what there is left of an application that is to go.
func whyNotGone(app Application, out *Outcome, s ApplicationStatus) (reason, message string) {
	why := cmp.Or(s.Error, out.WhatEnds())
	if queued, is := out.Hindrance().(Queued); is {
		why = cmp.Or(why, queued.Why)
	}
	switch {
	case s.isOff():
		return "Unloading", "it is switched off, and runs no more; it is in a chain still: " + cmp.Or(why, "the chain without it is being loaded")
	case s.Revision != "":
		return "Unloading", "it is to go and runs still: " + cmp.Or(why, "a chain that it is in waits for another member's object")
	case s.Unloading || s.Error != "":
		return "Unloading", "it is to go, and something of it is left: " + cmp.Or(why, "the kernel frees it")
	}
	return "Unloaded", "unloaded: " + app.Newest.Payload().Reason
}

// deployedCondition says in one word and one sentence how it is.
func (v View) deployedCondition(app Application, out *Outcome, s ApplicationStatus) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionTrue, Reason: "Deployed",
		Message: s.describeDeployed(), LastTransitionTime: metav1.NewTime(v.Now)}
	if s.Skipped != "" {
		c.Message += ", but for what is optional: " + s.Skipped
	}
	if reason, message := v.whyNotDeployed(app, out, s); reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
	}
	for _, m := range s.TakenMaps {
		if m.Message != "" {
			c.Message += fmt.Sprintf("; map %s: %s", m.Map, m.Message)
		}
	}
	if n := len(s.UnmanagedFiles); n > 0 {
		c.Message += fmt.Sprintf("; %d among its pins are left alone: %s", n, strings.Join(s.UnmanagedFiles[:min(n, maxUnmanagedFiles)], "; "))
	}
	if notes := s.notes(); notes != "" && c.Status == metav1.ConditionTrue {
		c.Message += "; " + notes
	}
	for _, old := range app.Before.Conditions {
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}
