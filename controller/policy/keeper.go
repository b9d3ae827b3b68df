// Package policy keeps the gate's signers and policies those of the cluster.
//
// It reads BpfSigner, BpfPolicy and ClusterBpfPolicy objects, compiles them,
// hands them to the evaluator and says on each object whether it is active. It
// evaluates no application, but weighs, before a change becomes active for
// what runs, whether a human has to confirm it.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Effect is what a change of policies does to applications that run.
type Effect struct {
	// Unloads are those that the policies now active want unloaded, and whether one of
	// the cluster does, not only those of their namespace.
	Unloads map[v1alpha1.Identity]bool
	// Denies are those that they deny, and that were allowed before.
	Denies []v1alpha1.Identity
}

// Weigher says what the policies now active do to what runs.
type Weigher interface {
	// Weigh weighs the applications where something changed.
	Weigh(ctx context.Context, changed Where) (Effect, error)
	// Revoke begins to end what lost a signer, and returns at once.
	Revoke()
}

// Engine compiles policies; *policies.Engine is one.
type Engine interface {
	// Compile compiles policies that are only tried.
	Compile(context.Context, []policies.Policy, policies.Options) (*policies.Set, error)
	// Prove compiles one policy, and Assemble makes a Set of those that were.
	Prove(context.Context, policies.Policy) (policies.Proven, error)
	Assemble(context.Context, []policies.Proven, policies.Options) (*policies.Set, error)
}

// Options is what a Keeper works with; all but Now is needed.
type Options struct {
	// Reader reads signers, policies and intents from a cache.
	Reader client.Reader
	// Direct does not cache: it reads CRDs, and keeps what is active in a
	// ConfigMap of Namespace, which is Skep's own.
	Direct    client.Client
	Namespace string
	// Keys seal what is kept there, and tell it from what somebody else wrote.
	Keys func() sealing.Keys
	// Evaluator is who evaluates by them.
	Evaluator *gate.Evaluator
	// Engine compiles policies.
	Engine Engine
	// Patience is how long a Refresh waits for policies of the cluster that are still
	// being compiled, and Prepare for those of namespaces; zero means five seconds, and
	// for policies of the cluster half a minute the first time.
	Patience time.Duration
	// HurriedPatience is how long a Refresh waits for them where a signer was revoked; zero
	// means half a second.
	HurriedPatience time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Keeper holds the evaluator to the cluster's signers and policies.
type Keeper struct {
	Options

	// known is closed once signers and policies are active, and ready once they were weighed, too.
	known, ready chan struct{}

	// one keeps refreshes apart, and guards what is before mu.
	one sync.Mutex
	// before is what is active; nil before the first refresh.
	before *objects
	// trusted remembers what came of each signer, by UID and generation, and active by
	// UID each policy as it could be used last.
	trusted map[string]error
	active  map[types.UID]policies.Proven
	// forgotten counts by namespace the policies that Remember had no room for last.
	forgotten map[string]int

	// mu guards what follows.
	mu sync.RWMutex
	// interrupt ends the weighing of the refresh that is under way.
	interrupt context.CancelCauseFunc
	// tried is what came of each policy, by UID and generation; waiting are those of
	// namespaces that are not compiled yet.
	tried      map[string]attempt
	waiting    []written
	revoked    signing.Revocations
	revokedAt  time.Time
	weighed    rules
	protection unloadProtection
	// tombstones are those of the last hour as they were opened, by UID.
	tombstones map[string]tombstone
}

// NewKeeper returns a Keeper that has refreshed nothing yet.
func NewKeeper(o Options) *Keeper {
	return &Keeper{Options: o, tried: map[string]attempt{}, known: make(chan struct{}), ready: make(chan struct{})}
}

// Revoked are the signers whose trust was taken away, or is from a time on. It is shared
// and must not be changed.
func (k *Keeper) Revoked() signing.Revocations {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.revoked
}

// RevokedAt is when the revocations became others than before.
func (k *Keeper) RevokedAt() time.Time {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.revokedAt
}

// Weighed is gate.Evaluator.RevisionIn of the signers and policies that were weighed last;
// empty before. What was evaluated by another has to be evaluated again.
func (k *Keeper) Weighed(namespace string) string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.weighed.revisionIn(namespace)
}

// Outcome is what became of one object.
type Outcome struct {
	Object client.Object
	// Err is why it is not active as written; nil where it is.
	Err error
	// Pending tells that it is not compiled yet, or, where there is an Err, that this
	// failed through no fault of its own: what it said before stays active, and it is
	// tried again.
	Pending bool
	// Vanished tells that it is active although it is gone: its CRD was deleted,
	// and not it.
	Vanished bool
	// Cautions are what the author of a policy or signer may not have meant.
	Cautions []string
}

// Refresh reads every signer and policy, and activates them. An object
// that is broken takes none of the others with it: a broken signer counts for
// nothing, a broken policy denies within its own match. One that vanished with
// its CRD stays active until it is created again, or deleted on its own
// account. changed is where something else is active than before. What a revocation ends
// waits a moment for policies to be compiled that were written with it, and for nothing to be
// weighed.
func (k *Keeper) Refresh(ctx context.Context, w Weigher) (outcomes []Outcome, changed Where, err error) {
	k.one.Lock()
	defer k.one.Unlock()
	within, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	defer func() {
		if errors.Is(context.Cause(within), ErrInterrupted) && err != nil {
			err = ErrInterrupted
		}
	}()
	k.mu.Lock()
	k.interrupt = interrupt
	k.mu.Unlock()
	in, err := k.read(ctx)
	if err != nil {
		return nil, Where{}, err
	}
	now, outcomes, err := k.use(within, w, in)
	if err != nil {
		return nil, Where{}, err
	}
	k.before = &in
	// Nobody else sets what was weighed.
	var of weighed
	if changed = now.differs(k.weighed); changed.Anywhere() {
		if of, err = k.weigh(within, w, now, changed); err != nil {
			return nil, Where{}, err
		}
	}
	k.mu.Lock()
	before := k.protection
	if changed.Anywhere() {
		k.protection = k.protect(of, now, changed)
	}
	if k.protection.confirmed = in.confirmed(); !maps.Equal(k.protection.confirmed, before.confirmed) {
		changed = Where{Everywhere: true}
	}
	changed = changed.And(before.released(k.protection))
	k.weighed = now
	k.mu.Unlock()
	closeOnce(k.ready)
	return outcomes, changed, nil
}

// use makes the signers and policies that were read active, and has ended what a revocation
// ends. If the policies fail to compile, it does so with those that are active.
func (k *Keeper) use(ctx context.Context, w Weigher, in objects) (rules, []Outcome, error) {
	trust, outcomes, err := k.trust(in)
	if err != nil {
		return rules{}, nil, err
	}
	revoked := trust.Revoked()
	isNews := !maps.Equal(k.Revoked(), revoked)
	set, compiled, err := k.compile(ctx, in, isNews)
	switch {
	case err == nil:
		k.Evaluator.SetTrust(trust)
		k.Evaluator.SetPolicies(set)
	case isNews && context.Cause(ctx) == nil && isClosed(k.known):
		k.Evaluator.SetTrust(trust)
	default:
		return rules{}, nil, err
	}
	if isNews {
		k.revoke(w, revoked)
	}
	closeOnce(k.known)
	return rules{trust, set}, append(outcomes, compiled...), err
}

// revoke notes what is revoked now, and has it ended.
func (k *Keeper) revoke(w Weigher, revoked signing.Revocations) {
	k.mu.Lock()
	k.revoked, k.revokedAt = revoked, k.now()
	k.mu.Unlock()
	w.Revoke()
}

// ErrInterrupted says that a signer was revoked while a change was compiled or weighed.
var ErrInterrupted = errors.New("a signer was revoked meanwhile, which goes first")

// Interrupt has a Refresh that is under way compile and weigh nothing more: another one is
// about to follow, since a signer was revoked. The one under way fails with ErrInterrupted.
func (k *Keeper) Interrupt() {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.interrupt != nil {
		k.interrupt(ErrInterrupted)
	}
}

// Where is where something changed. The zero value is nowhere.
type Where struct {
	// Everywhere tells that it is in every namespace, and of the cluster; else Namespaces
	// are those in which it is.
	Everywhere bool
	Namespaces map[string]bool
}

// Anywhere reports whether something changed.
func (w Where) Anywhere() bool { return w.Everywhere || len(w.Namespaces) > 0 }

// In reports whether something changed for the applications of a namespace; an empty one
// is the cluster.
func (w Where) In(namespace string) bool { return w.Everywhere || w.Namespaces[namespace] }

// String names what changed.
func (w Where) String() string {
	if w.Everywhere {
		return "everywhere"
	}
	named := slices.Sorted(maps.Keys(w.Namespaces))
	return strings.Join(named[:min(len(named), maxListed)], " ")
}

// And is w and another together.
func (w Where) And(other Where) Where {
	if w.Everywhere || other.Everywhere {
		return Where{Everywhere: true}
	}
	both := maps.Clone(other.Namespaces)
	if both == nil {
		return w
	}
	maps.Copy(both, w.Namespaces)
	return Where{Namespaces: both}
}

// rules are signers and policies that are active together.
type rules struct {
	trust *signing.Trust
	set   *policies.Set
}

// revisionIn is gate.Evaluator.RevisionIn; empty where there are none.
func (r rules) revisionIn(namespace string) string {
	if r.set == nil {
		return ""
	}
	return gate.RevisionIn(namespace, r.trust, r.set)
}

// differs is where they may decide otherwise than others did before.
func (r rules) differs(before rules) Where {
	if r.revisionIn("") != before.revisionIn("") {
		return Where{Everywhere: true}
	}
	return Where{Namespaces: r.set.Differs(before.set)}
}

// trust are the signers that can be used.
func (k *Keeper) trust(in objects) (*signing.Trust, []Outcome, error) {
	outcomes := make([]Outcome, 0, len(in.all()))
	trusted := map[string]error{}
	var signers []v1alpha1.BpfSigner
	for i := range in.Signers {
		s := &in.Signers[i]
		err, known := k.trusted[version(s)]
		if !known {
			_, err = signing.NewTrust([]v1alpha1.BpfSigner{*s})
		}
		if trusted[version(s)] = err; err == nil {
			signers = append(signers, *s)
		}
		outcomes = append(outcomes, Outcome{Object: s, Err: err, Vanished: in.vanished[s.UID]})
	}
	k.trusted = trusted
	trust, err := signing.NewTrust(signers)
	if err != nil {
		return nil, nil, fmt.Errorf("trust signers: %w", err)
	}
	for i := range outcomes {
		outcomes[i].Cautions = trust.Cautions(outcomes[i].Object.GetName())
	}
	return trust, outcomes, nil
}

// compile makes a Set of the policies that can be used.
func (k *Keeper) compile(ctx context.Context, in objects, isHurried bool) (*policies.Set, []Outcome, error) {
	list, outcomes, err := k.usable(ctx, in, isHurried)
	if err != nil {
		return nil, nil, err
	}
	set, err := k.Engine.Assemble(ctx, list, policies.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("compile policies: %w", err)
	}
	return set, outcomes, nil
}

// version names an object as it was written once.
func version(o client.Object) string { return fmt.Sprintf("%s/%d", o.GetUID(), o.GetGeneration()) }

// written is a policy and the object that it was written as.
type written struct {
	policies.Policy

	object client.Object
}

// policies are those of the cluster and those of namespaces.
func (in objects) policies() (cluster, namespaced []written) {
	for i := range in.Cluster {
		p := policies.FromObjects(in.Cluster[i:i+1], nil)[0]
		cluster = append(cluster, written{p, &in.Cluster[i]})
	}
	for i := range in.Namespaced {
		p := policies.FromObjects(nil, in.Namespaced[i:i+1])[0]
		namespaced = append(namespaced, written{p, &in.Namespaced[i]})
	}
	return cluster, namespaced
}

// attempt is what came of compiling a policy: err is no fault of the policy.
type attempt struct {
	proven policies.Proven
	err    error
}

// Prepare compiles the policies of namespaces that were not compiled yet, and waits for
// them no longer than Patience. It holds up no Refresh, which takes what is compiled.
func (k *Keeper) Prepare(ctx context.Context) error {
	var in objects
	var list v1alpha1.BpfPolicyList
	if err := k.Reader.List(ctx, &list); err != nil {
		return fmt.Errorf("list policies: %w", err)
	}
	in.Namespaced = list.Items
	_, namespaced := in.policies()
	k.mu.RLock()
	namespaced = append(namespaced, k.waiting...)
	k.mu.RUnlock()
	k.try(ctx, namespaced, cmp.Or(k.Patience, patience))
	return ctx.Err()
}

// patience is how long policies are waited for that are compiled, firstPatience the first
// time, since nothing is evaluated before, and hurriedPatience where a signer was revoked.
const (
	patience        = 5 * time.Second
	firstPatience   = 30 * time.Second
	hurriedPatience = 500 * time.Millisecond
)

// try compiles all policies that were not compiled yet, at once, and waits for them no
// longer than within. One that takes longer goes on, for the next try to find.
func (k *Keeper) try(ctx context.Context, list []written, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var group sync.WaitGroup
	begun := map[string]bool{}
	for _, w := range list {
		id := version(w.object)
		if before, known := k.attempt(w); begun[id] || known && before.err == nil {
			continue
		}
		begun[id] = true
		group.Go(func() {
			proven, err := k.Engine.Prove(ctx, w.Policy)
			if err != nil && ctx.Err() != nil {
				return
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.tried[id] = attempt{proven, err}
		})
	}
	group.Wait()
}

// attempt is what came of compiling a policy as it is written.
func (k *Keeper) attempt(w written) (attempt, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	a, known := k.tried[version(w.object)]
	return a, known
}

// usable returns all policies as they are to be active: one that cannot be used denies
// all it matches, and one that is not compiled yet is as it was before.
func (k *Keeper) usable(ctx context.Context, in objects, isHurried bool) ([]policies.Proven, []Outcome, error) {
	cluster, namespaced := in.policies()
	k.await(ctx, cluster, namespaced, isHurried)
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	all := slices.Concat(cluster, namespaced)
	list, outcomes := make([]policies.Proven, len(all)), make([]Outcome, len(all))
	active, tried := map[types.UID]policies.Proven{}, map[string]attempt{}
	var waiting []written
	for i, w := range all {
		a, known := k.attempt(w)
		if known {
			tried[version(w.object)] = a
		}
		outcomes[i] = outcomeOf(w, a, known)
		outcomes[i].Vanished = in.vanished[w.object.GetUID()]
		if outcomes[i].Pending && w.Namespace != "" {
			waiting = append(waiting, w)
		}
		var usable bool
		var err error
		if list[i], usable, err = k.activate(ctx, w, a.proven, outcomes[i]); err != nil {
			return nil, nil, err
		}
		if usable {
			active[w.object.GetUID()] = list[i]
		}
	}
	k.active = active
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.waiting = tried, waiting
	return list, outcomes, nil
}

// await waits for policies of the cluster that are not compiled yet. For those of
// namespaces it waits the first time alone, and not for long.
func (k *Keeper) await(ctx context.Context, cluster, namespaced []written, isHurried bool) {
	if isClosed(k.ready) || isHurried && isClosed(k.known) {
		within := cmp.Or(k.Patience, patience)
		if isHurried {
			within = min(within, cmp.Or(k.HurriedPatience, hurriedPatience))
		}
		k.try(ctx, cluster, within)
		return
	}
	var group sync.WaitGroup
	group.Go(func() { k.try(ctx, namespaced, cmp.Or(k.Patience, patience)) })
	k.try(ctx, cluster, cmp.Or(k.Patience, firstPatience))
	group.Wait()
}

// outcomeOf is what became of a policy by the last attempt to compile it.
func outcomeOf(w written, a attempt, known bool) Outcome {
	o := Outcome{Object: w.object, Err: a.err, Pending: !known || a.err != nil, Cautions: w.Cautions()}
	if !o.Pending {
		o.Err = a.proven.Err()
	}
	return o
}

// activate returns a policy as it is to be active; usable tells that it is as somebody wrote
// it, now or before.
func (k *Keeper) activate(ctx context.Context, w written, proven policies.Proven, o Outcome) (active policies.Proven, usable bool, err error) {
	p := w.Policy
	switch before, known := k.active[w.object.GetUID()]; {
	case !o.Pending && o.Err == nil:
		return proven, true, nil
	case o.Pending && known:
		return before, true, nil
	case o.Pending && o.Err == nil:
		p.Unusable, p.Passing = "it is still being compiled", true
	case o.Pending:
		p.Unusable, p.Passing = "it could not be compiled yet", true
	default:
		p.Unusable, _, _ = strings.Cut(o.Err.Error(), "\n")
	}
	active, err = k.Engine.Prove(ctx, p)
	return active, false, err
}

// ErrNotReady says that the cluster's policies are not active yet.
var ErrNotReady = errors.New("signers and policies were not read yet")

// Wait waits until they are, and were weighed.
func (k *Keeper) Wait(ctx context.Context) error { return wait(ctx, k.ready) }

// WaitUnweighed waits until they are active. That is enough for what a revocation ends.
func (k *Keeper) WaitUnweighed(ctx context.Context) error { return wait(ctx, k.known) }

// closeOnce closes a channel. The caller holds one.
func closeOnce(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return cmp.Or(context.Cause(ctx), ErrNotReady)
	}
}

// Check is a readiness check: a replica that knows no policies answers nothing.
func (k *Keeper) Check(*http.Request) error {
	if !isClosed(k.ready) {
		return ErrNotReady
	}
	return nil
}
