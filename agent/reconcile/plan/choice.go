package plan

import (
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// Choice is what is left to the node: the first of its sets that the kernel supports is
// loaded.
type Choice struct {
	// Name is the alternative's; empty for another choice. The last set of what is optional
	// is empty.
	Name string
	Sets []Set
}

// Set is what is loaded together, and what it takes.
type Set struct {
	// Programs are functions, Instances what is loaded of them, and Attachments where they
	// attach, all of which have to be supported.
	Programs    []string
	Instances   []string
	Attachments []v1alpha1.Attachment
	// of are the programs of Attachments, and application is whose they are.
	of          []string
	application v1alpha1.Identity
}

// String names the programs.
func (s Set) String() string { return strings.Join(s.Programs, ", ") }

// Must reports whether a choice comes to its last set whatever the node supports: what it is
// without then is missing, and is waited for.
func (c Choice) Must() bool { return c.Name == "" && len(c.Sets[len(c.Sets)-1].Instances) > 0 }

// add adds an attachment of a program.
func (s *Set) add(program string, at v1alpha1.Attachment) {
	s.Attachments, s.of = append(s.Attachments, at), append(s.of, program)
	for _, load := range Loads(s.application, program, at) {
		if !slices.Contains(s.Instances, load.Instance) {
			s.Instances = append(s.Instances, load.Instance)
		}
	}
}

// globbing are the characters that make a name of functions a glob, see path.Match.
const globbing = `*?[\`

// AtOnce returns an attachment to many functions of the kernel as one link makes it, where
// the definition names a hook with a link for each; false where it does not.
func AtOnce(at v1alpha1.Attachment) (v1alpha1.Attachment, bool) {
	h, _ := hook.Lookup(at.Hook)
	many, ok := h.AtOnce()
	if f := at.Functions; !ok || f == nil || f.Offset != 0 || len(f.Names) == 1 && !strings.ContainsAny(f.Names[0], globbing) {
		return at, false
	}
	at.Hook = many.Name
	return at, true
}

// ways are the set with one link for many functions where that may be, and the set as it is.
func (s Set) ways() []Set {
	faster, differs := Set{Programs: s.Programs, application: s.application}, false
	for i, at := range s.Attachments {
		at, isFaster := AtOnce(at)
		differs = differs || isFaster
		faster.add(s.of[i], at)
	}
	if !differs {
		return []Set{s}
	}
	return []Set{faster, s}
}

// without are the sets without instances that are loaded anyway, but for those that are empty then.
func without(sets []Set, loaded []string) []Set {
	var left []Set
	for _, s := range sets {
		s.Instances = slices.DeleteFunc(slices.Clone(s.Instances), func(i string) bool { return slices.Contains(loaded, i) })
		if len(s.Instances) > 0 {
			left = append(left, s)
		}
	}
	return left
}

// Choices lists what a payload leaves to the node: its alternatives, its optional programs,
// optional attachments for which something is loaded that nothing else takes, and whether
// one link attaches to many functions. What is optional comes last: a load may have no time left for it.
func Choices(p intent.Payload) []Choice {
	sets, inSet := map[string]*Set{}, namedInSets(p)
	var must, optional []Choice
	for _, program := range p.Programs {
		whole := required(p.Application, program)
		sets[program.Name] = whole
		ways := whole.ways()
		for _, at := range program.Attach {
			if !at.Optional {
				continue
			}
			one := Set{Programs: whole.Programs, application: p.Application}
			one.add(program.Name, at)
			if sets := without(one.ways(), whole.Instances); len(sets) > 0 {
				optional = append(optional, Choice{Sets: append(sets, Set{})})
			}
			ways[0].share(one, *whole)
		}
		switch {
		case inSet[program.Name] || len(whole.Instances) == 0:
		case program.Optional:
			optional = append(optional, Choice{Sets: append(ways, Set{})})
		case len(ways) > 1:
			must = append(must, Choice{Sets: ways})
		}
	}
	return slices.Concat(alternativesOf(p, sets), must, optional)
}

// namedInSets are the programs that an alternative names.
func namedInSets(p intent.Payload) map[string]bool {
	named := map[string]bool{}
	for _, alternative := range p.Alternatives {
		for _, set := range alternative.AnyOf {
			for _, name := range set.Programs {
				named[name] = true
			}
		}
	}
	return named
}

// required is the set of a program with those of its attachments that are not optional.
func required(application v1alpha1.Identity, program v1alpha1.Program) *Set {
	whole := &Set{Programs: []string{program.Name}, application: application}
	if len(program.Attach) == 0 {
		whole.Instances = []string{program.Name}
	}
	for _, at := range program.Attach {
		if !at.Optional {
			whole.add(program.Name, at)
		}
	}
	return whole
}

// share adds the instances that an optional attachment shares with the required ones: they are
// loaded however those are attached.
func (s *Set) share(optional, required Set) {
	for _, instance := range optional.Instances {
		if slices.Contains(required.Instances, instance) && !slices.Contains(s.Instances, instance) {
			s.Instances = append(s.Instances, instance)
		}
	}
}

// alternativesOf are the alternatives of a payload, of which sets are the programs.
func alternativesOf(p intent.Payload, sets map[string]*Set) []Choice {
	choices := make([]Choice, 0, len(p.Alternatives))
	for _, alternative := range p.Alternatives {
		choice := Choice{Name: alternative.Name}
		for _, set := range alternative.AnyOf {
			all := Set{Programs: set.Programs, application: p.Application}
			for _, name := range set.Programs {
				if one := sets[name]; one != nil {
					all.Instances = append(all.Instances, one.Instances...)
					all.Attachments, all.of = append(all.Attachments, one.Attachments...), append(all.of, one.of...)
				}
			}
			choice.Sets = append(choice.Sets, all.ways()...)
		}
		choices = append(choices, choice)
	}
	return choices
}
