package policies

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"golang.org/x/sync/semaphore"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// DefaultTimeout is how long one policy may take to judge one input.
const DefaultTimeout = time.Second

// Documents of more than largeBytes are decided largeAtOnce at a time: the engine
// takes fifty times as much of the memory as a document has bytes. Nearly all
// have a few KiB, and wait for none.
const (
	largeBytes  = 128 << 10
	largeAtOnce = 2
)

// Options are what Compile takes beside the policies.
type Options struct {
	// Timeout is how long one policy may take to judge one input; 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// Now is the clock behind input.now, asked where Input.Now is zero; nil
	// means time.Now.
	Now func() time.Time
}

// Set is a set of compiled policies. It is safe for concurrent use.
type Set struct {
	policies []*compiled
	fallback *compiled
	timeout  time.Duration
	now      func() time.Time
	revision string
	// large counts the large documents that are being decided.
	large *semaphore.Weighted
}

// Compile compiles each policy alone. An application that no cluster-wide policy
// without a selector judges is judged by the embedded profile baseline: with no
// policy at all that is every application, and what others than an admin choose
// never takes it away, be it a namespaced policy or an application's labels.
//
// Where policies are broken, Compile returns a Set all the same, in which each
// broken one denies what its match covers, together with the errors of all of
// them joined, each a *CompileError. The Set is nil only if nothing could be
// compiled at all, or the context ended.
func Compile(ctx context.Context, list []Policy, opts Options) (*Set, error) {
	box, err := newSandbox()
	if err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	set := &Set{timeout: opts.Timeout, now: opts.Now, large: semaphore.NewWeighted(largeAtOnce)}
	if set.revision, err = revision(list); err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	baseline := Policy{Name: ProfileBaseline, Spec: v1alpha1.BpfPolicySpec{Profile: ProfileBaseline}}
	fallback, errs := box.compile(ctx, baseline, compileTimeout)
	if len(errs) > 0 {
		return nil, fmt.Errorf("compile policies: %w", errors.Join(errs...))
	}
	set.fallback = fallback
	for i, p := range list {
		c, broken := box.compile(ctx, p, compileTimeout)
		if i > 0 && list[i-1].String() == p.String() {
			c.broken = true
			broken = append(broken, &CompileError{Policy: c.id, File: p.file(), Line: 1, Column: 1, Message: "there is another policy of that name; rename one of them"})
		}
		set.policies = append(set.policies, c)
		errs = append(errs, broken...)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	return set, errors.Join(errs...)
}

// revision hashes all that decides beside the input.
func revision(list []Policy) (string, error) {
	data, err := baseData()
	if err != nil {
		return "", err
	}
	// Parameters are hashed as they were written, since they may be no JSON.
	type entry struct {
		Name       string
		Spec       v1alpha1.BpfPolicySpec
		Parameters map[string]string
	}
	entries := make([]entry, 0, len(list))
	for _, p := range list {
		e := entry{Name: p.String(), Spec: p.Spec, Parameters: map[string]string{}}
		for name, value := range p.Spec.Parameters {
			e.Parameters[name] = string(value.Raw)
		}
		e.Spec.Parameters = nil
		entries = append(entries, e)
	}
	body, err := json.Marshal(map[string]any{
		"input": InputVersion, "library": Source(), "capabilities": string(capabilitiesJSON), "data": data, "policies": entries,
	})
	if err != nil {
		return "", fmt.Errorf("write the policies' revision: %w", err)
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16]), nil
}

// Revision names the policies, the shipped library and the data they see, as
// lower-case hex. Two sets of one revision decide alike.
func (s *Set) Revision() string { return s.revision }

// Decide asks every policy that covers the application. It sets the input's
// version, its parameters and, where it is zero, its time. An error means that
// nothing was decided, and is never to be read as allowed: the context ended. A
// policy that fails is no error, it denies; and so does an input that is too
// large, of which no policy is asked.
func (s *Set) Decide(ctx context.Context, in Input) (Decision, error) {
	if in.Now.IsZero() {
		in.Now = s.now()
	}
	in.Now = in.Now.UTC()
	in.Parameters = nil
	document, err := in.Document()
	var large *tooLargeError
	if errors.As(err, &large) {
		return large.decision(), nil
	}
	if err != nil {
		return Decision{}, err
	}
	if len(document) > largeBytes {
		if err := s.large.Acquire(ctx, 1); err != nil {
			return Decision{}, fmt.Errorf("wait to decide %s: %w", in.Application.identity(), err)
		}
		defer s.large.Release(1)
	}
	value, err := ast.ValueFromReader(bytes.NewReader(document))
	if err != nil {
		return Decision{}, fmt.Errorf("read policy input of %s: %w", in.Application.identity(), err)
	}
	object, ok := value.(ast.Object)
	if !ok {
		return Decision{}, fmt.Errorf("read policy input of %s: it is no object", in.Application.identity())
	}
	fold := folding{decision: Decision{Denied: []Reason{}, Warnings: []Reason{}, Policies: []string{}}}
	for _, c := range s.judges(in.Application) {
		v := c.judge(ctx, object, s.timeout)
		if err := ctx.Err(); err != nil {
			return Decision{}, fmt.Errorf("decide %s: %w", in.Application.identity(), err)
		}
		fold.add(c, v)
	}
	if len(in.Signatures) == 0 && len(fold.decision.Denied) == 0 {
		fold.decision.Warnings = append(fold.decision.Warnings, unsigned())
	}
	return fold.done(), nil
}

// unsigned is the warning where the admins' own policies took the place of
// baseline and let an image pass that nobody known signed: they may not have
// meant to.
func unsigned() Reason {
	return Reason{
		Rule: "policy/unsigned", Path: "spec.bytecode.image",
		Message: "no known signer signed the image, and no policy that judges it asks for one",
		Remedy:  "sign it; or have an admin add a policy with profile: baseline beside the others",
	}
}

// Displaces tells whether a policy of the Set that is no profile takes the place
// of baseline for the applications that it matches.
func (s *Set) Displaces() bool {
	return slices.ContainsFunc(s.policies, func(c *compiled) bool {
		return c.displaces() && c.spec.Profile == ""
	})
}

// displaces tells whether the policy takes the place of baseline. One that chooses
// by labels does not: labels are the author's, who could switch baseline off by
// them.
func (c *compiled) displaces() bool {
	return c.scope.namespace == "" && c.scope.selector == nil && c.enforces
}

// judges are the policies that cover the application.
func (s *Set) judges(app Application) []*compiled {
	var judges []*compiled
	cluster := false
	for _, c := range s.policies {
		if c.scope.covers(app) {
			judges = append(judges, c)
			cluster = cluster || c.displaces()
		}
	}
	if !cluster {
		judges = append([]*compiled{s.fallback}, judges...)
	}
	return judges
}

// folding joins the verdicts of several policies.
type folding struct {
	decision Decision
	denying  int
	warning  int
}

// add takes one policy's verdict in.
func (f *folding) add(c *compiled, v verdict) {
	d := &f.decision
	d.Policies = append(d.Policies, c.id)
	d.Warnings = append(d.Warnings, v.warnings...)
	d.TimeDependent = d.TimeDependent || c.timeDependent || v.late
	d.AllEvidence = d.AllEvidence || c.allEvidence
	if len(v.denied) == 0 {
		return
	}
	if c.spec.Mode == v1alpha1.PolicyAudit {
		d.Audited = append(d.Audited, v.denied...)
		return
	}
	d.Denied = append(d.Denied, v.denied...)
	f.denying++
	if c.spec.Admission == v1alpha1.AdmissionWarn {
		f.warning++
	}
	// What runs is never taken away because a policy failed to say anything.
	if c.spec.Running == v1alpha1.RunningUnload && !v.failed {
		d.Unload = true
		d.UnloadUndefined = d.UnloadUndefined || !c.authored
	}
}

// done puts everything into its one order.
func (f *folding) done() Decision {
	d := f.decision
	d.Denied, d.Warnings, d.Audited = inOrder(d.Denied), inOrder(d.Warnings), inOrder(d.Audited)
	slices.Sort(d.Policies)
	d.AdmissionWarn = f.denying > 0 && f.denying == f.warning
	return d
}

// inOrder sorts reasons by rule, path and message and drops what stands twice.
func inOrder(reasons []Reason) []Reason {
	slices.SortFunc(reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Remedy, b.Remedy))
	})
	return slices.Compact(reasons)
}
