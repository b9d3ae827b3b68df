package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	if v.collected, v.stale, err = e.signatures(ctx, v.trust, r); err == nil {
		v.evidence, err = e.evidence(ctx, v.trust, v.collected)
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
	now, err := e.collectRest(ctx, i.trust, i.Resolved, i.collected)
	if !errors.Is(err, image.ErrNotAsked) {
		e.opts.Observer.Signatures(asked(err))
	}
	var elsewhere *collect.RepositoryError
	if errors.As(err, &elsewhere) {
		_, _ = e.keepCollected(i.Resolved, now, ignoreSignerRepositories(err))
	}
	if i.collected, err = e.keepCollected(i.Resolved, now, err); err == nil {
		i.evidence, err = e.evidence(ctx, i.trust, i.collected)
	}
	if err != nil {
		return Inspected{}, fmt.Errorf("verify signatures of %s: %w", i.req.Application.Identity(), err)
	}
	return i, nil
}

// outdated reports whether a denial rests on signatures or attestations that the registry
// is to be asked about again, since one may have been added. That is so where the
// definition, a signer or a policy changed since they were collected, else after half a
// minute; where there is nothing new it is asked half as often each time, every two
// minutes at least.
func (e *Evaluator) outdated(d policies.Decision, i Inspected) bool {
	if d.Allowed() || !d.AllEvidence && len(i.evidence.Signatures) > 0 ||
		i.stale || i.req.Passing && i.req.Digest != "" || e.unreachable(i.Resolved) {
		return false
	}
	age := e.opts.Now().Sub(i.collected.At)
	return age < 0 || age >= min(max(i.collected.unchanged(), incompleteFor), deniedFor) ||
		i.collected.At.Before(i.req.Changed) || i.collected.At.Before(e.settingsChanged(i))
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
	offered, from, err := e.collectAgain(ctx, i.trust, i.Resolved, have, true)
	if errors.Is(err, image.ErrNotAsked) {
		return i, false, err
	}
	e.opts.Observer.Signatures(asked(err))
	if news = err == nil && from == FromRegistry; news {
		i.collected = offered
		i.evidence, err = e.evidence(ctx, i.trust, offered)
	}
	if err != nil {
		return i, false, fmt.Errorf("verify signatures of %s: %w", i.req.Application.Identity(), err)
	}
	return i, news, nil
}

// asked is what became of asking a registry.
func asked(err error) Origin {
	if err != nil {
		return FromNowhere
	}
	return FromRegistry
}

// incompleteFor is how long collected signatures are used that may not be all there
// will be: none counts, or only a part was collected.
const incompleteFor = 30 * time.Second

// deniedFor is how long collected signatures are used at most that something is denied for.
const deniedFor = 2 * time.Minute

// clockSkew is how far the clocks of two machines that share a Memory may differ.
const clockSkew = 5 * time.Minute

// signatures are those of an image, wherever they are to be had; stale where the
// registry cannot be asked.
func (e *Evaluator) signatures(ctx context.Context, trust *signing.Trust, r Resolved) (found collectedAt, stale bool, err error) {
	found, from, err := e.find(ctx, trust, r)
	if errors.Is(err, image.ErrNotAsked) {
		return found, false, err
	}
	if err != nil {
		from = asked(err)
	}
	e.opts.Observer.Signatures(from)
	return found, from == FromStale, err
}

// find answers from memory where it may, and asks the registry where it must. A
// registry that cannot be asked is excused for StaleFor.
func (e *Evaluator) find(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, Origin, error) {
	have, from := e.known.collected(e.opts.Memory, r.image)
	if from == "" {
		now, err := e.collectFirst(ctx, trust, r)
		return now, FromRegistry, err
	}
	have = have.forSigners(trust)
	ev, err := e.evidence(ctx, trust, have)
	if err != nil {
		return collectedAt{}, from, err
	}
	age, fresh := e.opts.Now().Sub(have.At), e.opts.FreshFor
	if len(ev.Signatures) == 0 || ev.Partial && !e.waits(trust, have) {
		fresh = min(fresh, incompleteFor)
	}
	// A clock that was set back makes nothing fresh.
	if age >= 0 && age < fresh {
		return have, from, e.shareCollected(r, have)
	}
	// Nor does one that runs ahead make anything last: what seems to come from the
	// future counts no more than a moment's difference between two machines.
	excused := age > -clockSkew && age < e.opts.StaleFor
	if excused && (r.req.Passing && r.req.Digest != "" || e.unreachable(r)) {
		return have, FromStale, nil
	}
	return e.collectAgain(ctx, trust, r, have, excused)
}

// collectAgain asks the registry for what is missing from what was collected before, which goes on
// to count where the registry cannot be asked and is excused.
func (e *Evaluator) collectAgain(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt, excused bool) (collectedAt, Origin, error) {
	noting, answered := transport.Answers(ctx)
	now, err := e.collectRest(noting, trust, r, have)
	err = ignoreSignerRepositories(err)
	if err != nil && excused && !errors.Is(err, image.ErrMalformed) && !errors.Is(err, image.ErrNotAsked) {
		// What one application may not read says nothing about the registry, and one
		// blob that it does not hand out does not either.
		var blob *collect.BlobError
		if !errors.Is(err, image.ErrUnauthorized) && !errors.As(err, &blob) {
			e.known.down.Put(outOfReach(r.image, answered()), e.opts.Now())
		}
		return have, FromStale, nil
	}
	now, err = e.keepCollected(r, now, err)
	return now, FromRegistry, err
}

// ignoreSignerRepositories excuses the repositories of signers that could not be read: what was
// collected of the others is a part.
func ignoreSignerRepositories(err error) error {
	var elsewhere *collect.RepositoryError
	if errors.As(err, &elsewhere) {
		return nil
	}
	return err
}

// noteUnread has the repositories of signers that were asked, and could not be read,
// not be waited for again for a while. One that was not asked says nothing: it would
// never be asked again.
func (e *Evaluator) noteUnread(asked []string, found collect.Collected, err error) {
	if ignoreSignerRepositories(err) != nil || err == nil {
		return
	}
	for _, repository := range found.Lacks(asked) {
		e.known.down.Put(repository, e.opts.Now())
	}
}

// waits reports whether what was collected is a part only for repositories of signers
// that were out of reach a moment ago.
func (e *Evaluator) waits(trust *signing.Trust, have collectedAt) bool {
	lacks := have.Collected.Lacks(trust.Repositories())
	return len(lacks) > 0 && !slices.ContainsFunc(lacks, func(r string) bool { return !e.isDown(r) })
}

// outOfReach names what is out of reach where signatures could not be collected: the
// registry, if it answered nothing, else the repository alone. Whoever may push there can
// have it take long, and others read images of the same registry.
func outOfReach(r image.Resolved, answered bool) string {
	if answered {
		return r.Registry + "/" + r.Repository
	}
	return r.Registry
}

// unreachable reports whether a registry, or a repository in it, was out of reach a
// moment ago, and the request did not change since. One that hangs would else hold up a
// revocation for as long as every image in it is waited for.
func (e *Evaluator) unreachable(r Resolved) bool {
	return slices.ContainsFunc([]string{outOfReach(r.image, true), outOfReach(r.image, false)}, func(name string) bool {
		since, _ := e.known.down.Get(name)
		return e.isDown(name) && !since.Before(r.req.Changed)
	})
}

// isDown reports whether a registry or repository of that name was out of reach a moment
// ago.
func (e *Evaluator) isDown(name string) bool {
	since, ok := e.known.down.Get(name)
	return ok && e.opts.Now().Sub(since) < incompleteFor
}

// noteAnswer ends the wait for a registry, and a repository in it, that answers again.
func (e *Evaluator) noteAnswer(r image.Resolved) {
	for _, name := range []string{outOfReach(r, true), outOfReach(r, false)} {
		if _, known := e.known.down.Get(name); known {
			e.known.down.Put(name, time.Time{})
		}
	}
}

// collectFirst asks about a digest that nothing is known of, and no more than it takes
// to find a signature that counts.
func (e *Evaluator) collectFirst(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, error) {
	at := e.opts.Now()
	collecting, cancel := context.WithTimeout(ctx, e.opts.CollectTimeout)
	defer cancel()
	found, err := collect.Until(collecting, e.images(r.req), r.image, func(part collect.Collected) (bool, error) {
		ev, err := e.evidence(ctx, trust, collectedAt{Collected: part})
		return len(ev.Signatures) > 0, err
	}, trust.Repositories()...)
	e.noteUnread(trust.Repositories(), found, err)
	return e.keepCollected(r, collectedAt{Collected: found, At: at}, ignoreSignerRepositories(e.tooSlow(collecting, r, err)))
}

// collectRest asks for all there is: the rest, where a part was collected lately.
func (e *Evaluator) collectRest(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt) (collectedAt, error) {
	now := collectedAt{At: e.opts.Now()}
	collecting, cancel := context.WithTimeout(ctx, e.opts.CollectTimeout)
	defer cancel()
	before, err := e.countedBefore(ctx, trust, have)
	if err != nil {
		return now, err
	}
	// A repository of a signer that hangs is not waited for by every application.
	asked := slices.DeleteFunc(slices.Clone(trust.Repositories()), e.isDown)
	if age := now.At.Sub(have.At); have.Collected.Partial && age > -clockSkew && age < e.opts.FreshFor {
		now.At = have.At
		now.Collected, err = collect.Complete(collecting, e.images(r.req), r.image, have.Collected, before, asked...)
	} else {
		now.Collected, err = collect.Again(collecting, e.images(r.req), r.image, before, asked...)
	}
	e.noteUnread(asked, now.Collected, err)
	now.Collected = now.Collected.For(trust.Repositories())
	if lacks := now.Collected.Lacks(trust.Repositories()); err == nil && len(lacks) > 0 {
		err = &collect.RepositoryError{Repository: lacks[0], Err: errors.New("it could not be read a moment ago")}
	}
	return now, e.tooSlow(collecting, r, err)
}

// countedBefore are the artifacts that counted when they were last collected.
func (e *Evaluator) countedBefore(ctx context.Context, trust *signing.Trust, have collectedAt) (before []collect.Artifact, err error) {
	if have.Collected.Digest == "" {
		return nil, nil
	}
	key, err := have.key(trust.Revision())
	if err != nil {
		return nil, err
	}
	ev, known := e.known.evidence.Cache.Get(key)
	if !known {
		ev, err = trust.Verify(ctx, have.Collected, e.opts.Now())
	}
	for _, i := range ev.Counted {
		before = append(before, have.Collected.Artifacts[i])
	}
	return before, err
}

// tooSlow names the registry and the deadline in an error of collecting signatures
// that took too long.
func (e *Evaluator) tooSlow(collecting context.Context, r Resolved, err error) error {
	var elsewhere *collect.RepositoryError
	if err == nil || errors.As(err, &elsewhere) || !errors.Is(collecting.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("registry %s did not send all signatures within %s: %w", r.image.Registry, e.opts.CollectTimeout, err)
}

// keepCollected keeps what was collected without an error. What is passing, or was opened by
// credentials that are not everybody's, stays in this process: others read the
// Memory.
func (e *Evaluator) keepCollected(r Resolved, now collectedAt, err error) (collectedAt, error) {
	if err == nil {
		e.noteAnswer(r.image)
		now, err = now.hashed()
	}
	if err == nil {
		err = e.known.keep(e.shared(r), r.image, now)
	}
	return now, err
}

// shareCollected stores what a request that was passing learned.
func (e *Evaluator) shareCollected(r Resolved, have collectedAt) error {
	shared := e.shared(r)
	if shared == nil || have.storedLately() {
		return nil
	}
	return e.known.keep(shared, r.image, have)
}

// shared is the Memory for what a request learns; nil where others are not to
// know it.
func (e *Evaluator) shared(r Resolved) Memory {
	if r.req.Passing || r.req.Reader != nil && !r.req.Reader.Open(r.image) {
		return nil
	}
	return e.opts.Memory
}

// evidence is the evidence in what was collected, remembered per trust revision for as
// long as it holds.
func (e *Evaluator) evidence(ctx context.Context, trust *signing.Trust, c collectedAt) (signing.Evidence, error) {
	key, err := c.key(trust.Revision())
	if err != nil {
		return signing.Evidence{}, err
	}
	now := e.opts.Now()
	if ev, ok := e.known.evidence.Get(key); ok && ev.Holds(now) {
		return ev, nil
	}
	ev, err := trust.Verify(ctx, c.Collected, now)
	if err != nil {
		return signing.Evidence{}, err
	}
	e.known.evidence.Put(key, ev)
	return ev, nil
}
