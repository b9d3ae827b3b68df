package gate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
)

// reservedForPolicies is how much of an evaluation's time registries leave for the policies, to be
// asked about the definition alone: a quarter, and a second at most.
const reservedForPolicies = time.Second

// beforeEnd returns a context for what comes before the policies are asked, which ends
// before ctx does.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(reservedForPolicies, time.Until(deadline)/4)))
}

// DeniedByDefinition is the verdict on a request that could not be evaluated, for the cause,
// where it is denied whatever a registry would tell of its image. It asks no registry,
// and reports false where nothing is known.
func (e *Evaluator) DeniedByDefinition(ctx context.Context, req Request, cause error) (Verdict, bool) {
	trust, set := e.active()
	decision, unknown, err := e.decideByDefinition(ctx, set, req)
	if err != nil || decision.Allowed() {
		return Verdict{}, false
	}
	generation, err := Generation(req.Application)
	if err != nil {
		return Verdict{}, false
	}
	what := "the definition was"
	if !unknown.Object {
		what = "the definition and the bytecode were"
	}
	cause = fmt.Errorf("only %s evaluated: %w", what, cause)
	decision.Warnings = append(slices.Clone(decision.Warnings), policies.Reason{
		Rule: "evaluate/definition", Path: "spec.bytecode.image", Message: cause.Error(),
		Fix: "fix what is denied; there may be more reasons once the registry answers",
	})
	return Verdict{
		generation: generation, activeRevision: RevisionIn(req.Application.GetNamespace(), trust, set),
		req: req, decision: decision, revision: set.RevisionIn(req.Application.GetNamespace()), unevaluated: cause,
	}, true
}

// decideByDefinition asks the policies about what is known of a request without a registry, or the
// memory of what they said. It returns what is not known as well.
func (e *Evaluator) decideByDefinition(ctx context.Context, set *policies.Set, req Request) (policies.Decision, policies.Unknown, error) {
	input, unknown, err := e.withoutRegistry(ctx, req)
	if err != nil {
		return policies.Decision{}, unknown, err
	}
	key, err := decisionKey(input, fmt.Sprintf("%s/%+v", set.RevisionIn(input.Application.Metadata.Namespace), unknown))
	if err != nil {
		return policies.Decision{}, unknown, err
	}
	if decision, known := e.known.decisions.Get(key); known {
		return decision, unknown, nil
	}
	input.Now = e.opts.Now()
	decision, err := set.Foregone(ctx, input, unknown)
	if err == nil && !decision.TimeDependent {
		e.known.decisions.Put(key, decision)
	}
	return decision, unknown, err
}

// withoutRegistry is the document of a request as far as it is known without a registry,
// and which parts of it are not: the signatures, and where the image is not in the cache
// all of what it says.
func (e *Evaluator) withoutRegistry(ctx context.Context, req Request) (policies.Input, policies.Unknown, error) {
	shaped, err := Shape(req)
	if err != nil {
		return policies.Input{}, policies.Unknown{}, err
	}
	if inspected, err := e.inCache(ctx, shaped); err == nil {
		return inspected.Input(), policies.Unknown{}, nil
	}
	return shaped.defined()
}

// inCache is a request with what its bytecode says, where that is in the cache.
func (e *Evaluator) inCache(ctx context.Context, s Shaped) (Inspected, error) {
	ctx, cancel := beforeEnd(registry.CacheOnly(ctx))
	defer cancel()
	resolved, err := e.Resolve(ctx, s)
	if err != nil {
		return Inspected{}, err
	}
	v := Verified{Resolved: resolved}
	if v.object, err = e.open(ctx, resolved); err != nil {
		return Inspected{}, err
	}
	return e.Inspect(ctx, v)
}

// defined is the document of a request as far as its definition says it, and which
// parts of it are not known.
func (s Shaped) defined() (policies.Input, policies.Unknown, error) {
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
	return input, policies.Unknown{Object: true, Digest: input.Image.Digest == "", Programs: !whole}, nil
}

// definedPrograms are the programs as Inspect makes them, where it fills in the same
// whatever the object says; else they are as written, and whole is false.
func definedPrograms(programs []v1alpha1.Program) (filled []v1alpha1.Program, whole bool) {
	for _, p := range programs {
		if len(p.Attach) == 0 || slices.ContainsFunc(p.Attach, asksTheObject) {
			return programs, false
		}
		all := v1alpha1.Program{Name: p.Name, Optional: p.Optional}
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
	return !ok || slices.ContainsFunc(fields, func(f field) bool { return f.isMissing(h, a) })
}
