package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// Verified is a resolved request whose object was fetched and whose signers
// are known.
type Verified struct {
	Resolved
	// trust and policies are those active when the evaluation began: one
	// verdict rests on one trust, whatever is revoked meanwhile.
	trust     *signing.Trust
	policies  *policies.Set
	object    *object
	collected collectedAt
	evidence  signing.Evidence
	// stale tells that the registry is out of reach, and what was collected before
	// counts still.
	stale bool
}

// Verify fetches the object and works out who signed it. An image nobody
// signed passes with empty evidence; policies deny it.
func (e *Evaluator) Verify(ctx context.Context, r Resolved) (Verified, error) {
	if r.image.Digest == "" {
		return Verified{}, fmt.Errorf("verify: %w", errSkipped)
	}
	v := Verified{Resolved: r}
	v.trust, v.policies = e.active()
	id := r.req.Application.Identity()
	var err error
	if v.object, err = e.open(ctx, r); err != nil {
		return Verified{}, imageError(id.String(), "fetch", err)
	}
	if v.collected, v.stale, err = e.collector.signatures(ctx, v.trust, r); err == nil {
		v.evidence, err = e.collector.evidence(ctx, v.trust, v.collected)
	}
	if err != nil {
		return Verified{}, fmt.Errorf("verify signatures of %s: %w", id, err)
	}
	return v, nil
}

// complete collects the rest where only a part was collected: what is missing
// from a part is no reason to deny.
func (e *Evaluator) complete(ctx context.Context, i Inspected) (Inspected, error) {
	if !i.evidence.Partial {
		return i, nil
	}
	noting, answered := transport.Answers(ctx)
	now, err := e.collector.collectRest(noting, i.trust, i.Resolved, i.collected)
	if !errors.Is(err, image.ErrNotAsked) {
		e.opts.Observer.Signatures(asked(err))
	}
	var elsewhere *collect.RepositoryError
	var blob *collect.BlobError
	switch withheld := errors.As(err, &blob); {
	case withheld && (!answered() || e.collector.loses(ctx, i.trust, i.Resolved, i.collected, now, true)):
	case errors.As(err, &elsewhere):
		_, _ = e.collector.keepCollected(i.Resolved, now, ignoreUnread(err))
	case withheld:
		err = nil
	}
	if i.collected, err = e.collector.keepCollected(i.Resolved, now, err); err == nil {
		i.evidence, err = e.collector.evidence(ctx, i.trust, i.collected)
	}
	if err != nil {
		return Inspected{}, fmt.Errorf("verify signatures of %s: %w", i.req.Application.Identity(), err)
	}
	return i, nil
}

// hangsOnEvidence reports whether a signature or attestation more may change a decision.
func hangsOnEvidence(d policies.Decision, i Inspected) bool {
	return d.AllEvidence || len(i.evidence.Signatures) == 0
}

// outdated reports whether a decision rests on signatures or attestations that the registry
// is to be asked about again, since one may have been added. That is so where the
// definition, a signer or a policy changed since they were collected, else after half a
// minute; where there is nothing new it is asked half as often each time, every two
// minutes at least. What is allowed without sealed evidence that was not looked for is outdated
// too: others collected what there is, and a person who may push removes no signer by hiding it.
func (e *Evaluator) outdated(d policies.Decision, i Inspected) bool {
	if d.Allowed() && !seeksMore(i) || !d.Allowed() && !hangsOnEvidence(d, i) ||
		i.stale || i.req.Passing && i.req.Digest != "" || e.collector.unreachable(i.Resolved) {
		return false
	}
	at := i.collected.askedAt(i.Resolved)
	age := e.opts.Now().Sub(at)
	return age < 0 || age >= min(max(i.collected.unchanged(), incompleteFor), deniedFor) ||
		at.Before(i.req.Changed) || at.Before(e.settingsChanged(i))
}

// seeksMore reports whether sealed evidence was not looked for though all else was.
func seeksMore(i Inspected) bool {
	return !i.evidence.Partial && len(i.collected.unsought(i.Resolved)) > 0
}

// settled is a revision of signers and policies, and when it came in the place of another.
type settled struct {
	revision string
	at       time.Time
}

// settingsSpacing is how often a change of them has a registry asked again at most.
const settingsSpacing = 10 * time.Second

// settingsChanged returns when the signers or the policies that decide about a request last
// changed, as far as this process noticed; the zero time if they did not. A change that
// follows another one closely is noticed a little later.
func (e *Evaluator) settingsChanged(i Inspected) time.Time {
	namespace := i.req.Application.GetNamespace()
	now, revision := e.opts.Now(), RevisionIn(namespace, i.trust, i.policies)
	known, ok := e.known.settings.Get(namespace)
	switch {
	case !ok:
		known = settled{revision: revision}
	case known.revision == revision || now.Sub(known.at).Abs() < settingsSpacing:
		return known.at
	default:
		known = settled{revision, now}
	}
	e.known.settings.Put(namespace, known)
	return known.at
}

// renewed is i with all that the registry offers now, and whether that is news. Where the
// registry cannot be asked, what was collected counts.
func (e *Evaluator) renewed(ctx context.Context, i Inspected) (now Inspected, news bool, err error) {
	have := i.collected
	// What is older than anything is no part to be completed.
	have.At = time.Time{}
	offered, from, err := e.collector.collectAgain(ctx, i.trust, i.Resolved, have, true)
	if errors.Is(err, image.ErrNotAsked) {
		return i, false, err
	}
	e.opts.Observer.Signatures(asked(err))
	i.stale = err == nil && from == FromStale
	if news = err == nil && from == FromRegistry; news {
		i.collected = offered
		i.evidence, err = e.collector.evidence(ctx, i.trust, offered)
	}
	if err != nil {
		return i, false, fmt.Errorf("verify signatures of %s: %w", i.req.Application.Identity(), err)
	}
	return i, news, nil
}
