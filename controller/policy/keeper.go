// Package policy keeps the gate's signers and policies those of the cluster.
//
// It reads BpfSigner, BpfPolicy and ClusterBpfPolicy objects, compiles them,
// hands them to the judge and says on each object whether it is in force. It
// judges no application, but weighs, before a change comes into force for
// what runs, whether a human has to confirm it.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/keys"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Weigher tells what a change does to what runs: which applications the policies
// now in force newly want unloaded.
type Weigher interface {
	Weigh(ctx context.Context) ([]v1alpha1.Identity, error)
}

// Options is what a Keeper works with; all but Now is needed.
type Options struct {
	// Reader reads signers, policies and intents from a cache.
	Reader client.Reader
	// Direct does not cache: it reads CRDs, and keeps what is in force in a
	// ConfigMap of Namespace, which is Skep's own.
	Direct    client.Client
	Namespace string
	// Keys seal what is kept there, and tell it from what somebody else wrote.
	Keys func() keys.Keys
	// Judge is who judges by them.
	Judge *gate.Judge
	// Engine compiles policies.
	Engine *policies.Engine
	// Patience is how long a Refresh waits for policies that are still being
	// compiled; zero means five seconds, and half a minute the first time.
	Patience time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Keeper holds the judge to the cluster's signers and policies.
type Keeper struct {
	Options

	// one keeps refreshes apart, and guards what is before mu.
	one sync.Mutex
	// before is what is in force; nil before the first refresh.
	before *objects
	// compiled remembers what came of each object, by UID and generation, and
	// active by UID each policy as it could be used last.
	compiled map[string]error
	active   map[types.UID]policies.Policy

	// mu guards what follows.
	mu      sync.RWMutex
	ready   chan struct{}
	revoked []string
	weighed string
	brake   brake
}

// NewKeeper returns a Keeper that has refreshed nothing yet.
func NewKeeper(o Options) *Keeper {
	return &Keeper{Options: o, compiled: map[string]error{}, active: map[types.UID]policies.Policy{}, ready: make(chan struct{})}
}

// Ready is closed once the cluster's signers and policies are in force: before,
// nothing may be judged.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Revoked are the signers whose trust was taken away.
func (k *Keeper) Revoked() []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.revoked
}

// Weighed is the revision of signers and policies that was weighed last. What
// was judged by another has to be judged again.
func (k *Keeper) Weighed() string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.weighed
}

// Outcome is what became of one object.
type Outcome struct {
	Object client.Object
	// Err is why it is not in force as written; nil where it is.
	Err error
	// Pending tells that it is still being compiled: what it said before stays in
	// force, and Err is nil. A new Refresh finds what came of it.
	Pending bool
	// Vanished tells that it is in force although it is gone: its CRD was deleted,
	// and not it.
	Vanished bool
}

// Refresh reads every signer and policy, and brings them into force. An object
// that is broken takes none of the others with it: a broken signer counts for
// nothing, a broken policy denies within its own match. One that vanished with
// its CRD stays in force until it is created again, or deleted on its own
// account. changed tells that the revision is another than before.
func (k *Keeper) Refresh(ctx context.Context, w Weigher) (outcomes []Outcome, changed bool, err error) {
	k.one.Lock()
	defer k.one.Unlock()
	in, err := k.read(ctx)
	if err != nil {
		return nil, false, err
	}
	trust, set, outcomes, err := k.compile(ctx, in)
	if err != nil {
		return nil, false, err
	}
	before := k.Weighed()
	k.before = &in
	k.Judge.Retrust(trust)
	k.Judge.Repolicy(set)
	revision := k.Judge.Revision()
	changed = revision != before
	var weighed *brake
	if changed {
		if weighed, err = k.weigh(ctx, w, revision); err != nil {
			return nil, false, err
		}
	}
	confirmed := in.confirmed(revision)
	k.mu.Lock()
	if weighed != nil {
		k.brake = *weighed
	}
	changed = changed || confirmed != k.brake.confirmed
	k.brake.confirmed = confirmed
	k.revoked, k.weighed = trust.Revoked(), revision
	k.mu.Unlock()
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
	return outcomes, changed, nil
}

// compile makes a trust and a set out of what can be used.
func (k *Keeper) compile(ctx context.Context, in objects) (*signing.Trust, *policies.Set, []Outcome, error) {
	outcomes := make([]Outcome, 0, len(in.all()))
	compiled := map[string]error{}
	var signers []v1alpha1.BpfSigner
	for i := range in.Signers {
		s := &in.Signers[i]
		err, known := k.compiled[version(s)]
		if !known {
			_, err = signing.NewTrust([]v1alpha1.BpfSigner{*s})
		}
		if compiled[version(s)] = err; err == nil {
			signers = append(signers, *s)
		}
		outcomes = append(outcomes, Outcome{Object: s, Err: err, Vanished: in.vanished[s.UID]})
	}
	list, tried, err := k.usable(ctx, in, compiled)
	if err != nil {
		return nil, nil, nil, err
	}
	k.compiled = compiled
	trust, err := signing.NewTrust(signers)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("trust signers: %w", err)
	}
	set, err := k.Engine.Compile(ctx, list, policies.Options{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("compile policies: %w", err)
	}
	return trust, set, append(outcomes, tried...), nil
}

// version names an object as it was written once.
func version(o client.Object) string { return fmt.Sprintf("%s/%d", o.GetUID(), o.GetGeneration()) }

// usable tries each policy that was not tried yet, all at once, and returns all as
// they are to be in force: one that cannot be used denies all it matches, and one
// that is still being compiled is as it was before.
func (k *Keeper) usable(ctx context.Context, in objects, compiled map[string]error) ([]policies.Policy, []Outcome, error) {
	list := policies.FromObjects(in.Cluster, in.Namespaced)
	owners := map[types.NamespacedName]client.Object{}
	for _, o := range in.all() {
		if _, signer := o.(*v1alpha1.BpfSigner); !signer {
			owners[client.ObjectKeyFromObject(o)] = o
		}
	}
	outcomes := make([]Outcome, len(list))
	trying, cancel := context.WithTimeout(ctx, k.patience())
	defer cancel()
	var group sync.WaitGroup
	for i, p := range list {
		o := owners[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]
		outcomes[i] = Outcome{Object: o, Vanished: in.vanished[o.GetUID()]}
		err, known := k.compiled[version(o)]
		if outcomes[i].Err = err; known {
			continue
		}
		group.Go(func() {
			_, outcomes[i].Err = k.Engine.Compile(trying, []policies.Policy{p}, policies.Options{})
			outcomes[i].Pending = outcomes[i].Err != nil && trying.Err() != nil
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	active := map[types.UID]policies.Policy{}
	for i := range outcomes {
		o := &outcomes[i]
		// What is no fault of the policy is tried again.
		if fault := (*policies.CompileError)(nil); o.Err != nil && !o.Pending && !errors.As(o.Err, &fault) {
			return nil, nil, o.Err
		}
		list[i] = k.inForce(list[i], o)
		if list[i].Unusable == "" {
			active[o.Object.GetUID()] = list[i]
		}
		if !o.Pending {
			compiled[version(o.Object)] = o.Err
		}
	}
	k.active = active
	return list, outcomes, nil
}

// inForce is a policy as it is to be in force.
func (k *Keeper) inForce(p policies.Policy, o *Outcome) policies.Policy {
	if o.Pending {
		o.Err = nil
		if before, known := k.active[o.Object.GetUID()]; known {
			return before
		}
		p.Unusable = "it is still being compiled"
	} else if o.Err != nil {
		p.Unusable, _, _ = strings.Cut(o.Err.Error(), "\n")
	}
	return p
}

// patience is how long to wait for policies that are compiled. Nothing is judged
// before the first were, so the first Refresh is worth more of it.
func (k *Keeper) patience() time.Duration {
	select {
	case <-k.ready:
		return cmp.Or(k.Patience, 5*time.Second)
	default:
		return cmp.Or(k.Patience, 30*time.Second)
	}
}

// ErrNotReady says that the cluster's policies are not in force yet.
var ErrNotReady = errors.New("signers and policies were not read yet")

// Wait waits until they are.
func (k *Keeper) Wait(ctx context.Context) error {
	select {
	case <-k.ready:
		return nil
	case <-ctx.Done():
		return cmp.Or(context.Cause(ctx), ErrNotReady)
	}
}

// Check is a readiness check: a replica that knows no policies answers nothing.
func (k *Keeper) Check(*http.Request) error {
	select {
	case <-k.ready:
		return nil
	default:
		return ErrNotReady
	}
}
