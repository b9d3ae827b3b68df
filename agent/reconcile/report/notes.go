package report

import (
	"fmt"
	"strings"

	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/text"
)

// The bounds of what a condition says of attachments that run.
const (
	// maxNotes is how many it names.
	maxNotes = 3
	// maxBehind is how many programs of others are named for one attachment.
	maxBehind = 3
)

// Notes say, one each, what the user has to know of an attachment that runs: which programs of others run before it. The
// names are those that others gave to their programs.
func (l LinkStatus) Notes() (all []string) {
	if len(l.Behind) > 0 {
		all = append(all, describeBehind(l.Behind, others.Program.String))
	}
	return all
}

// withoutNames are Notes for a status that a team reads, or that is written whenever it changes: without names of programs of
// others and without numbers.
func (l LinkStatus) withoutNames(isTeams bool) (all []string) {
	switch {
	case len(l.Behind) == 0:
	case isTeams && len(l.Behind) == 1:
		all = append(all, "behind a program of the node, which can end the chain")
	case isTeams:
		all = append(all, fmt.Sprintf("behind %d programs of the node, each of which can end the chain", len(l.Behind)))
	default:
		all = append(all, describeBehind(l.Behind, func(o others.Program) string {
			if o.Name == "" {
				return "another program"
			}
			return o.Name
		}))
	}
	return all
}

// describeBehind names the programs of others that run before one.
func describeBehind(ahead []others.Program, name func(others.Program) string) string {
	var names []string
	for _, o := range ahead[:min(len(ahead), maxBehind)] {
		names = append(names, name(o))
	}
	if left := len(ahead) - len(names); left > 0 {
		names = append(names, fmt.Sprintf("%d more", left))
	}
	which := "which can end the chain"
	if len(ahead) > 1 {
		which = "each of which can end the chain"
	}
	return fmt.Sprintf("behind %s, %s", strings.Join(names, " and "), which)
}

// notes says what the condition adds of attachments that run; empty where nothing has to be known. It says the same while
// others exchange their programs for others of the same names.
func (s ApplicationStatus) notes() string {
	var all []string
	left := 0
	for _, p := range s.Programs {
		for _, l := range p.Links {
			for _, note := range l.withoutNames(s.Application.Namespace != "") {
				if len(all) == maxNotes {
					left++
					continue
				}
				all = append(all, fmt.Sprintf("%s on %s: %s", l.Hook, text.Line(l.Target), note))
			}
		}
	}
	if left > 0 {
		all = append(all, fmt.Sprintf("and %d more such attachments", left))
	}
	return strings.Join(all, "; ")
}
