package policies

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/text"
)

// DefaultTimeout is how much time of CPUs one policy may take to evaluate one input.
const DefaultTimeout = time.Second

// Options are what Compile takes beside the policies.
type Options struct {
	// Timeout is how much time of CPUs one policy may take to evaluate one input; 0 means
	// DefaultTimeout. On a busy machine it may take three times that of the clock.
	Timeout time.Duration
	// Now is the clock behind input.now, asked where Input.Now is zero; nil
	// means time.Now.
	Now func() time.Time
}

// Set is a set of compiled policies. It is safe for concurrent use.
type Set struct {
	engine   *Engine
	policies []*compiled
	// baseline is the built-in one with its defaults.
	baseline *compiled
	timeout  time.Duration
	now      func() time.Time
	revision string
	// revisions are RevisionIn, by namespace, for those that have policies of their own;
	// the cluster's has the empty one.
	revisions map[string]string
}

// compiled is one policy of a Set, whose program a child compiled. A broken one
// denies all that its scope covers.
type compiled struct {
	id      string
	scope   scope
	spec    v1alpha1.BpfPolicySpec
	program program
	// key is the program's.
	key string
	// denies says that it has a deny.
	denies        bool
	timeDependent bool
	// authored tells that it reads what only the definition says: its labels,
	// its annotations, who wrote it.
	authored bool
	// allEvidence tells that the policy is not to be asked about a part of it.
	allEvidence bool
	broken      bool
	// unusable is why it is not to be compiled; empty where it is. passing: for a moment.
	unusable string
	passing  bool
	// replaces says that baseline is not asked about what it matches, configures
	// that it is asked as baseline: with its parameters.
	replaces, configures bool
}

// Compile compiles each policy alone. The profile baseline evaluates every application,
// whatever other policies there are, but for those that a policy which replaces it
// matches. A policy that configures it takes the place of its defaults.
//
// Where policies are broken, Compile returns a Set all the same, in which each
// broken one denies what its match covers, together with the errors of all of
// them joined, each a *CompileError. The Set is nil only if nothing could be
// compiled at all, or the context ended.
func (e *Engine) Compile(ctx context.Context, list []Policy, opts Options) (*Set, error) {
	proven, err := e.proveAll(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	return e.Assemble(ctx, proven, opts)
}

// Assemble is Compile for policies that were proven, and waits for none of them.
func (e *Engine) Assemble(ctx context.Context, proven []Proven, opts Options) (*Set, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	opts.Now = clock.OrSystem(opts.Now)
	proven = slices.Clone(proven)
	slices.SortStableFunc(proven, func(a, b Proven) int {
		return cmp.Or(cmp.Compare(a.policy.Namespace, b.policy.Namespace), cmp.Compare(a.policy.Name, b.policy.Name))
	})
	list := make([]Policy, len(proven))
	for i := range proven {
		list[i] = proven[i].policy
	}
	in, err := revisions(list)
	if err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	of, err := hashed(in)
	if err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	fallback, err := e.fallback(ctx)
	if err != nil {
		return nil, fmt.Errorf("compile policies: %w", err)
	}
	set := &Set{engine: e, timeout: opts.Timeout, now: opts.Now, revision: of, revisions: in, baseline: fallback}
	var errs []error
	for i, p := range list {
		c, broken := proven[i].compiled, proven[i].errs
		if i > 0 && list[i-1].String() == p.String() {
			c.broken, c.replaces = true, false
			broken = append(broken, &CompileError{Policy: c.id, File: p.file(), Line: 1, Column: 1, Message: "there is another policy of that name; rename one of them"})
		}
		set.policies = append(set.policies, &c)
		errs = append(errs, joined(broken))
	}
	return set, errors.Join(errs...)
}

// fallback is the embedded profile baseline, which is compiled once.
func (e *Engine) fallback(ctx context.Context) (*compiled, error) {
	if known := e.baseline.Load(); known != nil {
		return known, nil
	}
	proven, err := e.Prove(ctx, Policy{Name: ProfileBaseline, Spec: v1alpha1.BpfPolicySpec{Profile: ProfileBaseline}})
	if err := errors.Join(err, proven.Err()); err != nil {
		return nil, err
	}
	e.baseline.Store(&proven.compiled)
	return &proven.compiled, nil
}

// denial is the verdict of a broken policy.
func (c *compiled) denial() verdict {
	if c.unusable == "" {
		return fails(c.id, "does not compile", "its author is to fix it; skep policy test shows where it is wrong")
	}
	fix := "have its owner fix policy " + c.id
	if c.passing {
		fix = "try again in a moment"
	}
	return verdict{Failed: true, Denied: []Reason{{
		Rule: c.id + "/" + entryDeny, Message: "the policy cannot be used: " + text.Cut(c.unusable, maxTextBytes), Fix: fix, Failed: true,
	}}}
}

// Proven is a policy whose Rego was compiled, and what is wrong with it. The zero value
// is none.
type Proven struct {
	policy   Policy
	compiled compiled
	errs     []*CompileError
}

// Err is what is wrong with the policy: *CompileErrors, joined; nil where it can be used.
func (p Proven) Err() error { return joined(p.errs) }

// proveAll compiles policies beside each other, so that one which takes long holds
// up none of another namespace.
func (e *Engine) proveAll(ctx context.Context, list []Policy) ([]Proven, error) {
	all := make([]Proven, len(list))
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range list {
		group.Go(func() (err error) {
			all[i], err = e.Prove(ctx, p)
			return err
		})
	}
	return all, group.Wait()
}

// Prove compiles a policy. One in which something is wrong is usable all the same, by
// denying what it matches. An error is no fault that was found in the policy: ctx
// ended, or what compiles it did.
func (e *Engine) Prove(ctx context.Context, p Policy) (Proven, error) {
	c := compiled{id: p.String(), spec: p.Spec, unusable: p.Unusable, passing: p.Passing, configures: p.configures()}
	var err error
	c.scope, err = newScope(p)
	if p.Unusable != "" {
		c.broken = true
		return Proven{policy: p, compiled: c}, nil
	}
	if err = errors.Join(p.check(), err); err == nil {
		c.program, err = programOf(p)
	}
	if err != nil {
		c.broken = true
		return Proven{p, c, []*CompileError{{Policy: c.id, Message: err.Error()}}}, nil //nolint:nilerr // it is the policy's fault, and denies what it matches
	}
	c.key = c.program.key()
	shown, err := e.prove(ctx, p.Namespace, c.program, c.key)
	if err != nil {
		return Proven{}, err
	}
	c.broken = len(shown.Errors) > 0
	c.denies, c.timeDependent, c.allEvidence = shown.Denies, shown.TimeDependent, shown.AllEvidence
	c.authored = shown.Authored || p.Spec.Match != nil && p.Spec.Match.Selector != nil
	c.replaces = len(p.Replaces) > 0 && !c.broken
	return Proven{p, c, slices.Clone(shown.Errors)}, nil
}

// revisions hash by namespace all that decides beside the input.
func revisions(list []Policy) (map[string]string, error) {
	data, err := baseData()
	if err != nil {
		return nil, err
	}
	// Parameters are hashed as they were written, since they may be no JSON.
	type entry struct {
		Name       string
		Spec       v1alpha1.BpfPolicySpec
		Replaces   []v1alpha1.BuiltinPolicy `json:",omitempty"`
		Parameters map[string]string
		Unusable   string `json:",omitempty"`
	}
	entries := map[string][]entry{"": {}}
	for _, p := range list {
		e := entry{Name: p.String(), Spec: p.Spec, Replaces: p.Replaces, Parameters: map[string]string{}, Unusable: p.Unusable}
		for name, value := range p.Spec.Parameters {
			e.Parameters[name] = string(value.Raw)
		}
		e.Spec.Parameters = nil
		entries[p.Namespace] = append(entries[p.Namespace], e)
	}
	cluster, err := hashed(map[string]any{
		"input": InputVersion, "library": Source(), "capabilities": string(capabilitiesJSON), "data": data, "policies": entries[""],
	})
	all := map[string]string{"": cluster}
	for namespace, own := range entries {
		if err == nil && namespace != "" {
			all[namespace], err = hashed(map[string]any{"cluster": cluster, "policies": own})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write the policies' revision: %w", err)
	}
	return all, nil
}

// hashed is the hash of a value's JSON.
func hashed(v any) (string, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16]), nil
}

// Revision names the policies, the shipped library and the data they see, as
// lower-case hex. Two sets of one revision decide alike.
func (s *Set) Revision() string { return s.revision }

// RevisionIn is Revision for what evaluates the applications of a namespace; for an empty
// one, those of the cluster. A policy of another namespace does not change it.
func (s *Set) RevisionIn(namespace string) string {
	return cmp.Or(s.revisions[namespace], s.revisions[""])
}

// Differs returns the namespaces in which the set may decide otherwise than before; nil
// where it may do so everywhere.
func (s *Set) Differs(before *Set) map[string]bool {
	namespaces := map[string]bool{}
	for _, some := range []*Set{s, before} {
		for namespace := range some.revisions {
			if s.RevisionIn(namespace) != before.RevisionIn(namespace) {
				namespaces[namespace] = true
			}
		}
	}
	if namespaces[""] {
		return nil
	}
	return namespaces
}

// Decide asks every policy that covers the application. It sets the input's
// version, its parameters and, where it is zero, its time. An error means that
// nothing was decided, and is never to be read as allowed: the context ended before
// the cluster's policies answered. A policy that fails is no error, it denies; so does
// one of the namespace for which the context left no time, and an input that is too
// large, of which no policy is asked.
func (s *Set) Decide(ctx context.Context, in Input) (Decision, error) {
	d, err := s.decide(ctx, in, nil, s.covering(in.Application))
	if err == nil && len(in.Signatures) == 0 && len(d.Denied) == 0 {
		d.Warnings = inOrder(append(d.Warnings, unsigned()))
	}
	return d, err
}

// Foregone returns the denials that hold whatever the unknown parts of the input turn
// out to be: Decide denies then too, and has unloaded what this has unloaded. No denial
// means that nothing is known yet. It warns of nothing.
func (s *Set) Foregone(ctx context.Context, in Input, u Unknown) (Decision, error) {
	covering := slices.DeleteFunc(s.covering(in.Application), func(c *compiled) bool {
		return c.spec.Mode == v1alpha1.PolicyAudit || !c.broken && !c.denies
	})
	d, err := s.decide(ctx, in, u.facets(), covering)
	d.Foregone = len(d.Denied) > 0
	return d, err
}

// MayUnload reports whether a policy that evaluates the application says running: Unload,
// and can deny it by a rule of its own.
func (s *Set) MayUnload(app Application) bool {
	return slices.ContainsFunc(s.covering(app), func(c *compiled) bool {
		return !c.broken && c.denies && c.spec.Mode != v1alpha1.PolicyAudit && c.spec.Running == v1alpha1.RunningUnload
	})
}

// decide asks policies about an input of which parts may be unknown.
func (s *Set) decide(ctx context.Context, in Input, unknown []string, covering []*compiled) (Decision, error) {
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
	var asked []*compiled
	for _, c := range covering {
		if !c.broken {
			asked = append(asked, c)
		}
	}
	verdicts, err := s.engine.evaluate(ctx, &run{tenant: in.Application.Metadata.Namespace, document: document, unknown: unknown, list: asked, timeout: s.timeout})
	if err != nil {
		return Decision{}, fmt.Errorf("decide %s: %w", in.Application.identity(), err)
	}
	fold := folding{decision: Decision{Denied: []Reason{}, Warnings: []Reason{}, Policies: []string{}}}
	for _, c := range covering {
		if c.broken {
			fold.add(c, c.denial())
			continue
		}
		fold.add(c, verdicts[0])
		verdicts = verdicts[1:]
	}
	return fold.done(), nil
}

// unsigned is the warning where an admin took baseline away, or exempted a
// namespace, and so let an image pass that nobody known signed: they may not have
// meant to.
func unsigned() Reason {
	return Reason{
		Rule: "policy/unsigned", Path: "spec.bytecode.image",
		Message: "no known signer signed the image, and no policy that evaluates it asks for one",
		Fix:     "sign it; or have an admin hold it to baseline: spec.replaces of a policy, or baseline's parameter exemptNamespaces, leaves it out",
	}
}

// evaluates are the policies that cover the application.
func (s *Set) covering(app Application) []*compiled {
	var covering []*compiled
	baseline, replaced := s.baseline, false
	for _, c := range s.policies {
		switch {
		case !c.scope.covers(app):
		case c.configures:
			baseline = c
		default:
			covering = append(covering, c)
			replaced = replaced || c.replaces
		}
	}
	if replaced {
		return covering
	}
	return append([]*compiled{baseline}, covering...)
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
	d.TimeDependent = d.TimeDependent || c.timeDependent || v.Late
	d.AllEvidence = d.AllEvidence || c.allEvidence
	if c.spec.Mode == v1alpha1.PolicyAudit {
		// It warns nobody either.
		d.Audited = append(d.Audited, v.Denied...)
		return
	}
	d.Warnings = append(d.Warnings, v.Warnings...)
	if len(v.Denied) == 0 {
		return
	}
	d.Denied = append(d.Denied, v.Denied...)
	d.EvidenceDenies = d.EvidenceDenies || c.allEvidence
	f.denying++
	if c.spec.Admission == v1alpha1.AdmissionWarn {
		f.warning++
	}
	// What runs is never taken away because a policy failed to say anything.
	if c.spec.Running == v1alpha1.RunningUnload && !v.Failed {
		d.Unload = true
		d.UnloadUndefined = d.UnloadUndefined || !c.authored
		ofCluster := c.scope.namespace == ""
		d.UnloadByCluster = d.UnloadByCluster || ofCluster
		d.UnloadUndefinedByCluster = d.UnloadUndefinedByCluster || ofCluster && !c.authored
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
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Fix, b.Fix))
	})
	return slices.Compact(reasons)
}
