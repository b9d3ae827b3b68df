package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/text"
)

// maxMessage and maxWord bound a message and the words of a foreign program in
// characters, as the CRD does.
const (
	maxMessage = 1024
	maxWord    = 64
)

// facts are all that a BpfNode is made of.
type facts struct {
	version      string
	profile      v1alpha1.KernelProfile
	applications []agent.ApplicationStatus
	// fare is how an application's BpfIntent fared; empty where there is none.
	fare func(uid string) string
	// pods are how many have programs attached.
	pods int32
	// programs is nil where they cannot be listed.
	programs []inventory.Program
	// conditions are those that the BpfNode has, and now is the time of one that changes.
	conditions []metav1.Condition
	now        time.Time
	// beside is how many bytes the BpfNode has beside its status; reserve where that
	// is more.
	beside int
}

// status puts together what is reported, of no more than MaxBpfNodeBytes with what
// the BpfNode has beside it.
func (f facts) status() v1alpha1.BpfNodeStatus {
	s := v1alpha1.BpfNodeStatus{
		Agent:  v1alpha1.AgentInfo{Version: f.version, IntentFormat: intent.FormatVersion},
		Kernel: f.profile,
	}
	s.Counts.Pods = f.pods
	f.addApplications(&s)
	f.addPrograms(&s)
	s.SharedTargets = f.shares()
	s.Conditions = f.ready(s)
	f.fit(&s, v1alpha1.MaxBpfNodeBytes-max(reserve, f.beside))
	// As it comes back: a list of nothing is none.
	if len(s.Unmanaged) == 0 {
		s.Unmanaged = nil
	}
	if len(s.Applications) == 0 {
		s.Applications = nil
	}
	if len(s.Loaded) == 0 {
		s.Loaded = nil
	}
	return s
}

// addApplications reports and counts the applications.
func (f facts) addApplications(s *v1alpha1.BpfNodeStatus) {
	for _, a := range f.applications {
		one, fare := describe(a), f.fare(a.UID)
		if fare == overtaken || fare == "" {
			// The API server lost what was accepted here: it is to learn how new that was.
			one.Serial = a.Serial
		}
		if one.Kind == "" {
			// What has no name runs nothing: its links say whose they are.
			continue
		}
		if one.State == v1alpha1.NodeRemoved && fare == "" || a.Held && a.Wanted == "" && a.Revision == "" {
			continue
		}
		switch one.State {
		case v1alpha1.NodeLoaded:
			s.Counts.Loaded++
		case v1alpha1.NodeFailed:
			s.Counts.Failed++
		}
		s.Applications = append(s.Applications, one)
	}
}

// podsOf counts the pods of this node in which programs are attached.
func podsOf(applications []agent.ApplicationStatus) int32 {
	pods := map[string]bool{}
	for _, a := range applications {
		for _, p := range a.Programs {
			for _, l := range p.Links {
				if pod, isPod := strings.CutPrefix(l.On.In, plan.InPod); isPod && l.State == agent.Attached {
					pod, _, _ = strings.Cut(pod, plan.InContainer)
					pods[pod] = true
				}
			}
		}
	}
	return int32(len(pods))
}

// ready is the one condition of a BpfNode. It keeps its time unless its status changes, and says nothing that changes without a count.
func (f facts) ready(s v1alpha1.BpfNodeStatus) []metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAgentReporting, Message: "no application failed",
		LastTransitionTime: metav1.NewTime(f.now.UTC().Truncate(time.Second)),
	}
	if s.Counts.Failed > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonApplicationsFailed
		c.Message = fmt.Sprintf("applications that failed: %d; status.applications has their messages", s.Counts.Failed)
	}
	if before := meta.FindStatusCondition(f.conditions, c.Type); before != nil && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return []metav1.Condition{c}
}

// shares are those of namespaces, in the order of their names; of too many, those that have most of what they may have.
func (f facts) shares() []v1alpha1.NamespaceShare {
	of := map[string]v1alpha1.NamespaceShare{}
	for _, a := range f.applications {
		if a.SharedTargets != nil {
			of[a.SharedTargets.Namespace] = *a.SharedTargets
		}
	}
	byName := func(x, y v1alpha1.NamespaceShare) int { return cmp.Compare(x.Namespace, y.Namespace) }
	all := slices.SortedFunc(maps.Values(of), byName)
	slices.SortStableFunc(all, func(x, y v1alpha1.NamespaceShare) int { return cmp.Compare(y.Fullness(), x.Fullness()) })
	all = all[:min(len(all), v1alpha1.MaxNamespaceShares)]
	slices.SortFunc(all, byName)
	return all
}

// addPrograms counts the programs, and reports as many of the unmanaged ones as a status may name.
func (f facts) addPrograms(s *v1alpha1.BpfNodeStatus) {
	for _, p := range f.programs {
		s.Counts.Programs++
		if p.Managed {
			continue
		}
		s.Counts.Unmanaged++
		if len(s.Unmanaged) < v1alpha1.MaxUnmanagedPrograms {
			s.Unmanaged = append(s.Unmanaged, unmanaged(p))
		}
	}
}

// reserve is what the BpfNode has beside its status where nothing was added to it.
// maxBeside bounds what others may have added, such as labels: beyond it, it is taken
// off, since the report would have no room left.
const (
	reserve   = 1 << 10
	maxBeside = 8 << 10
)

// besideStatus is how many bytes a BpfNode has beside its status and managedFields,
// which the agent clears.
func besideStatus(n *v1alpha1.BpfNode) int {
	if n == nil {
		return 0
	}
	bare := v1alpha1.BpfNode{TypeMeta: n.TypeMeta, ObjectMeta: n.ObjectMeta}
	bare.ManagedFields = nil
	body, err := json.Marshal(bare)
	if err != nil {
		// Its types have nothing that JSON lacks.
		return 0
	}
	return len(body)
}

// describe says of one application what others need to know.
func describe(a agent.ApplicationStatus) v1alpha1.NodeApplication {
	state, message := a.NodeState()
	return v1alpha1.NodeApplication{
		Kind: a.Application.Kind, Namespace: a.Application.Namespace, Name: a.Application.Name,
		UID: a.UID, Serial: a.Version, Revision: a.Revision, State: state, Message: text.CutRunes(message, maxMessage), Skipped: text.CutRunes(a.Skipped, maxMessage),
	}
}

// unmanaged is a program of somebody else's.
func unmanaged(p inventory.Program) v1alpha1.UnmanagedProgram {
	f := v1alpha1.UnmanagedProgram{ID: int64(p.ID), Type: text.CutRunes(p.Type, maxWord), Name: text.CutRunes(p.Name, maxWord)}
	if len(p.Holders) > 0 {
		f.LoadedBy = text.CutRunes(p.Holders[0].Name, maxWord)
	}
	return f
}

// fit makes the status fit: what runs is said in short, then shares and unmanaged programs
// go, then words, then applications, those that run first. The counts stay.
func (f facts) fit(s *v1alpha1.BpfNodeStatus, most int) {
	if size(s) <= most {
		return
	}
	f.abridge(s)
	if size(s) > most {
		s.SharedTargets = nil
	}
	foreign, applications := s.Unmanaged, s.Applications
	s.Unmanaged = foreign[:fewer(len(foreign), func(n int) bool {
		s.Unmanaged = foreign[:n]
		return size(s) <= most
	})]
	longest := fewer(maxMessage, func(n int) bool {
		s.Applications = shortened(applications, n)
		return size(s) <= most
	})
	s.Applications = shortened(applications, longest)
	if size(s) > most {
		// Without its words, what runs without a part of it is said in short, too.
		f.abridge(s)
	}
	if size(s) > most {
		leaveOut(s, most)
	}
}

// abridge tells in short what is Loaded by the very intent that the API server
// has. What was lost there, or is older there than here, the controller is to
// learn in full. What is not for the node, or is gone from it, is not waited for.
func (f facts) abridge(s *v1alpha1.BpfNodeStatus) {
	var rest []v1alpha1.NodeApplication
	for _, a := range s.Applications {
		switch {
		case a.State == v1alpha1.NodeNotSelected || a.State == v1alpha1.NodeRemoved:
		case a.State == v1alpha1.NodeLoaded && a.Message == "" && a.Skipped == "" && f.fare(a.UID) == accepted:
			s.Loaded = append(s.Loaded, v1alpha1.LoadedAs(a.UID, a.Serial))
		default:
			rest = append(rest, a)
		}
	}
	s.Applications = rest
}

// leaveOut leaves out those last that somebody has to know of, and counts them
// all.
func leaveOut(s *v1alpha1.BpfNodeStatus, most int) {
	ranked, loaded := slices.Clone(s.Applications), s.Loaded
	slices.SortStableFunc(ranked, func(x, y v1alpha1.NodeApplication) int { return cmp.Compare(rank(x.State), rank(y.State)) })
	all := len(ranked) + len(loaded)
	keep := func(n int) bool {
		s.Applications, s.Loaded = ranked[:min(n, len(ranked))], loaded[:max(0, n-len(ranked))]
		s.Counts.NotReported = int32(all - n)
		return size(s) <= most
	}
	keep(fewer(all, keep))
}

// fewer is the greatest number up to n that fits, 0 where none does.
func fewer(n int, fits func(int) bool) int {
	if n == 0 || fits(n) {
		return n
	}
	return max(0, sort.Search(n, func(i int) bool { return !fits(i) })-1)
}

// rank puts first what somebody has to know.
func rank(s v1alpha1.NodeState) int {
	switch s {
	case v1alpha1.NodeFailed, v1alpha1.NodeUnsupported:
		return 0
	case v1alpha1.NodeRemoved, v1alpha1.NodePending, v1alpha1.NodeWaiting, v1alpha1.NodeRetained:
		return 1
	case v1alpha1.NodeLoaded, v1alpha1.NodeNotSelected:
	}
	return 2
}

// shortened are the applications with messages of at most so many characters.
func shortened(all []v1alpha1.NodeApplication, most int) []v1alpha1.NodeApplication {
	short := slices.Clone(all)
	for i := range short {
		short[i].Message, short[i].Skipped = text.CutRunes(short[i].Message, most), text.CutRunes(short[i].Skipped, most)
	}
	return short
}

// size is that of the status as JSON, in bytes.
func size(s *v1alpha1.BpfNodeStatus) int {
	body, err := json.Marshal(s)
	if err != nil {
		// Its types have nothing that JSON lacks.
		return 0
	}
	return len(body)
}

// mergePatch is what a JSON merge patch (RFC 7396) has to say to make of one
// value the other, nil where they are alike.
func mergePatch(from, to any) (map[string]any, error) {
	x, err := asObject(from)
	if err != nil {
		return nil, err
	}
	y, err := asObject(to)
	if err != nil {
		return nil, err
	}
	return mergeObjects(x, y), nil
}

func asObject(v any) (map[string]any, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var o map[string]any
	return o, json.Unmarshal(body, &o)
}

func mergeObjects(from, to map[string]any) map[string]any {
	var patch map[string]any
	set := func(key string, v any) {
		if patch == nil {
			patch = map[string]any{}
		}
		patch[key] = v
	}
	for key, want := range to {
		have, is := from[key]
		x, both := have.(map[string]any)
		y, objects := want.(map[string]any)
		switch {
		case is && both && objects:
			if inner := mergeObjects(x, y); inner != nil {
				set(key, inner)
			}
		case !is || !reflect.DeepEqual(have, want):
			set(key, want)
		}
	}
	for key := range from {
		if _, stays := to[key]; !stays {
			set(key, nil)
		}
	}
	return patch
}
