package gate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/policies"
)

// kept is how much of an evaluation's time registries leave for the policies, to be
// asked about the definition alone: a quarter, and a second at most.
const kept = time.Second

// beforeEnd returns a context for what asks registries, which ends before ctx does.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(kept, time.Until(deadline)/4)))
}

// Foregone is the verdict on a request that could not be evaluated, for the cause,
// where it is denied whatever its image turns out to be. It asks no registry, and
// reports false where nothing is known.
func (j *Judge) Foregone(ctx context.Context, req Request, cause error) (Verdict, bool) {
	shaped, err := Shape(req)
	if err != nil {
		return Verdict{}, false
	}
	input, unknown, err := shaped.known()
	if err != nil {
		return Verdict{}, false
	}
	trust, set := j.inForce()
	decision, err := j.foregone(ctx, set, input, unknown)
	if err != nil || decision.Allowed() {
		return Verdict{}, false
	}
	generation, err := Generation(req.Application)
	if err != nil {
		return Verdict{}, false
	}
	decision.Warnings = append(slices.Clone(decision.Warnings), policies.Reason{
		Rule: "evaluate/definition", Path: "spec.bytecode.image",
		Message: fmt.Sprintf("only the definition was evaluated: %v", cause),
		Remedy:  "mend what is denied; there may be more reasons once the image is read",
	})
	return Verdict{
		generation: generation, inForce: trust.Revision() + "/" + set.Revision(),
		req: req, decision: decision, revision: set.Revision(), unevaluated: cause,
	}, true
}

// foregone asks the policies about what is known of an input, or the memory of what
// they said.
func (j *Judge) foregone(ctx context.Context, set *policies.Set, input policies.Input, unknown policies.Unknown) (policies.Decision, error) {
	key, err := decisionKey(input, fmt.Sprintf("%s/%+v", set.Revision(), unknown))
	if err != nil {
		return policies.Decision{}, err
	}
	if decision, known := j.known.decisions.get(key); known {
		return decision, nil
	}
	input.Now = j.opts.Now()
	decision, err := set.Foregone(ctx, input, unknown)
	if err == nil && !decision.TimeDependent {
		j.known.decisions.put(key, decision)
	}
	return decision, err
}

// known is the document of a request as far as it is known without its image, and
// which parts of it are not.
func (s Shaped) known() (policies.Input, policies.Unknown, error) {
	spec := s.req.Application.Body()
	named, err := image.Named(spec.Bytecode.Image)
	if err != nil {
		return policies.Input{}, policies.Unknown{}, err
	}
	programs, whole := definedPrograms(spec.Programs)
	input := s.input(programs)
	input.Image = policies.Image{Registry: named.Registry, Repository: named.Repository, Tag: named.Tag, Digest: named.Digest}
	if s.req.Digest != "" {
		input.Image.Digest = s.req.Digest
	}
	return input, policies.Unknown{Digest: input.Image.Digest == "", Programs: !whole}, nil
}

// definedPrograms are the programs as Inspect makes them, where it fills in the same
// whatever the object says; else they are as written, and whole is false.
func definedPrograms(programs []v1alpha1.Program) (filled []v1alpha1.Program, whole bool) {
	for _, p := range programs {
		if len(p.Attach) == 0 || slices.ContainsFunc(p.Attach, asksTheObject) {
			return programs, false
		}
		all := v1alpha1.Program{Name: p.Name}
		for _, a := range p.Attach {
			all.Attach = append(all.Attach, fillAttachment(a, bytecode.Program{}))
		}
		filled = append(filled, all)
	}
	return filled, true
}

// asksTheObject reports whether an attachment leaves its hook or its target to the
// section of the program.
func asksTheObject(a v1alpha1.Attachment) bool {
	h, ok := hook.Lookup(a.Hook)
	return !ok || slices.ContainsFunc(fields, func(f field) bool { return f.required(h) && !f.given(a) })
}
