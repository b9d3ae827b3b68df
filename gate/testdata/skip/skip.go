// Package skip is the pipeline written out. The test replaces one step of it.
package skip

import (
	"context"

	"github.com/skep-dev/skep/gate"
)

func pipeline(ctx context.Context, j *gate.Evaluator, req gate.Request) (gate.Verdict, error) {
	shaped, err := gate.Shape(req)
	if err != nil {
		return gate.Verdict{}, err
	}
	resolved, err := j.Resolve(ctx, shaped)
	if err != nil {
		return gate.Verdict{}, err
	}
	verified, err := j.Verify(ctx, resolved)
	if err != nil {
		return gate.Verdict{}, err
	}
	inspected, err := j.Inspect(ctx, verified)
	if err != nil {
		return gate.Verdict{}, err
	}
	return j.Decide(ctx, inspected)
}

var _ = pipeline
