package programs

import (
	"cmp"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// chain is the name of a program of the kernel that runs several programs of applications.
const chain = "chain"

// program is what has series. It has no application if it is a chain of several programs.
type program struct {
	application v1alpha1.Identity
	name        string
}

func (p program) labels() []string {
	return []string{p.application.Kind, p.application.Namespace, p.application.Name, p.name}
}

// attachment is what attachments have in common that share a series.
type attachment struct {
	program             program
	hook, state, reason string
}

// node is what the applications of a node have.
type node struct {
	// ids are the kernel's ids of programs that have series, and unlisted those of applications that have none.
	ids         map[uint32]program
	unlisted    map[uint32]bool
	attachments map[attachment]int
	// leftOut counts programs and attachments without series.
	leftOut int
}

// nodeOf finds what has series, within the bounds: of more, the cluster's applications, and then those that come first by their names.
func nodeOf(all []agent.ApplicationStatus) node {
	n := node{ids: map[uint32]program{}, unlisted: map[uint32]bool{}, attachments: map[attachment]int{}}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b agent.ApplicationStatus) int {
		return cmp.Or(strings.Compare(b.Application.Kind, a.Application.Kind), strings.Compare(a.Application.String(), b.Application.String()))
	})
	named := map[program]bool{}
	for _, s := range all {
		state, _ := s.NodeState()
		if state == v1alpha1.NodeRemoved {
			continue
		}
		reason := reasonOf(s)
		if len(s.Programs) == 0 {
			n.count(attachment{program{application: s.Application}, "", string(state), reason})
		}
		for _, p := range s.Programs {
			one := program{s.Application, p.Name}
			isListed := named[one] || len(named) < MaxPrograms
			n.own(p, one, isListed)
			if !isListed {
				n.leftOut++
				continue
			}
			named[one] = true
			for _, l := range p.Links {
				n.count(attachment{one, l.Hook, string(l.State), reason})
			}
			if len(p.Links) == 0 {
				n.count(attachment{one, "", string(state), reason})
			}
		}
	}
	return n
}

// reasonOf is why an application is not deployed, in one word; empty where it is.
func reasonOf(s agent.ApplicationStatus) string {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionDeployed && c.Reason != v1alpha1.ConditionDeployed {
			return c.Reason
		}
	}
	return ""
}

// own notes the kernel's ids of a program: its own, and what runs at each place.
func (n *node) own(p agent.ProgramStatus, one program, isListed bool) {
	ids := []uint32{p.ID}
	for _, l := range p.Links {
		ids = append(ids, l.Program)
	}
	for _, id := range ids {
		was, has := n.ids[id]
		switch {
		case id == 0:
		case has && was != one:
			n.ids[id] = program{name: chain}
		case isListed && !n.unlisted[id]:
			n.ids[id] = one
		default:
			n.unlisted[id] = true
		}
	}
}

func (n *node) count(a attachment) {
	if _, has := n.attachments[a]; !has && len(n.attachments) >= MaxAttachments {
		n.leftOut++
		return
	}
	n.attachments[a]++
}
