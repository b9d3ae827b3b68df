// Package gate is the one pipeline that evaluates definitions, whoever calls it: shape,
// resolve, verify, inspect, decide.
//
// Each step takes a type that only the step before makes, so a skipped check does not
// compile. Only a Verdict that allows can be sealed. It loads nothing into a kernel and
// knows no cluster. It only decides what is legal: package policies decides what is
// allowed, and package lifecycle what becomes of an application.
//
// Size: only within one package can a step keep others from making the type it needs.
package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// Images resolves references, fetches objects, and opens what is attached to
// them; *registry.Client is one. Its errors are of the kinds of package image.
type Images interface {
	collect.Source
	// Resolve turns a tag into a digest.
	Resolve(ctx context.Context, ref string) (image.Resolved, error)
	// Pin is Resolve with the digest known, and asks nobody.
	Pin(ref, digest string) (image.Resolved, error)
	// Pull fetches by digest, from a cache where it can. What it returns is
	// released.
	Pull(ctx context.Context, r image.Resolved) (*registry.Image, error)
	// Describe is Pull, but for the object where the image was pulled before.
	Describe(ctx context.Context, r image.Resolved) (*registry.Image, error)
}

// Options says what an Evaluator asks and what it trusts.
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
	// collector shares known.
	collector collector
}

// New returns an Evaluator.
func New(o Options) (*Evaluator, error) {
	switch {
	case o.Images == nil:
		return nil, errors.New("make evaluator: no Images given")
	case o.Trust == nil:
		return nil, errors.New("make evaluator: no Trust given")
	case o.Policies == nil:
		return nil, errors.New("make evaluator: no Policies given")
	}
	o.Now = clock.OrSystem(o.Now)
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
	e := &Evaluator{opts: o, trust: o.Trust, set: o.Policies, known: newRemembered(o.Observer)}
	e.collector = collector{&e.opts, &e.known}
	return e, nil
}

// SetTrust replaces the signers that count. Evidence is worked out again from
// collected signatures, without the network.
func (e *Evaluator) SetTrust(t *signing.Trust) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trust = t
}

// SetPolicies replaces the policies. Verdicts are decided again from remembered
// evidence and facts, without the network.
func (e *Evaluator) SetPolicies(s *policies.Set) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set = s
}

// Revision identifies the active signers and policies.
func (e *Evaluator) Revision() string {
	trust, set := e.active()
	return trust.Revision() + "/" + set.Revision()
}

// RevisionIn identifies the active signers, and the policies that evaluate the
// applications of a namespace; of an empty one, those of the cluster.
func (e *Evaluator) RevisionIn(namespace string) string {
	trust, set := e.active()
	return RevisionIn(namespace, trust, set)
}

// RevisionIn is Evaluator.RevisionIn of signers and policies that may not be active.
func RevisionIn(namespace string, trust *signing.Trust, set *policies.Set) string {
	return trust.Revision() + "/" + set.RevisionIn(namespace)
}

func (e *Evaluator) active() (*signing.Trust, *policies.Set) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.trust, e.set
}
