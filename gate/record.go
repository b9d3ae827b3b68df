package gate

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// RevokedSigners returns the sealed signers of a version that are revoked now, by the
// trusted times that were sealed with them. The sealed signers are a record that nobody
// outside can edit.
func RevokedSigners(version *intent.Payload, revoked signing.Revocations) []string {
	signed := version.Signed()
	return slices.DeleteFunc(slices.Clone(version.Signers), func(name string) bool { return !revoked.Revokes(name, signed[name]) })
}

// deniedByRecord reports whether the policies deny a running version, of which a sealed
// signer is revoked, by its record: the sealed signers that are not revoked. It is used
// while a registry is out of reach, and asks none.
func (e *Evaluator) deniedByRecord(ctx context.Context, definition Request, running intent.Payload) bool {
	trust, _ := e.active()
	if len(RevokedSigners(&running, trust.Revoked())) == 0 {
		return false
	}
	ctx, cancel := cacheOnly(ctx)
	defer cancel()
	i, known, err := e.fromRecord(ctx, definition, running)
	if err != nil {
		var refusal *Denial
		return errors.As(err, &refusal)
	}
	signed, revoked := running.Signed(), i.trust.Revoked()
	left := maps.Clone(signed)
	maps.DeleteFunc(left, revoked.Revokes)
	now, err := e.decideByRecord(ctx, i, left)
	if err != nil || now.Allowed() {
		return false
	}
	// Without the bytecode, only what the revocation adds is known to be a reason.
	var admitted policies.Decision
	if !known {
		if admitted, err = e.decideByRecord(ctx, i, signed); err != nil {
			return false
		}
	}
	// A policy that could not be evaluated gives no reason. Nor does one that gives a
	// reason now and could not be evaluated with all signers.
	return slices.ContainsFunc(now.Denied, func(r policies.Reason) bool {
		return !r.Failed && !slices.ContainsFunc(admitted.Denied, func(before policies.Reason) bool {
			return r == before || before.Failed && strings.HasPrefix(r.Rule, path.Dir(before.Rule)+"/")
		})
	})
}

// decideByRecord has the policies decide with signers of the record as the evidence. If
// its time is over, only policies of the namespace have no answer.
func (e *Evaluator) decideByRecord(ctx context.Context, i Inspected, signers map[string]time.Time) (policies.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout/2)
	defer cancel()
	i.evidence = i.trust.Recorded(i.image.Digest, signers)
	return e.decision(ctx, i)
}

// fromRecord is a running version with all sealed signers as its evidence. known says that
// its bytecode is in the cache.
func (e *Evaluator) fromRecord(ctx context.Context, definition Request, running intent.Payload) (i Inspected, known bool, err error) {
	shaped, err := Shape(asSealed(definition, running))
	if err != nil {
		return i, false, err
	}
	resolved, err := e.Resolve(ctx, shaped)
	if err != nil {
		return i, false, err
	}
	v := Verified{Resolved: resolved}
	v.trust, v.policies = e.active()
	v.evidence = v.trust.Recorded(running.ImageDigest, running.Signed())
	if v.object, err = e.open(ctx, resolved); err == nil {
		i, err = e.Inspect(ctx, v)
		return i, true, err
	}
	v.object = &object{Image: &registry.Image{Resolved: resolved.image}}
	return Inspected{Verified: v, programs: running.Programs}, false, nil
}
