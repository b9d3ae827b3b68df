package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// maxSkipped bounds how much of what is skipped is told in words.
const maxSkipped = 3

// waiting returns an attachment that is without a link, and is not skipped.
func (o *Outcome) waiting() *Unmade {
	for i := range o.Links {
		if state := o.Links[i].Status.State; state != Skipped && state != NoPods {
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

// describeSkipped says what the node is without: of alternatives the better sets, and what is
// optional.
func describeSkipped(o *Outcome) string {
	if o.Live == nil {
		return ""
	}
	chosen := map[string]bool{}
	var said []string
	for _, alternative := range o.Live.Payload().Alternatives {
		for _, set := range alternative.AnyOf {
			for _, name := range set.Programs {
				chosen[name] = true
			}
		}
		if better, why := o.better(alternative); len(better) > 0 {
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

// better lists the programs of the sets before the one that runs, and why the first of them
// does not.
func (o *Outcome) better(alternative v1alpha1.Alternative) (programs []string, why string) {
	runs := slices.IndexFunc(alternative.AnyOf, func(set v1alpha1.ProgramSet) bool {
		return !slices.ContainsFunc(set.Programs, func(name string) bool { return o.skipped(name) != "" })
	})
	for _, set := range alternative.AnyOf[:max(runs, 0)] {
		programs = append(programs, set.Programs...)
	}
	if len(programs) > 0 {
		why = o.skipped(programs[0])
	}
	return programs, why
}
