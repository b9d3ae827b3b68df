package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/unrun"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/text"
)

// The bounds of what a condition says of attachments that run.
const (
	// maxNotes is how many it names.
	maxNotes = 3
	// maxBehind is how many programs of others are named for one attachment.
	maxBehind = 3
)

// JointLog begins a verifier's log that is of programs of others, too.
const JointLog = "The log is of the whole chain, with the programs of others:"

// NeverRan begins the note of a program that never ran.
const NeverRan = "has never run"

// Notes say, one each, what the user has to know of an attachment that is made: which programs of others run before it, and that it never ran. The
// names are those that others gave to their programs.
func (l LinkStatus) Notes() (all []string) {
	if len(l.Behind) > 0 {
		all = append(all, describeBehind(l.Behind, others.Program.String))
	}
	if l.PositionLost != "" {
		all = append(all, l.PositionLost)
	}
	if l.NeverRan > 0 {
		all = append(all, l.Warning())
	}
	return all
}

// Warning says that the program has never run, although it could have; empty where it has, or that is not known.
func (l LinkStatus) Warning() string {
	if l.NeverRan == 0 {
		return ""
	}
	return fmt.Sprintf(NeverRan+", while the interface %s packets (%d)", l.counted(), l.NeverRan)
}

// counted says what an interface did with the packets that a hook is on.
func (l LinkStatus) counted() string {
	if strings.HasSuffix(l.Hook, "/egress") || l.Hook == "netkit/primary" {
		return "sent"
	}
	return "received"
}

// LinkNeverRan returns LinkStatus.NeverRan of a link.
func LinkNeverRan(look *live.Look, l *pins.Link, facts pins.Facts, now time.Time) uint64 {
	if facts.Severed {
		return 0
	}
	at := l.Attachment
	key := unrun.Key{UID: l.UID, Program: at.Program, Hook: at.Hook, On: at.Target.Device(), ID: strconv.Itoa(int(facts.Program))}
	return look.Unrun.OfProgram(key, now, facts.Program)
}

// MemberNeverRan returns LinkStatus.NeverRan of a member of a chain: by the counts of the chain or, where it is alone, of the kernel.
func MemberNeverRan(look *live.Look, c *pins.Chain, m plan.Member, now time.Time) uint64 {
	facts := look.ChainFacts(c)
	if facts.Severed || c.Version == nil || c.Version.IsOff(m) {
		return 0
	}
	key := unrun.Key{UID: m.UID, Program: m.Program, Hook: plan.XDP, On: c.Device, ID: m.Revision}
	i := slices.Index(c.Version.Members, m)
	if c.Version.Counters == nil || i < 0 {
		return look.Unrun.OfProgram(key, now, facts.Program)
	}
	return look.Unrun.Of(key, now, func() (uint64, bool) {
		counts, err := chain.ReadCounts(c.Version.Counters, len(c.Version.Members))
		if err != nil {
			return 0, false
		}
		return counts[i].Runs(), true
	})
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
	if l.PositionLost != "" && !isTeams {
		all = append(all, l.PositionLost)
	}
	if l.NeverRan > 0 {
		all = append(all, fmt.Sprintf(NeverRan+", while the interface %s packets", l.counted()))
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
