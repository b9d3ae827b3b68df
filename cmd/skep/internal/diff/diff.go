// Package diff finds which objects a change of definitions adds, changes and removes, in a
// cluster or since a commit, and prints that for terminals, programs and pull requests.
//
// It stores nothing: whatever it asks of an API server is a dry run. It reads and shows Skep's
// kinds alone, so no Secret is among them.
package diff

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	udiff "github.com/rogpeppe/go-internal/diff"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// Action is what becomes of an object.
type Action string

// The actions.
const (
	Added   Action = "added"
	Changed Action = "changed"
	Removed Action = "removed"
)

// Answer is what becomes of an object that is added or changed.
type Answer string

// The answers. None is given for what is removed, and where nobody was asked.
const (
	// Allowed: the object is stored, and what it defines may run.
	Allowed Answer = "allowed"
	// Unverified: it is stored, and evaluated later, as while its registry is away.
	Unverified Answer = "unverified"
	// Denied: a policy denies it. It may be stored all the same (admission: Warn), and is not loaded.
	Denied Answer = "denied"
	// Invalid: its schema or its bytecode does not allow it.
	Invalid Answer = "invalid"
	// Unknown: it could not be determined, and Reasons say why.
	Unknown Answer = "unknown"
)

// Change is one object that differs. Its keys are part of the command line's contract.
type Change struct {
	Action Action `json:"action"`
	v1alpha1.Identity

	Answer Answer `json:"answer,omitempty"`
	// Reasons are why the answer is not Allowed, a sentence each.
	Reasons []string `json:"reasons,omitempty"`
	// Warnings are what else the cluster says, a sentence each.
	Warnings []string `json:"warnings,omitempty"`
	// Diff is a unified diff of the objects as YAML. Where the API server rejects the object, it
	// does not say which defaults it would fill in, and the diff leaves those as they are.
	Diff string `json:"diff"`
}

// String is kind, namespace and name on one line, which a terminal shows and does not obey.
func (c Change) String() string { return text.Line(c.Kind + " " + c.Identity.String()) }

// Rejected reports whether the object would not run, or whether that could not be determined.
func (c Change) Rejected() bool {
	return c.Answer == Denied || c.Answer == Invalid || c.Answer == Unknown
}

// Report is all that differs. Its keys are part of the command line's contract.
type Report struct {
	// Against is what was compared with: a cluster, or a commit.
	Against string `json:"against"`
	// Changes are sorted by namespace, name and kind.
	Changes []Change `json:"changes"`
	// Unchanged is how many objects do not differ.
	Unchanged int `json:"unchanged"`
}

// sort puts the changes into their order.
func (r *Report) sort() {
	slices.SortFunc(r.Changes, func(a, b Change) int { return a.Compare(b.Identity) })
}

// count is how many changes have an action.
func (r *Report) count(a Action) (n int) {
	for _, c := range r.Changes {
		if c.Action == a {
			n++
		}
	}
	return n
}

// Summary counts the changes.
func (r *Report) Summary() string {
	return fmt.Sprintf("%d added, %d changed, %d removed, %d unchanged", r.count(Added), r.count(Changed), r.count(Removed), r.Unchanged)
}

// Error says which changes are rejected; nil where none is.
func (r *Report) Error() error {
	var parts []string
	for _, why := range []struct {
		answer Answer
		words  string
	}{{Denied, "denied"}, {Invalid, "invalid"}, {Unknown, "could not be determined"}} {
		var names []string
		for _, c := range r.Changes {
			if c.Answer == why.answer {
				names = append(names, c.String())
			}
		}
		if len(names) > 0 {
			parts = append(parts, display.Fit(names, maxNamed)+": "+why.words)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return fmt.Errorf("diff %s; the reasons are above", strings.Join(parts, "; "))
}

// maxNamed is how many characters the names in one error have.
const maxNamed = 400

// Between compares what two revisions of a source render to.
func Between(before, after []schemas.Object, against string) (Report, error) {
	r := Report{Against: against, Changes: []Change{}}
	was := map[v1alpha1.Identity]schemas.Object{}
	for _, o := range before {
		was[o.Identity] = o
	}
	for _, o := range after {
		old, existed := was[o.Identity]
		delete(was, o.Identity)
		if err := r.add(o.Identity, existed, old.JSON, o.JSON); err != nil {
			return r, err
		}
	}
	for id, o := range was {
		if err := r.add(id, true, o.JSON, nil); err != nil {
			return r, err
		}
	}
	r.sort()
	return r, nil
}

// add compares two revisions of one object, of which one may be absent.
func (r *Report) add(id v1alpha1.Identity, existed bool, before, after json.RawMessage) error {
	c := Change{Action: Changed, Identity: id}
	switch {
	case !existed:
		c.Action = Added
	case after == nil:
		c.Action = Removed
	}
	var texts [2]string
	for i, raw := range []json.RawMessage{before, after} {
		if raw == nil {
			continue
		}
		doc, err := display.YAML(raw)
		if err != nil {
			return fmt.Errorf("compare %s: %w", c, err)
		}
		texts[i] = string(doc)
	}
	if c.Diff = unified(c, texts[0], texts[1]); c.Diff == "" {
		r.Unchanged++
		return nil
	}
	r.Changes = append(r.Changes, c)
	return nil
}

// unified is a diff of two texts; empty where they are equal, and of an absent one /dev/null as
// git has it.
func unified(c Change, before, after string) string {
	if before == after {
		return ""
	}
	file := strings.ToLower(c.Kind) + "/" + strings.TrimPrefix(c.Namespace+"/", "/") + c.Name
	name := func(prefix, text string) string {
		if text == "" {
			return "/dev/null"
		}
		return prefix + file
	}
	out := string(udiff.Diff(name("a/", before), []byte(before), name("b/", after), []byte(after)))
	// The first line is a command, which nobody is to run.
	_, out, _ = strings.Cut(out, "\n")
	return out
}
