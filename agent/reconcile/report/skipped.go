package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxSkipped bounds how much of what is skipped is told in words.
const maxSkipped = 3

// waiting returns an attachment that is without a link, and is not skipped.
func (o *Outcome) waiting() *Unmade {
	for i := range o.Links {
		if state := o.Links[i].Status.State; state != Skipped && state != NoPods && state != Ran {
			return &o.Links[i]
		}
	}
	return nil
}

// skipped returns why nothing of a program runs; empty where something may.
func (o *Outcome) skipped(program string) string {
	for _, u := range o.Links {
		if u.Program == program && u.Status.State == Skipped {
			return u.Status.Error
		}
	}
	return ""
}

// AlternativeStatus says which of the sets of an alternative a node runs.
type AlternativeStatus struct {
	Name string `json:"name"`
	// Sets are in the order of the definition.
	Sets []SetStatus `json:"sets"`
}

// SetStatus is one set of programs of an alternative.
type SetStatus struct {
	Programs []string `json:"programs"`
	// Error says why it does not run; empty of the set that runs.
	Error string `json:"error,omitempty"`
}

// alternatives lists those of what runs.
func (o *Outcome) alternatives() []AlternativeStatus {
	runs := o.Version()
	if runs == nil {
		return nil
	}
	var all []AlternativeStatus
	for _, alternative := range runs.Payload().Alternatives {
		one := AlternativeStatus{Name: alternative.Name}
		for _, set := range alternative.AnyOf {
			one.Sets = append(one.Sets, SetStatus{set.Programs, o.whySkipped(set.Programs)})
		}
		all = append(all, one)
	}
	return all
}

// whySkipped returns the first cause why a set of programs does not run; empty where it may.
func (o *Outcome) whySkipped(programs []string) string {
	for _, name := range programs {
		if why := o.skipped(name); why != "" {
			return why
		}
	}
	return ""
}

// better lists the programs of the sets before the one that runs, and why the first of them
// does not.
func (a AlternativeStatus) better() (programs []string, why string) {
	runs := slices.IndexFunc(a.Sets, func(s SetStatus) bool { return s.Error == "" })
	for _, set := range a.Sets[:max(runs, 0)] {
		programs, why = append(programs, set.Programs...), cmp.Or(why, set.Error)
	}
	return programs, why
}

// describeSkipped says what the node is without: of alternatives the better sets, and what is
// optional.
func describeSkipped(o *Outcome, alternatives []AlternativeStatus) string {
	if o.Version() == nil {
		return ""
	}
	chosen := map[string]bool{}
	var said []string
	for _, alternative := range alternatives {
		for _, set := range alternative.Sets {
			for _, name := range set.Programs {
				chosen[name] = true
			}
		}
		if better, why := alternative.better(); len(better) > 0 {
			said = append(said, fmt.Sprintf("alternative %s does without %s: %s", alternative.Name, strings.Join(better, ", "), why))
		}
	}
	for _, u := range o.Links {
		if u.Status.State == Skipped && !chosen[u.Program] {
			said = append(said, fmt.Sprintf("%s on %s %s: %s", u.Program, u.Status.Hook, u.Status.Target, u.Status.Error))
		}
	}
	if more := len(said) - maxSkipped; more > 0 {
		said = append(said[:maxSkipped], fmt.Sprintf("%d more", more))
	}
	return strings.Join(said, "; ")
}
