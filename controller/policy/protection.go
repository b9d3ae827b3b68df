package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/lifecycle"
)

// AnnotationConfirm holds, on any ClusterBpfPolicy or BpfSigner, the revision of
// a change that unload protection is to let through: of signers and policies of the cluster, or,
// for what the policies of a namespace alone unload, of those as well. Several are
// separated by commas.
const AnnotationConfirm = v1alpha1.Group + "/confirm"

// together is how long what was unloaded counts with what follows it: a mass
// denial that comes drop by drop is one, and what is denied weeks later is not.
const together = time.Hour

// unloadProtection is a change of policies that would unload so much that it waits for a
// human.
type unloadProtection struct {
	// running counts the applications that run, and those that this change
	// unloaded.
	running int
	// runs are the applications that ran when they were counted last.
	runs map[v1alpha1.Identity]bool
	// unloads are those that the change unloads or would unload, and those that changes
	// before it unloaded, and when that was found last.
	unloads map[v1alpha1.Identity]unload
	// confirmed are what annotations hold.
	confirmed map[string]bool
}

// unload is when it was found last that an application is unloaded, and what the
// annotation has to hold for that: no edit of a namespace's policy changes what an admin
// has to confirm of those of the cluster.
type unload struct {
	found    time.Time
	revision string
}

// on reports whether it holds what waits for a revision.
func (b *unloadProtection) on(revision string) bool {
	return !b.confirmed[revision] && lifecycle.NeedsConfirmation(b.running, len(b.unloads))
}

// released is where unload protection held what another one does not hold any more.
func (b *unloadProtection) released(now unloadProtection) Where {
	where := Where{Namespaces: map[string]bool{}}
	for id, u := range b.unloads {
		if b.on(u.revision) && !now.on(now.unloads[id].revision) {
			where.Namespaces[id.Namespace] = true
		}
	}
	return where
}

// recount counts by what runs now, and forgets what was unloaded long ago.
func (b *unloadProtection) recount(runs map[v1alpha1.Identity]bool, now time.Time) {
	b.running, b.runs = len(runs), runs
	for id, u := range b.unloads {
		switch {
		case runs[id]:
		case now.Sub(u.found) > together:
			delete(b.unloads, id)
		default:
			b.running++
		}
	}
}

// maxListed bounds how many applications a log line names.
const maxListed = 64

// weighed is what a change does, and what there was when it was weighed.
type weighed struct {
	unloads  map[v1alpha1.Identity]bool
	runs     map[v1alpha1.Identity]bool
	unloaded []*v1alpha1.BpfIntent
}

// weigh asks what rules unload where something changed, and logs whom they deny before
// anything acts on it.
func (k *Keeper) weigh(ctx context.Context, w Weigher, now rules, changed Where) (weighed, error) {
	effect, err := w.Weigh(ctx, changed)
	if cause := context.Cause(ctx); errors.Is(cause, ErrInterrupted) {
		err = cause
	}
	if err != nil {
		return weighed{}, fmt.Errorf("weigh change of policies: %w", err)
	}
	if denied := effect.Denies; len(denied) > 0 {
		ctrl.LoggerFrom(ctx).Info("policies deny applications that run and were allowed before: what runs is kept, unless a policy says running: Unload",
			"revision", now.revisionIn(""), "changed", changed.String(), "count", len(denied), "applications", denied[:min(len(denied), maxListed)])
	}
	runs, unloaded, err := k.intents(ctx)
	return weighed{effect.Unloads, runs, unloaded}, err
}

// protect is unload protection after a change; mu is held, so that nothing that is counted
// meanwhile is lost.
func (k *Keeper) protect(of weighed, now rules, changed Where) unloadProtection {
	b := unloadProtection{unloads: k.unloaded(of.runs, changed)}
	for id, byCluster := range of.unloads {
		b.unloads[id] = unload{found: k.now(), revision: now.unloading(id, byCluster)}
	}
	b.recall(k.open(of.unloaded), of.runs)
	b.recount(of.runs, k.now())
	return b
}

// unloading is the revision that has an application unloaded: by a policy of the cluster,
// or by those of its namespace alone.
func (r rules) unloading(id v1alpha1.Identity, byCluster bool) string {
	if byCluster {
		return r.revisionIn("")
	}
	return r.revisionIn(id.Namespace)
}

// unloaded are the applications that were unloaded by the revisions before, and when
// that was found: a change of policies does not have them forgotten, since any policy of a
// namespace makes one. Those that run and were weighed are left out: they count as they
// were weighed.
func (k *Keeper) unloaded(runs map[v1alpha1.Identity]bool, weighed Where) map[v1alpha1.Identity]unload {
	unloaded := map[v1alpha1.Identity]unload{}
	for id, u := range k.protection.unloads {
		if !runs[id] || !weighed.In(id.Namespace) {
			unloaded[id] = u
		}
	}
	return unloaded
}

// intents returns the applications that agents are to run, and the tombstones of the last
// hour, which are shared and must not be changed.
func (k *Keeper) intents(ctx context.Context) (runs map[v1alpha1.Identity]bool, unloaded []*v1alpha1.BpfIntent, err error) {
	var intents v1alpha1.BpfIntentList
	if err := k.Reader.List(ctx, &intents, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list intents: %w", err)
	}
	runs = map[v1alpha1.Identity]bool{}
	for i := range intents.Items {
		switch o := &intents.Items[i]; {
		case !o.Spec.Tombstone:
			runs[o.Spec.Application] = true
		case k.now().Sub(time.UnixMilli(o.Spec.Serial)) <= together:
			unloaded = append(unloaded, o)
		}
	}
	return runs, unloaded, nil
}

// tombstone is one that was opened.
type tombstone struct {
	application v1alpha1.Identity
	serial      int64
	// denied tells that a policy had the application unloaded, and a controller sealed that.
	denied bool
}

// open opens tombstones that were not opened yet, and forgets the others; mu is held.
func (k *Keeper) open(unloaded []*v1alpha1.BpfIntent) map[string]tombstone {
	opened := make(map[string]tombstone, len(unloaded))
	for _, o := range unloaded {
		one, known := k.tombstones[o.Name]
		if !known || one.serial != o.Spec.Serial {
			sealed, err := k.Keys().Trust.Open(o.Spec.Envelope)
			if err != nil {
				// Its key may be trusted later.
				continue
			}
			p := sealed.Payload()
			one = tombstone{application: p.Application, serial: o.Spec.Serial}
			one.denied = p.UID == o.Name && p.Serial == o.Spec.Serial && p.Reason == lifecycle.UnloadedByPolicy
		}
		opened[o.Name] = one
	}
	k.tombstones = opened
	return opened
}

// recall counts what another replica unloaded, or this one before it started. What runs
// again, such as another application of that name, is not counted by that.
func (b *unloadProtection) recall(tombstones map[string]tombstone, runs map[v1alpha1.Identity]bool) {
	for _, one := range tombstones {
		if found := time.UnixMilli(one.serial); one.denied && !runs[one.application] && found.After(b.unloads[one.application].found) {
			b.unloads[one.application] = unload{found: found, revision: b.unloads[one.application].revision}
		}
	}
}

// Holds reports whether unload protection keeps running what a policy wants unloaded, one of the
// cluster or those of its namespace alone, and the revision that lets it go once it is
// confirmed. It counts the application first: what the weighing could not tell, such as an
// image out of reach, counts once it can.
func (k *Keeper) Holds(ctx context.Context, id v1alpha1.Identity, byCluster bool) (revision string, held bool, err error) {
	runs, unloaded, err := k.intents(ctx)
	if err != nil {
		return "", false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.protection.unloads == nil {
		k.protection.unloads = map[v1alpha1.Identity]unload{}
	}
	revision = k.weighed.unloading(id, byCluster)
	k.protection.recall(k.open(unloaded), runs)
	k.protection.unloads[id] = unload{found: k.now(), revision: revision}
	k.protection.recount(runs, k.now())
	return revision, k.protection.on(revision), nil
}

// Spares notes that no policy wants an application unloaded.
func (k *Keeper) Spares(id v1alpha1.Identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.protection.unloads, id)
}

// Protected counts the applications that unload protection keeps running.
func (k *Keeper) Protected() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	held := 0
	for id, u := range k.protection.unloads {
		if k.protection.runs[id] && k.protection.on(u.revision) {
			held++
		}
	}
	return held
}

func (k *Keeper) now() time.Time { return clock.OrSystem(k.Now)() }
