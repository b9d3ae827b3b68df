package schemas

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Position is a place in a source file.
type Position struct {
	// File is relative to the root of the source, with slashes. Empty where
	// the place is not in a file.
	File string `json:"file,omitempty"`
	// Line and Column count from 1; 0 means unknown. Columns count bytes.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
}

// String is file:line:column, as far as it is known.
func (p Position) String() string {
	switch {
	case p.File == "":
		return "unknown position"
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one reason why a definition, or a whole file, is rejected.
type Problem struct {
	// Source is the place in the source that is at fault.
	Source Position `json:"source"`
	// Definition is whose problem it is. Nil where that is not known, because
	// the file cannot be read: it may then hide any number of definitions.
	Definition *v1alpha1.Identity `json:"definition,omitempty"`
	// Path is the CUE path from the top of the package or document, such as
	// apps.edge.spec.programs[0].name; empty where the problem has none.
	Path string `json:"path,omitempty"`
	// Field is the part of Path inside the definition, such as
	// spec.programs[0].name.
	Field string `json:"field,omitempty"`
	// Message says what is wrong and Fix what would fix it.
	Message string `json:"message"`
	Fix     string `json:"fix"`
	// unit is the path of the unit that was rendered; empty where none was.
	unit string
}

// Error is the problem on one line.
func (p Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", p.Source)
	if p.Definition != nil {
		fmt.Fprintf(&b, "%s %s: ", p.Definition.Kind, p.Definition)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Message)
	if p.Fix != "" {
		fmt.Fprintf(&b, " (%s)", p.Fix)
	}
	return b.String()
}

// Definition is one application and where it was written.
type Definition struct {
	Application v1alpha1.Application
	Source      Position
	// Unit is what was rendered to find it: a file, or the folder of a CUE
	// package, whose templates may stand elsewhere.
	Unit string
	// places are those of the fields, by path; see At.
	places map[string]Position
}

// Definitions is what a source holds, good and bad.
type Definitions struct {
	// Applications are the good ones, sorted by kind, namespace and name.
	Applications []Definition
	// Policies, ClusterPolicies and Signers are the good ones of the other
	// kinds. Whether a source may bring these is the caller's decision.
	Policies        []v1alpha1.BpfPolicy
	ClusterPolicies []v1alpha1.ClusterBpfPolicy
	Signers         []v1alpha1.BpfSigner
	// Unjudged says of each object of another kind of the group that Skep evaluates no such
	// object, and what to do with it. Whether that is a fault is the caller's decision.
	Unjudged []Problem
	// Sources tells where each good definition of any kind was written.
	Sources map[v1alpha1.Identity]Position
	// Problems are sorted by source position.
	Problems []Problem

	// hideouts are what could not be read, files what is there, and emptied those of them that hold no definition.
	hideouts []hideout
	files    map[string]bool
	emptied  []emptied
}

// unjudgedProblem says that an object is not evaluated.
func unjudgedProblem(obj Object) Problem {
	p := Problem{
		Source: obj.Source, Definition: &obj.Identity, Path: obj.Path,
		Message: "this kind is not evaluated; a cluster's API server alone checks it", Fix: "skep diff --from-cluster asks the API server",
	}
	if obj.Identity.Kind != v1alpha1.KindCueArtifact {
		p.Message, p.Fix = "this kind is not evaluated: Skep's controller and agents write it", "take it out"
	}
	return p
}

// Misplaced says of each good signer and policy where it stands and where it belongs, and of
// each object of a kind that is not evaluated that it is passed over. The list is sorted.
func (d Definitions) Misplaced() []string {
	belongs := map[string]string{
		v1alpha1.KindBpfSigner: "--signers", v1alpha1.KindBpfPolicy: "--policy", v1alpha1.KindClusterBpfPolicy: "--policy",
	}
	var all []string
	for id, at := range d.Sources {
		if flag, known := belongs[id.Kind]; known {
			all = append(all, fmt.Sprintf("%s: %s %s is ignored among definitions: put it elsewhere, and name the place by %s", at, id.Kind, id, flag))
		}
	}
	for _, p := range d.Unjudged {
		all = append(all, p.Error())
	}
	slices.Sort(all)
	return all
}

// Object is one definition as data.
type Object struct {
	// Identity tells kind, namespace and name.
	Identity v1alpha1.Identity
	// Source is where it was written, Path its CUE path there.
	Source Position
	Path   string
	// JSON is the object, whole and checked against the schema. Integers are
	// written exactly; those of spec.variables beyond 2^53 are decimal strings.
	JSON json.RawMessage
	// Places are where its fields were written, by path, where Options.Places asks.
	Places map[string]Position `json:",omitempty"`
	// unit is the path of the unit that was rendered to find it.
	unit string
}

// comparePositions sorts by file, line and column.
func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// sortProblems puts problems into the order of the source.
func sortProblems(p []Problem) {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(comparePositions(a.Source, b.Source), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
}

// rejectTwins takes out every identity that is defined more than once and
// reports it at each place, naming the others. A CUE package below another of
// the same name contains its files too: what comes from the same place and is
// the same is one definition.
func rejectTwins(objects []Object) (good []Object, problems []Problem) {
	groups := map[v1alpha1.Identity][]Object{}
	for _, o := range objects {
		same := func(p Object) bool {
			return p.Source == o.Source && p.Path == o.Path && string(p.JSON) == string(o.JSON)
		}
		if !slices.ContainsFunc(groups[o.Identity], same) {
			groups[o.Identity] = append(groups[o.Identity], o)
		}
	}
	for id, group := range groups {
		if len(group) == 1 {
			good = append(good, group[0])
			continue
		}
		for i, o := range group {
			var others []string
			for j, p := range group {
				if i != j {
					others = append(others, strings.TrimSuffix(p.Source.String()+" ("+p.Path+")", " ()"))
				}
			}
			problems = append(problems, Problem{
				Source: o.Source, Definition: &id, Path: o.Path,
				Message: fmt.Sprintf("%s %s is defined %d times, also at %s", id.Kind, id, len(group), strings.Join(others, " and ")),
				Fix:     "keep one of them or give them different names",
			})
		}
	}
	slices.SortFunc(good, func(a, b Object) int { return a.Identity.Compare(b.Identity) })
	sortProblems(problems)
	return good, problems
}
