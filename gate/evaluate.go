package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/policies"
)

// Evaluate runs every step. A definition that is denied, by a step or by a
// policy, is a Verdict that does not allow; an error means that it could not be
// told, such as a registry out of reach, and that trying again may help. What is
// denied by its definition alone is so even then; see DeniedByDefinition. It takes
// no longer than Options.Timeout, and asks no registry where the context is one
// of registry.CacheOnly.
func (e *Evaluator) Evaluate(ctx context.Context, req Request) (Verdict, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	asking, stop := beforeEnd(ctx)
	defer stop()
	verdict, err := e.run(asking, req)
	if errors.Is(asking.Err(), context.DeadlineExceeded) {
		err = overdue(ctx, req, began, err)
	}
	var refusal *Denial
	if errors.As(err, &refusal) {
		return deniedVerdict(req, verdict, refusal), nil
	}
	if err != nil && req.Application != nil && !errors.Is(err, image.ErrNotAsked) {
		if denied, ok := e.DeniedByDefinition(ctx, req, err); ok {
			return denied, nil
		}
	}
	return verdict, err
}

// overdue names the registry and the deadline in the error of an evaluation that
// was ended by its deadline.
func overdue(ctx context.Context, req Request, began time.Time, err error) error {
	deadline, ok := ctx.Deadline()
	if err == nil || !ok || req.Application == nil {
		return err
	}
	registry := image.RegistryOf(req.Application.Body().Bytecode.Image)
	return fmt.Errorf("evaluate %s: registry %s did not answer everything within the deadline of %s: %w",
		req.Application.Identity(), registry, deadline.Sub(began).Round(100*time.Millisecond), err)
}

// Input is the document the policies would see of a request, with all of its
// evidence. A definition that an earlier step denies has none, and the error is the *Denial.
func (e *Evaluator) Input(ctx context.Context, req Request) (policies.Input, error) {
	inspected, _, err := e.runUntilDecision(ctx, req)
	if err != nil {
		return policies.Input{}, err
	}
	if inspected, err = e.complete(ctx, inspected); err != nil {
		return policies.Input{}, err
	}
	input := inspected.Input()
	input.Now = e.opts.Now()
	return input, nil
}

// run is the pipeline. On a denial it returns what was learned until then.
func (e *Evaluator) run(ctx context.Context, req Request) (Verdict, error) {
	inspected, learned, err := e.runUntilDecision(ctx, req)
	if err != nil {
		return learned, err
	}
	return e.Decide(ctx, inspected)
}

// runUntilDecision runs every step but the last.
func (e *Evaluator) runUntilDecision(ctx context.Context, req Request) (Inspected, Verdict, error) {
	var learned Verdict
	shaped, err := Shape(req)
	if err != nil {
		return Inspected{}, learned, err
	}
	resolved, err := e.Resolve(ctx, shaped)
	if err != nil {
		return Inspected{}, learned, err
	}
	learned.resolved = resolved.image
	verified, err := e.Verify(ctx, resolved)
	if err != nil {
		return Inspected{}, learned, err
	}
	learned.evidence = verified.evidence
	inspected, err := e.Inspect(ctx, verified)
	return inspected, learned, err
}
