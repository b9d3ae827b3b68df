// Package gate is the one pipeline every definition passes, whichever door it
// came in by: shape, resolve, verify, inspect, decide.
//
// Each step takes what only the step before it makes, so a skipped check does
// not compile; only a Verdict that allows can be sealed. The package loads
// nothing into a kernel and knows no cluster. It decides nothing by itself
// beyond what is legal: that is package policies.
package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Images resolves references, fetches objects, and opens what is attached to
// them; *image.Client is one. Its errors are of the kinds of package image.
type Images interface {
	signing.Source
	// Resolve turns a tag into a digest.
	Resolve(ctx context.Context, ref string) (image.Resolved, error)
	// Pin is Resolve with the digest known, and asks nobody.
	Pin(ref, digest string) (image.Resolved, error)
	// Pull fetches by digest, from a cache where it can. What it returns is
	// released.
	Pull(ctx context.Context, r image.Resolved) (*image.Image, error)
	// Describe is Pull, but for the object where the image was pulled before.
	Describe(ctx context.Context, r image.Resolved) (*image.Image, error)
}

// Options says what a Evaluator asks and what it trusts.
type Options struct {
	// Images is needed.
	Images Images
	// Trust is the signers that count. Needed; it may hold none.
	Trust *signing.Trust
	// Policies is needed.
	Policies *policies.Set
	// Memory keeps collected signatures over restarts. The zero value keeps
	// them in this process only.
	Memory Memory
	// Observer counts what is done; nil means nobody.
	Observer Observer
	// CPUs is the number of possible CPUs the map memory is estimated for.
	// Zero means bytecode's default.
	CPUs int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// FreshFor is how long collected signatures that count are used before the
	// registry is asked again. Zero means ten minutes; where none counted, half
	// a minute, so that an image signed just after it was pushed is seen; where
	// only a part was collected, half a minute until the rest is.
	FreshFor time.Duration
	// StaleFor is how long they are still used while the registry cannot be
	// asked. Zero means 24 hours.
	StaleFor time.Duration
	// Timeout bounds one evaluation as a whole, however slowly a registry answers;
	// zero means two minutes. The caller's context may end it earlier.
	Timeout time.Duration
	// CollectTimeout bounds collecting the signatures of one image as a whole; zero
	// means 15 seconds. Where that takes longer, the repository is out of reach, and the
	// registry as well if it answered nothing at all.
	CollectTimeout time.Duration
}

// Evaluator runs the pipeline and remembers what it learned: facts by object
// digest, evidence by image digest and trust revision, decisions by the hash of
// the whole Rego input and policy revision. It is safe for concurrent use.
type Evaluator struct {
	opts Options
	// mu guards trust and set, which SetTrust and SetPolicies swap.
	mu    sync.RWMutex
	trust *signing.Trust
	set   *policies.Set
	known remembered
}

// New returns a Evaluator.
func New(o Options) (*Evaluator, error) {
	switch {
	case o.Images == nil:
		return nil, errors.New("make evaluator: no Images given")
	case o.Trust == nil:
		return nil, errors.New("make evaluator: no Trust given")
	case o.Policies == nil:
		return nil, errors.New("make evaluator: no Policies given")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FreshFor == 0 {
		o.FreshFor = 10 * time.Minute
	}
	if o.StaleFor == 0 {
		o.StaleFor = 24 * time.Hour
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.CollectTimeout == 0 {
		o.CollectTimeout = 15 * time.Second
	}
	if o.Observer == nil {
		o.Observer = nop{}
	}
	return &Evaluator{opts: o, trust: o.Trust, set: o.Policies, known: newRemembered(o.Observer)}, nil
}

// SetTrust replaces the signers that count. Evidence is worked out again from
// collected signatures, without the network.
func (j *Evaluator) SetTrust(t *signing.Trust) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trust = t
}

// SetPolicies replaces the policies. Verdicts are decided again from remembered
// evidence and facts, without the network.
func (j *Evaluator) SetPolicies(s *policies.Set) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.set = s
}

// Revision identifies the active signers and policies.
func (j *Evaluator) Revision() string {
	trust, set := j.active()
	return trust.Revision() + "/" + set.Revision()
}

// RevisionIn identifies the active signers, and the policies that evaluate the
// applications of a namespace; of an empty one, those of the cluster.
func (j *Evaluator) RevisionIn(namespace string) string {
	trust, set := j.active()
	return RevisionIn(namespace, trust, set)
}

// RevisionIn is Evaluator.RevisionIn of signers and policies that may not be active.
func RevisionIn(namespace string, trust *signing.Trust, set *policies.Set) string {
	return trust.Revision() + "/" + set.RevisionIn(namespace)
}

// images is where the image of a request is read.
func (j *Evaluator) images(req Request) Images {
	if req.Reader != nil {
		return req.Reader
	}
	return j.opts.Images
}

func (j *Evaluator) active() (*signing.Trust, *policies.Set) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.trust, j.set
}

// Evaluate runs every step. A definition that is refused, by a step or by a
// policy, is a Verdict that does not allow; an error means that it could not be
// told, such as a registry out of reach, and that trying again may help. What is
// denied by its definition alone is so even then; see Foregone. It takes
// no longer than Options.Timeout, and asks no registry where the context is one
// of image.CacheOnly.
func (j *Evaluator) Evaluate(ctx context.Context, req Request) (Verdict, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, j.opts.Timeout)
	defer cancel()
	asking, stop := beforeEnd(ctx)
	defer stop()
	verdict, err := j.run(asking, req)
	if errors.Is(asking.Err(), context.DeadlineExceeded) {
		err = overdue(ctx, req, began, err)
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusedVerdict(req, verdict, refusal), nil
	}
	if err != nil && req.Application != nil && !errors.Is(err, image.ErrNotAsked) {
		if denied, ok := j.DeniedByDefinition(ctx, req, err); ok {
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
// evidence. A definition that an earlier step refuses has none, and the error is the *Refusal.
func (j *Evaluator) Input(ctx context.Context, req Request) (policies.Input, error) {
	inspected, _, err := j.runUntilDecision(ctx, req)
	if err != nil {
		return policies.Input{}, err
	}
	if inspected, err = j.complete(ctx, inspected); err != nil {
		return policies.Input{}, err
	}
	input := inspected.Input()
	input.Now = j.opts.Now()
	return input, nil
}

// run is the pipeline. On a refusal it returns what was learned until then.
func (j *Evaluator) run(ctx context.Context, req Request) (Verdict, error) {
	inspected, learned, err := j.runUntilDecision(ctx, req)
	if err != nil {
		return learned, err
	}
	return j.Decide(ctx, inspected)
}

// runUntilDecision runs every step but the last.
func (j *Evaluator) runUntilDecision(ctx context.Context, req Request) (Inspected, Verdict, error) {
	var learned Verdict
	shaped, err := Shape(req)
	if err != nil {
		return Inspected{}, learned, err
	}
	resolved, err := j.Resolve(ctx, shaped)
	if err != nil {
		return Inspected{}, learned, err
	}
	learned.resolved = resolved.image
	verified, err := j.Verify(ctx, resolved)
	if err != nil {
		return Inspected{}, learned, err
	}
	learned.evidence = verified.evidence
	inspected, err := j.Inspect(ctx, verified)
	return inspected, learned, err
}

// Resolved is a shaped request whose image is known by digest.
type Resolved struct {
	Shaped
	image image.Resolved
}

// Resolve turns the reference into a digest: the request's, where it has one,
// else what the registry says now.
func (j *Evaluator) Resolve(ctx context.Context, s Shaped) (Resolved, error) {
	if s.req.Application == nil {
		return Resolved{}, fmt.Errorf("resolve: %w", errSkipped)
	}
	id, ref := s.req.Application.Identity(), s.req.Application.Body().Bytecode.Image
	if s.req.Digest != "" {
		pinned, err := j.images(s.req).Pin(ref, s.req.Digest)
		if err != nil {
			return Resolved{}, imageRefusal(id.String(), err)
		}
		return Resolved{Shaped: s, image: pinned}, nil
	}
	r, err := j.images(s.req).Resolve(ctx, ref)
	if err != nil {
		return Resolved{}, imageError(id.String(), "resolve", err)
	}
	return Resolved{Shaped: s, image: r}, nil
}

// imageError tells a fault of the image, which is a refusal, from a registry
// that could not be asked, which is an error.
func imageError(object, verb string, err error) error {
	if errors.Is(err, image.ErrMalformed) || errors.Is(err, image.ErrNotFound) || errors.Is(err, image.ErrNotAllowed) {
		return imageRefusal(object, err)
	}
	return fmt.Errorf("%s image of %s: %w", verb, object, err)
}

// imageRefusal refuses an image that is not there or not what it should be.
func imageRefusal(object string, err error) error {
	r, fix := &refusals{object: object}, "check the reference, and that the image is an eBPF bytecode image (skep image inspect)"
	if errors.Is(err, image.ErrNotFound) {
		r.missing, fix = err, "check the tag or the digest of the reference, or push the image"
	}
	if refused := (*image.NotAllowedError)(nil); errors.As(err, &refused) {
		fix = "to allow it, add --allowed-registry " + refused.Pattern + "; the first one that is given ends the default, --allowed-registry '*'"
	}
	r.add("resolve/image", "spec.bytecode.image", fix, "%v", err)
	return r.err()
}

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
// signed passes with empty evidence; policies refuse it.
func (j *Evaluator) Verify(ctx context.Context, r Resolved) (Verified, error) {
	if r.image.Digest == "" {
		return Verified{}, fmt.Errorf("verify: %w", errSkipped)
	}
	v := Verified{Resolved: r}
	v.trust, v.policies = j.active()
	id := r.req.Application.Identity()
	var err error
	if v.object, err = j.open(ctx, r); err != nil {
		return Verified{}, imageError(id.String(), "fetch", err)
	}
	if v.collected, v.stale, err = j.signatures(ctx, v.trust, r); err == nil {
		v.evidence, err = j.evidence(ctx, v.trust, v.collected)
	}
	if err != nil {
		return Verified{}, fmt.Errorf("verify signatures of %s: %w", id, err)
	}
	return v, nil
}

// complete collects the rest where only a part was collected: what is missing
// from a part is no reason to refuse.
func (j *Evaluator) complete(ctx context.Context, i Inspected) (Inspected, error) {
	if !i.evidence.Partial {
		return i, nil
	}
	now, err := j.collectRest(ctx, i.trust, i.Resolved, i.collected)
	if !errors.Is(err, image.ErrNotAsked) {
		j.opts.Observer.Signatures(asked(err))
	}
	var elsewhere *signing.RepositoryError
	if errors.As(err, &elsewhere) {
		_, _ = j.keepCollected(i.Resolved, now, ignoreSignerRepositories(err))
	}
	if i.collected, err = j.keepCollected(i.Resolved, now, err); err == nil {
		i.evidence, err = j.evidence(ctx, i.trust, i.collected)
	}
	if err != nil {
		return Inspected{}, fmt.Errorf("verify signatures of %s: %w", i.req.Application.Identity(), err)
	}
	return i, nil
}

// outdated reports whether a denial rests on signatures or attestations that the registry
// is to be asked about again, since one may have been added. That is so where the
// definition changed since they were collected, else after half a minute; where there is
// nothing new it is asked half as often each time, every two minutes at least.
func (j *Evaluator) outdated(d policies.Decision, i Inspected) bool {
	if d.Allowed() || !d.AllEvidence && len(i.evidence.Signatures) > 0 ||
		i.stale || i.req.Passing && i.req.Digest != "" || j.unreachable(i.image) {
		return false
	}
	age := j.opts.Now().Sub(i.collected.At)
	return age < 0 || age >= min(max(i.collected.unchanged(), incompleteFor), deniedFor) || i.collected.At.Before(i.req.Changed)
}

// renewed is i with all that the registry offers now, and whether that is news. Where the
// registry cannot be asked, what was collected counts.
func (j *Evaluator) renewed(ctx context.Context, i Inspected) (now Inspected, news bool, err error) {
	have := i.collected
	// What is older than anything is no part to be completed.
	have.At = time.Time{}
	offered, from, err := j.collectAgain(ctx, i.trust, i.Resolved, have, true)
	if errors.Is(err, image.ErrNotAsked) {
		return i, false, err
	}
	j.opts.Observer.Signatures(asked(err))
	if news = err == nil && from == FromRegistry; news {
		i.collected = offered
		i.evidence, err = j.evidence(ctx, i.trust, offered)
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
func (j *Evaluator) signatures(ctx context.Context, trust *signing.Trust, r Resolved) (found collectedAt, stale bool, err error) {
	found, from, err := j.find(ctx, trust, r)
	if errors.Is(err, image.ErrNotAsked) {
		return found, false, err
	}
	if err != nil {
		from = asked(err)
	}
	j.opts.Observer.Signatures(from)
	return found, from == FromStale, err
}

// find answers from memory where it may, and asks the registry where it must. A
// registry that cannot be asked is excused for StaleFor.
func (j *Evaluator) find(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, Origin, error) {
	have, from := j.known.collected(j.opts.Memory, r.image)
	if from == "" {
		now, err := j.collectFirst(ctx, trust, r)
		return now, FromRegistry, err
	}
	have = have.forSigners(trust)
	ev, err := j.evidence(ctx, trust, have)
	if err != nil {
		return collectedAt{}, from, err
	}
	age, fresh := j.opts.Now().Sub(have.At), j.opts.FreshFor
	if len(ev.Signatures) == 0 || ev.Partial && !j.waits(trust, have) {
		fresh = min(fresh, incompleteFor)
	}
	// A clock that was set back makes nothing fresh.
	if age >= 0 && age < fresh {
		return have, from, j.shareCollected(r, have)
	}
	// Nor does one that runs ahead make anything last: what seems to come from the
	// future counts no more than a moment's difference between two machines.
	excused := age > -clockSkew && age < j.opts.StaleFor
	if excused && (r.req.Passing && r.req.Digest != "" || j.unreachable(r.image)) {
		return have, FromStale, nil
	}
	return j.collectAgain(ctx, trust, r, have, excused)
}

// collectAgain asks the registry for what is missing from what was collected before, which goes on
// to count where the registry cannot be asked and is excused.
func (j *Evaluator) collectAgain(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt, excused bool) (collectedAt, Origin, error) {
	noting, answered := image.Answers(ctx)
	now, err := j.collectRest(noting, trust, r, have)
	err = ignoreSignerRepositories(err)
	if err != nil && excused && !errors.Is(err, image.ErrMalformed) && !errors.Is(err, image.ErrNotAsked) {
		// What one application may not read says nothing about the registry, and one
		// blob that it does not hand out does not either.
		var blob *signing.BlobError
		if !errors.Is(err, image.ErrUnauthorized) && !errors.As(err, &blob) {
			j.known.down.put(outOfReach(r.image, answered()), j.opts.Now())
		}
		return have, FromStale, nil
	}
	now, err = j.keepCollected(r, now, err)
	return now, FromRegistry, err
}

// ignoreSignerRepositories excuses the repositories of signers that could not be read: what was
// collected of the others is a part.
func ignoreSignerRepositories(err error) error {
	var elsewhere *signing.RepositoryError
	if errors.As(err, &elsewhere) {
		return nil
	}
	return err
}

// noteUnread has the repositories of signers that were asked, and could not be read,
// not be waited for again for a while. One that was not asked says nothing: it would
// never be asked again.
func (j *Evaluator) noteUnread(asked []string, found signing.Collected, err error) {
	if ignoreSignerRepositories(err) != nil || err == nil {
		return
	}
	for _, repository := range found.Lacks(asked) {
		j.known.down.put(repository, j.opts.Now())
	}
}

// waits reports whether what was collected is a part only for repositories of signers
// that were out of reach a moment ago.
func (j *Evaluator) waits(trust *signing.Trust, have collectedAt) bool {
	lacks := have.Collected.Lacks(trust.Repositories())
	return len(lacks) > 0 && !slices.ContainsFunc(lacks, func(r string) bool { return !j.isDown(r) })
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
// moment ago. One that hangs would else hold up a revocation for as long as every image
// in it is waited for.
func (j *Evaluator) unreachable(r image.Resolved) bool {
	return slices.ContainsFunc([]string{outOfReach(r, true), outOfReach(r, false)}, j.isDown)
}

// isDown reports whether a registry or repository of that name was out of reach a moment
// ago.
func (j *Evaluator) isDown(name string) bool {
	since, ok := j.known.down.get(name)
	return ok && j.opts.Now().Sub(since) < incompleteFor
}

// collectFirst asks about a digest that nothing is known of, and no more than it takes
// to find a signature that counts.
func (j *Evaluator) collectFirst(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, error) {
	at := j.opts.Now()
	collecting, cancel := context.WithTimeout(ctx, j.opts.CollectTimeout)
	defer cancel()
	found, err := signing.CollectUntil(collecting, j.images(r.req), r.image, func(part signing.Collected) (bool, error) {
		ev, err := j.evidence(ctx, trust, collectedAt{Collected: part})
		return len(ev.Signatures) > 0, err
	}, trust.Repositories()...)
	j.noteUnread(trust.Repositories(), found, err)
	return j.keepCollected(r, collectedAt{Collected: found, At: at}, ignoreSignerRepositories(j.tooSlow(collecting, r, err)))
}

// collectRest asks for all there is: the rest, where a part was collected lately.
func (j *Evaluator) collectRest(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt) (collectedAt, error) {
	now := collectedAt{At: j.opts.Now()}
	collecting, cancel := context.WithTimeout(ctx, j.opts.CollectTimeout)
	defer cancel()
	// A repository of a signer that hangs is not waited for by every application.
	asked := slices.DeleteFunc(slices.Clone(trust.Repositories()), j.isDown)
	var err error
	if age := now.At.Sub(have.At); have.Collected.Partial && age > -clockSkew && age < j.opts.FreshFor {
		now.At = have.At
		now.Collected, err = signing.Complete(collecting, j.images(r.req), r.image, have.Collected, asked...)
	} else {
		now.Collected, err = signing.Collect(collecting, j.images(r.req), r.image, asked...)
	}
	j.noteUnread(asked, now.Collected, err)
	now.Collected = now.Collected.For(trust.Repositories())
	if lacks := now.Collected.Lacks(trust.Repositories()); err == nil && len(lacks) > 0 {
		err = &signing.RepositoryError{Repository: lacks[0], Err: errors.New("it could not be read a moment ago")}
	}
	return now, j.tooSlow(collecting, r, err)
}

// tooSlow names the registry and the deadline in an error of collecting signatures
// that took too long.
func (j *Evaluator) tooSlow(collecting context.Context, r Resolved, err error) error {
	var elsewhere *signing.RepositoryError
	if err == nil || errors.As(err, &elsewhere) || !errors.Is(collecting.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("registry %s did not send all signatures within %s: %w", r.image.Registry, j.opts.CollectTimeout, err)
}

// keepCollected keeps what was collected without an error. What is passing, or was opened by
// credentials that are not everybody's, stays in this process: others read the
// Memory.
func (j *Evaluator) keepCollected(r Resolved, now collectedAt, err error) (collectedAt, error) {
	if err == nil {
		now, err = now.hashed()
	}
	if err == nil {
		err = j.known.keep(j.shared(r), r.image, now)
	}
	return now, err
}

// shareCollected stores what a request that was passing learned.
func (j *Evaluator) shareCollected(r Resolved, have collectedAt) error {
	shared := j.shared(r)
	if shared == nil || have.storedLately() {
		return nil
	}
	return j.known.keep(shared, r.image, have)
}

// shared is the Memory for what a request learns; nil where others are not to
// know it.
func (j *Evaluator) shared(r Resolved) Memory {
	if r.req.Passing || r.req.Reader != nil && !r.req.Reader.Open(r.image) {
		return nil
	}
	return j.opts.Memory
}

// evidence is the evidence in what was collected, remembered per trust revision for as
// long as it holds.
func (j *Evaluator) evidence(ctx context.Context, trust *signing.Trust, c collectedAt) (signing.Evidence, error) {
	key, err := c.key(trust.Revision())
	if err != nil {
		return signing.Evidence{}, err
	}
	now := j.opts.Now()
	if ev, ok := j.known.evidence.get(key); ok && ev.Holds(now) {
		return ev, nil
	}
	ev, err := trust.Verify(ctx, c.Collected, now)
	if err != nil {
		return signing.Evidence{}, err
	}
	j.known.evidence.put(key, ev)
	return ev, nil
}

// object is what is known of a request's bytecode once it was read. The bytes
// are not among it: they are many, and registries are waited for later.
type object struct {
	*image.Image
	facts reading
	// incompatible are the variables that the definition sets and the object lacks, or
	// has of another type.
	incompatible []policies.Reason
}

// reading is the facts of an object, or why there are none.
type reading struct {
	Facts   bytecode.Facts
	Refused *bytecode.Refusal
	Broken  string
}

// open reads all that is asked of an object, before another may be pulled. It is pulled
// where its facts are not known, or where values have to fit its variables.
func (j *Evaluator) open(ctx context.Context, r Resolved) (*object, error) {
	images, variables := j.images(r.req), r.req.Application.Body().Variables
	read := images.Describe
	if len(variables) > 0 {
		read = images.Pull
	}
	pulled, err := read(ctx, r.image)
	if err != nil {
		return nil, err
	}
	facts, known := j.known.facts.get(j.factsKey(pulled.ObjectDigest))
	if !known && pulled.Object == nil {
		pulled.Release()
		if pulled, err = images.Pull(ctx, r.image); err != nil {
			return nil, err
		}
	}
	defer pulled.Release()
	if !known {
		facts = j.inspect(pulled)
	}
	o := &object{Image: pulled, facts: facts}
	if o.facts.known() {
		o.incompatible = incompatibleVariables(pulled.Object, variables)
	}
	return o, nil
}

func (r reading) known() bool { return r.Refused == nil && r.Broken == "" }

// inspect finds out the facts of an object and remembers them, whether it comes to facts
// or not: the same bytes come to the same again.
func (j *Evaluator) inspect(pulled *image.Image) reading {
	var read reading
	var err error
	if read.Facts, err = bytecode.Inspect(bytes.NewReader(pulled.Object), j.inspects()); err != nil && !errors.As(err, &read.Refused) {
		read.Broken = err.Error()
	}
	j.known.facts.put(j.factsKey(pulled.ObjectDigest), read)
	return read
}

// factsKey is that of an object's facts.
func (j *Evaluator) factsKey(objectDigest string) string { return j.inspects().Key(objectDigest) }

func (j *Evaluator) inspects() bytecode.Options { return bytecode.Options{CPUs: j.opts.CPUs} }
