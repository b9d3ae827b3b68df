package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// Stage is a step of an application's way from a commit to the nodes.
type Stage struct {
	// Name is source, signature, bytecode, verdict, rollout or nodes.
	Name  string     `json:"name"`
	State StageState `json:"state"`
	// Title is the outcome in a few words, and Lines say more of it.
	Title string   `json:"title"`
	Lines []string `json:"lines"`
}

// StageState says how a step went.
type StageState string

// The states of a step.
const (
	StageDone    StageState = "Done"
	StageFailed  StageState = "Failed"
	StageWaiting StageState = "Waiting"
	// StageUnknown could not be determined.
	StageUnknown StageState = "Unknown"
	// StageNone has nothing to do.
	StageNone StageState = "None"
)

// progress is what the steps of an application are made of.
type progress struct {
	Origin Origin
	// File is the file of the definition, or what else says where it is from.
	File   string
	Image  string
	Digest string
	// Programs are those of the definition, as HOOK NAME.
	Programs   []string
	Conditions []metav1.Condition
	Reasons    []policies.Reason
	// Aside counts warnings and what policies in mode Audit would deny.
	Aside     int
	Suspended bool
	// Rollout is nil where a version is everywhere, and on a host.
	Rollout *v1alpha1.RolloutStatus
	// Cluster says whether there are several nodes.
	Cluster bool
	// States are the letters of the nodes.
	States string
}

// stages describes the way of an application.
func (p progress) stages() []Stage {
	all := []Stage{p.source(), p.signature(), p.bytecode(), p.verdict(), p.rollout(), p.nodes()}
	for i := range all {
		all[i].Lines = append([]string{}, all[i].Lines...)
	}
	return all
}

func (p progress) condition(kind string) metav1.Condition {
	if c := meta.FindStatusCondition(p.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// deniedBy are the reasons of the rules of one step.
func (p progress) deniedBy(steps ...string) (lines []string) {
	for _, r := range p.Reasons {
		step, _, _ := strings.Cut(r.Rule, "/")
		if slices.Contains(steps, step) {
			lines = append(lines, r.Message)
		}
	}
	return lines
}

func (p progress) source() Stage {
	s := Stage{Name: "source", State: StageDone, Title: "Definition read"}
	for _, line := range []string{p.Origin.Text, short(p.Origin.Revision), p.File} {
		if line != "" {
			s.Lines = append(s.Lines, line)
		}
	}
	if p.Cluster {
		s.Title = "Stored"
	}
	if denied := p.deniedBy("shape"); len(denied) > 0 {
		s.State, s.Title, s.Lines = StageFailed, "Definition invalid", denied
	}
	if p.Origin.Error != "" {
		s.State, s.Title, s.Lines = StageFailed, "Source out of reach", append(s.Lines, p.Origin.Error)
	}
	if p.Suspended {
		s.Lines = append(s.Lines, "suspended: no new version is rolled out")
	}
	return s
}

func (p progress) signature() Stage {
	c := p.condition(v1alpha1.ConditionVerified)
	s := Stage{Name: "signature", Lines: lines(c.Message)}
	switch c.Status {
	case metav1.ConditionTrue:
		s.State, s.Title = StageDone, "Signed"
		s.Lines = lines(strings.TrimPrefix(c.Message, "signed "))
	case metav1.ConditionFalse:
		s.State, s.Title = StageFailed, "No signature counts"
		if p.condition(v1alpha1.ConditionAllowed).Status == metav1.ConditionTrue {
			s.State = StageNone
		}
	default:
		s.State, s.Title = undetermined(c)
	}
	return s
}

// undetermined is a step without a result.
func undetermined(c metav1.Condition) (StageState, string) {
	switch c.Reason {
	case "", lifecycle.ReasonPending:
		return StageWaiting, "Not evaluated yet"
	case lifecycle.ReasonImageNotFound:
		return StageFailed, "No such image"
	case lifecycle.ReasonNotEvaluated:
		return StageNone, "Not evaluated"
	}
	return StageUnknown, "Could not be determined"
}

func (p progress) bytecode() Stage {
	s := Stage{Name: "bytecode", State: StageDone, Title: count(len(p.Programs), "program") + " read", Lines: p.Programs}
	if p.Image != "" {
		s.Lines = append([]string{p.Image}, s.Lines...)
	}
	if p.Digest != "" {
		s.Lines = append(s.Lines, short(p.Digest))
	}
	if missing := p.deniedBy("resolve"); len(missing) > 0 {
		s.State, s.Title, s.Lines = StageFailed, "No such image", missing
		return s
	}
	switch denied := p.deniedBy("bytecode", "inspect"); {
	case len(denied) > 0:
		s.State, s.Title, s.Lines = StageFailed, "Does not fit", denied
	case p.Digest == "":
		s.State, s.Title = StageWaiting, "Not read"
	case len(p.Programs) == 0:
		s.Title = "Read"
	}
	return s
}

func (p progress) verdict() Stage {
	c := p.condition(v1alpha1.ConditionAllowed)
	s := Stage{Name: "verdict"}
	switch c.Status {
	case metav1.ConditionTrue:
		s.State, s.Title, s.Lines = StageDone, "Allowed", lines(strings.TrimPrefix(decided(c), "allowed "))
	case metav1.ConditionFalse:
		s.State, s.Title, s.Lines = StageFailed, "Denied", lines(c.Message)
		if n := len(p.Reasons); n > 0 {
			s.Lines = []string{p.Reasons[0].Rule, p.Reasons[0].Message}
			if fix := p.Reasons[0].Fix; fix != "" {
				s.Lines = append(s.Lines, "Fix: "+fix)
			}
			if n > 1 {
				s.Lines = append(s.Lines, "and "+count(n-1, "more reason"))
			}
		}
	default:
		s.State, s.Title = undetermined(c)
		s.Lines = lines(c.Message)
	}
	if p.Aside > 0 {
		s.Lines = append(s.Lines, count(p.Aside, "warning"))
	}
	return s
}

// decided is the message of Allowed without what policies in mode Audit say.
func decided(c metav1.Condition) string {
	message, _, _ := strings.Cut(c.Message, lifecycle.AuditMark)
	return message
}

// deciders are the policies that allowed, by the message of the condition.
func deciders(conditions []metav1.Condition) []string {
	c := progress{Conditions: conditions}.condition(v1alpha1.ConditionAllowed)
	names, allowed := strings.CutPrefix(decided(c), "allowed by ")
	if !allowed || names == "" {
		return []string{}
	}
	return strings.Split(names, ", ")
}

func (p progress) rollout() Stage {
	s := Stage{Name: "rollout", State: StageDone, Title: "Everywhere"}
	if p.Rollout == nil {
		denied := p.condition(v1alpha1.ConditionAllowed).Status == metav1.ConditionFalse
		switch {
		case denied && p.count('L', 'R') > 0:
			s.State, s.Title, s.Lines = StageNone, "Kept", []string{"the last allowed version keeps running"}
		case denied || p.count('L', 'P', 'W', 'F', 'U', 'R') == 0:
			s.State, s.Title = StageNone, "Nothing to roll out"
		case !p.Cluster:
			s.Title = "Handed to the agent"
		}
		return s
	}
	r := p.Rollout
	if r.Steps > 0 {
		s.Lines = []string{fmt.Sprintf("step %d of %d, %s", r.Step, r.Steps, count(int(r.Nodes), "node"))}
	}
	s.Lines, s.Title = append(s.Lines, lines(r.Message)...), string(r.State)
	switch r.State {
	case v1alpha1.RolloutStopped, v1alpha1.RolloutRolledBack:
		s.State = StageFailed
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutPaused, v1alpha1.RolloutNoMatchingNodes:
		s.State = StageWaiting
	}
	return s
}

// count counts the nodes in any of the states.
func (p progress) count(letters ...byte) (n int) {
	for _, l := range letters {
		n += strings.Count(p.States, string(l))
	}
	return n
}

func (p progress) nodes() Stage {
	c := p.condition(v1alpha1.ConditionDeployed)
	chosen := p.count('L', 'P', 'W', 'F', 'U', 'R')
	s := Stage{Name: "nodes", State: StageWaiting, Title: fmt.Sprintf("Loaded on %d of %d", p.count('L'), chosen), Lines: lines(c.Message)}
	if !p.Cluster {
		s.Title = cmp.Or(map[metav1.ConditionStatus]string{metav1.ConditionTrue: "Loaded", metav1.ConditionFalse: c.Reason}[c.Status], "Not loaded")
	}
	switch {
	case chosen == 0:
		s.State, s.Title = StageNone, "On no node"
	case p.count('F', 'U') > 0:
		s.State = StageFailed
	case p.count('L') == chosen:
		s.State = StageDone
	}
	return s
}

// lines are none for no text.
func lines(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// short is a digest or a commit as people compare them.
func short(s string) string {
	hash := strings.TrimPrefix(s, "sha256:")
	if len(hash) > 12 && strings.Trim(hash, "0123456789abcdef") == "" {
		return hash[:12]
	}
	return s
}

// count is a number and its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
