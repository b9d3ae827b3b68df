package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// collector has the signatures of images: those that it remembers as long as they count, else the registry's.
type collector struct {
	opts  *Options
	known *remembered
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
func (c *collector) signatures(ctx context.Context, trust *signing.Trust, r Resolved) (found collectedAt, stale bool, err error) {
	found, from, err := c.find(ctx, trust, r)
	if errors.Is(err, image.ErrNotAsked) {
		return found, false, err
	}
	if err != nil {
		from = asked(err)
	}
	c.opts.Observer.Signatures(from)
	return found, from == FromStale, err
}

// find answers from memory where it may, and asks the registry where it must. A
// registry that cannot be asked is excused for StaleFor.
func (c *collector) find(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, Origin, error) {
	have, from := c.known.collected(c.opts.Memory, r.image)
	if from == "" {
		now, err := c.collectFirst(ctx, trust, r)
		return now, FromRegistry, err
	}
	have = have.forSigners(trust)
	ev, err := c.evidence(ctx, trust, have)
	if err != nil {
		return collectedAt{}, from, err
	}
	age, fresh := c.opts.Now().Sub(have.At), c.opts.FreshFor
	if len(ev.Signatures) == 0 || ev.Partial && !c.waits(trust, have) {
		fresh = min(fresh, incompleteFor)
	}
	// A clock that was set back makes nothing fresh.
	if age >= 0 && age < fresh {
		return have, from, c.shareCollected(r, have)
	}
	// Nor does one that runs ahead make anything last: what seems to come from the
	// future counts no more than a moment's difference between two machines.
	excused := age > -clockSkew && age < c.opts.StaleFor
	if excused && (r.req.Passing && r.req.Digest != "" || c.unreachable(r)) {
		return have, FromStale, nil
	}
	return c.collectAgain(ctx, trust, r, have, excused)
}

// collectAgain asks the registry for what is missing from what was collected before, which goes on
// to count where the registry cannot be asked and is excused.
func (c *collector) collectAgain(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt, excused bool) (collectedAt, Origin, error) {
	noting, answered := transport.Answers(ctx)
	now, err := c.collectRest(noting, trust, r, have)
	var blob *collect.BlobError
	if !errors.As(err, &blob) || answered() && !c.loses(ctx, trust, r, have, now, excused) {
		err = ignoreUnread(err)
	}
	if err != nil && excused && !errors.Is(err, image.ErrMalformed) && !errors.Is(err, image.ErrNotAsked) {
		// One blob that the registry does not hand out says nothing about the registry, and
		// what one application may not read does not either. Nor does a request that was
		// given up.
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
		case errors.As(err, &blob) && answered():
			c.known.down.Put(withheldFrom(r), c.opts.Now())
		case !errors.Is(err, image.ErrUnauthorized):
			c.known.down.Put(outOfReach(r.image, answered()), c.opts.Now())
		}
		return have, FromStale, nil
	}
	now, err = c.keepCollected(r, now, err)
	return now, FromRegistry, err
}

// noteUnread has the repositories of signers that were asked, and could not be read,
// not be waited for again for a while. One that was not asked says nothing: it would
// never be asked again.
func (c *collector) noteUnread(asked []string, found collect.Collected, err error) {
	if ignoreSignerRepositories(err) != nil || err == nil {
		return
	}
	for _, repository := range found.Lacks(asked) {
		c.known.down.Put(repository, c.opts.Now())
	}
}

// waits reports whether what was collected is a part only for repositories of signers
// that were out of reach a moment ago.
func (c *collector) waits(trust *signing.Trust, have collectedAt) bool {
	lacks := have.Collected.Lacks(trust.Repositories())
	return len(lacks) > 0 && !slices.ContainsFunc(lacks, func(r string) bool { return !c.isDown(r) })
}

// unreachable reports whether a registry, or a repository in it, was out of reach a
// moment ago, and the request did not change since. One that hangs would else hold up a
// revocation for as long as every image in it is waited for.
func (c *collector) unreachable(r Resolved) bool {
	return slices.ContainsFunc(reaches(r), func(name string) bool {
		since, _ := c.known.down.Get(name)
		return c.isDown(name) && !since.Before(r.req.Changed)
	})
}

// isDown reports whether a registry or repository of that name was out of reach a moment
// ago.
func (c *collector) isDown(name string) bool {
	since, ok := c.known.down.Get(name)
	return ok && c.opts.Now().Sub(since) < incompleteFor
}

// reaches names what may be out of reach where the signatures of an image are collected.
func reaches(r Resolved) []string {
	return []string{outOfReach(r.image, true), outOfReach(r.image, false), withheldFrom(r)}
}

// withheldFrom names what a registry does not hand out of an image to one application: others may have other credentials.
func withheldFrom(r Resolved) string {
	return memoryName(r.image) + " " + r.req.Application.Identity().String()
}

// noteAnswer ends the wait for a registry, and a repository in it, that answers again.
func (c *collector) noteAnswer(r Resolved) {
	for _, name := range reaches(r) {
		if _, known := c.known.down.Get(name); known {
			c.known.down.Put(name, time.Time{})
		}
	}
}

// collectFirst asks about a digest that nothing is known of, and no more than it takes
// to find a signature that counts.
func (c *collector) collectFirst(ctx context.Context, trust *signing.Trust, r Resolved) (collectedAt, error) {
	at := c.opts.Now()
	collecting, cancel := context.WithTimeout(ctx, c.opts.CollectTimeout)
	defer cancel()
	sought := r.sealed()
	found, err := collect.Until(collecting, c.images(r.req), r.image, sought, func(part collect.Collected) (bool, error) {
		ev, err := c.evidence(ctx, trust, collectedAt{Collected: part})
		return len(ev.Signatures) > 0, err
	}, trust.Repositories()...)
	c.noteUnread(trust.Repositories(), found, err)
	now := collectedAt{Collected: found, At: at}.havingSought(sought, at)
	return c.keepCollected(r, now, ignoreUnread(c.tooSlow(collecting, r, err)))
}

// collectRest asks for all there is: the rest, where a part was collected lately.
func (c *collector) collectRest(ctx context.Context, trust *signing.Trust, r Resolved, have collectedAt) (collectedAt, error) {
	now := collectedAt{At: c.opts.Now()}
	collecting, cancel := context.WithTimeout(ctx, c.opts.CollectTimeout)
	defer cancel()
	before, err := c.countedBefore(ctx, trust, have)
	if err != nil {
		return now, err
	}
	sought, at := r.sealed(), now.At
	before = slices.Concat(sought, before)
	now.sought = have.sought
	// A repository of a signer that hangs is not waited for by every application.
	asked := slices.DeleteFunc(slices.Clone(trust.Repositories()), c.isDown)
	if age := now.At.Sub(have.At); have.Collected.Partial && age > -clockSkew && age < c.opts.FreshFor && len(have.unsought(r, collect.Bundle)) == 0 {
		now.At = have.At
		sought = slices.DeleteFunc(sought, func(a collect.Artifact) bool { return a.Kind == collect.Bundle })
		now.Collected, err = collect.Complete(collecting, c.images(r.req), r.image, have.Collected, before, asked...)
	} else {
		now.Collected, err = collect.Again(collecting, c.images(r.req), r.image, before, asked...)
	}
	c.noteUnread(asked, now.Collected, err)
	now.Collected = now.Collected.For(trust.Repositories())
	now = now.havingSought(sought, at)
	if lacks := now.Collected.Lacks(trust.Repositories()); err == nil && len(lacks) > 0 {
		err = &collect.RepositoryError{Repository: lacks[0], Err: errors.New("it could not be read a moment ago")}
	}
	return now, c.tooSlow(collecting, r, err)
}

// countedBefore are the artifacts that counted when they were last collected.
func (c *collector) countedBefore(ctx context.Context, trust *signing.Trust, have collectedAt) (before []collect.Artifact, err error) {
	if have.Collected.Digest == "" {
		return nil, nil
	}
	key, err := have.key(trust.Revision())
	if err != nil {
		return nil, err
	}
	ev, known := c.known.evidence.Cache.Get(key)
	if !known {
		ev, err = trust.Verify(ctx, have.Collected, c.opts.Now())
	}
	for _, counted := range ev.Counted {
		before = append(before, have.Collected.Artifacts[counted.Artifact])
	}
	return before, err
}

// loses reports whether something that counted would be forgotten with what was collected
// before: it is not in what the registry hands out now. Sealed artifacts are looked for again, so
// that once the registry is not excused, they hold up no other.
func (c *collector) loses(ctx context.Context, trust *signing.Trust, r Resolved, have, now collectedAt, excused bool) bool {
	before, err := c.countedBefore(ctx, trust, have)
	return err != nil || slices.ContainsFunc(before, func(a collect.Artifact) bool {
		return (excused || !slices.Contains(r.sealedEvidence(), whereIs(a))) && !slices.ContainsFunc(now.Collected.Artifacts, func(b collect.Artifact) bool {
			return a.Kind == b.Kind && bytes.Equal(a.Content, b.Content) && maps.Equal(a.Annotations, b.Annotations)
		})
	})
}

// tooSlow names the registry and the deadline in an error of collecting signatures
// that took too long.
func (c *collector) tooSlow(collecting context.Context, r Resolved, err error) error {
	if err == nil || ignoreUnread(err) == nil || !errors.Is(collecting.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("registry %s did not send all signatures within %s: %w", r.image.Registry, c.opts.CollectTimeout, err)
}

// keepCollected keeps what was collected without an error. What is passing, or was opened by
// credentials that are not everybody's, stays in this process: others read the
// Memory.
func (c *collector) keepCollected(r Resolved, now collectedAt, err error) (collectedAt, error) {
	if err == nil {
		c.noteAnswer(r)
		now, err = now.hashed()
	}
	if err == nil {
		err = c.known.keep(c.shared(r), r.image, now)
	}
	return now, err
}

// shareCollected stores what a request that was passing learned.
func (c *collector) shareCollected(r Resolved, have collectedAt) error {
	shared := c.shared(r)
	if shared == nil || have.storedLately() {
		return nil
	}
	return c.known.keep(shared, r.image, have)
}

// shared is the Memory for what a request learns; nil where others are not to
// know it.
func (c *collector) shared(r Resolved) Memory {
	if r.req.Passing || r.req.Reader != nil && !r.req.Reader.Open(r.image) {
		return nil
	}
	return c.opts.Memory
}

// evidence is the evidence in what was collected, remembered per trust revision for as
// long as it holds.
func (c *collector) evidence(ctx context.Context, trust *signing.Trust, have collectedAt) (signing.Evidence, error) {
	key, err := have.key(trust.Revision())
	if err != nil {
		return signing.Evidence{}, err
	}
	now := c.opts.Now()
	if ev, ok := c.known.evidence.Get(key); ok && ev.Holds(now) {
		return ev, nil
	}
	ev, err := trust.Verify(ctx, have.Collected, now)
	if err != nil {
		return signing.Evidence{}, err
	}
	c.known.evidence.Put(key, ev)
	return ev, nil
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

// ignoreUnread excuses also what the registry does not hand out: what was collected of the rest
// says that not all is read.
func ignoreUnread(err error) error {
	var blob *collect.BlobError
	if errors.As(err, &blob) {
		return nil
	}
	return ignoreSignerRepositories(err)
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

// asked is what became of asking a registry.
func asked(err error) Origin {
	if err != nil {
		return FromNowhere
	}
	return FromRegistry
}

// images is where the image of a request is read.
func (c *collector) images(req Request) Images {
	if req.Reader != nil {
		return req.Reader
	}
	return c.opts.Images
}
