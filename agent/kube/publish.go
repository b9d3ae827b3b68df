package kube

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// own is the node's BpfNode as the API server has it. It is a
// cache.ReflectorStore.
type own struct {
	name    string
	changed func()

	mu sync.Mutex
	// listed tells that it is known whether there is one.
	listed bool
	now    *v1alpha1.BpfNode
	// version is the resource version that now is of.
	version string
}

// followOwn watches the node's own BpfNode: what somebody else did to it is
// fixed.
func (a *Agent) followOwn(ctx context.Context) {
	a.api.ours(resourceNodes, a.opts.NodeName, &v1alpha1.BpfNode{}).follow(ctx, a.own, a.opts.Log)
}

// see takes what the API server said, unless something newer was seen. Nil is
// that there is none.
func (o *own) see(n *v1alpha1.BpfNode, version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed = true
	if order, err := resourceversion.CompareResourceVersion(version, o.version); err == nil && order < 0 {
		return
	}
	o.now, o.version = n, version
}

// get returns it, nil where there is none; listed is false where that is not
// known yet.
func (o *own) get() (n *v1alpha1.BpfNode, listed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now, o.listed
}

// Add implements cache.ReflectorStore.
func (o *own) Add(obj any) error { return o.event(obj, true) }

// Update implements cache.ReflectorStore.
func (o *own) Update(obj any) error { return o.event(obj, true) }

// Delete implements cache.ReflectorStore.
func (o *own) Delete(obj any) error { return o.event(obj, false) }

func (o *own) event(obj any, there bool) error {
	n, ok := obj.(*v1alpha1.BpfNode)
	if !ok {
		return fmt.Errorf("look at own report: have a %T", obj)
	}
	version := n.ResourceVersion
	if !there {
		n = nil
	}
	o.see(n, version)
	o.changed()
	return nil
}

// Replace implements cache.ReflectorStore.
func (o *own) Replace(list []any, version string) error {
	if len(list) == 0 {
		o.see(nil, version)
		o.changed()
	}
	for _, obj := range list {
		if err := o.Add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (o *own) Resync() error { return nil }

// publisher writes the BpfNode when what it says changed.
type publisher struct {
	*Agent
	// programs were listed last, while the agent ran what ran says.
	programs []inventory.Program
	ran      []string
	stale    bool
	// ids are those of all programs when they were listed, and looks counts the looks
	// since that found the same ones.
	ids   []uint32
	looks int
	// pods are how many have programs attached, as counted at podsAt.
	pods   int32
	podsAt time.Time
	// passed tells that the agent underneath went round since it had the
	// intents.
	passed bool
	// last is when something was written last.
	last     time.Time
	failures int
	said     string
	listErr  string
}

// moment is how long the first change after silence waits for what comes with it.
const moment = 5 * time.Millisecond

// followPasses notes each turn of the agent as it ends, and tells publish, which may be
// busy: what it looks at or writes to is no part of the turn.
func (a *Agent) followPasses(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.holder.Reconciled():
			a.health.passed()
			poke(a.passed)
		}
	}
}

// publish reports until the context ends. The first change after silence is written
// at once, unless it only says that an application is on its way. Later changes wait
// for more. Nothing is written where nothing changed.
func (a *Agent) publish(ctx context.Context) {
	p := &publisher{Agent: a, stale: true}
	look := time.NewTicker(a.opts.InventoryInterval)
	defer look.Stop()
	var due <-chan time.Time
	soon := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.passed:
			listed, fare := a.intents.state()
			p.passed = p.passed || listed
			if listed {
				a.holder.Forget(func(uid string) bool { return fare(uid) != "" })
			}
		case <-a.changed:
		case <-look.C:
			p.look(ctx)
		case <-due:
			due, soon = nil, false
			if err := p.write(ctx); err != nil && ctx.Err() == nil {
				due = time.After(p.failed(err))
			}
			continue
		}
		switch differs, urgent := p.differs(); {
		case differs && urgent && !soon:
			due, soon = time.After(moment), true
		case differs && due == nil:
			due = time.After(a.opts.Debounce.next())
		}
	}
}

// listTime bounds how long the programs in the kernel are looked at. Processes may have
// very many descriptors.
const listTime = 30 * time.Second

// relistAfter is after how many looks at the same programs they are listed again:
// who holds a program changes without the program.
const relistAfter = 10

// recountAfter is how many intervals between looks pods are not counted again. They come and go, and none is to be a write.
const recountAfter = 5

// countPods counts pods with attached programs again.
func (p *publisher) countPods(applications []agent.ApplicationStatus) {
	p.pods, p.podsAt = podsOf(applications), time.Now()
}

// look lists the programs in the kernel where they are others than before.
func (p *publisher) look(ctx context.Context) {
	ids, err := inventory.ProgramIDs(ctx)
	if p.looks++; err == nil && p.looks < relistAfter && slices.Equal(ids, p.ids) {
		return
	}
	p.ids, p.looks = ids, 0
	p.list(ctx)
}

// list looks at the programs in the kernel. Without the right to, they are left
// out.
func (p *publisher) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	all, err := p.opts.Inventory(ctx)
	p.stale = false
	if err != nil {
		if err.Error() != p.listErr {
			p.listErr = err.Error()
			p.opts.Log.Warn("cannot list the programs in the kernel; the report leaves them out", "error", err)
		}
		p.programs, p.ids = nil, nil
		return
	}
	p.programs, p.listErr = all.Programs, ""
}

// wanted is what is to be reported; false where that is not known yet.
func (p *publisher) wanted() (v1alpha1.BpfNodeStatus, bool) {
	listed, fare := p.intents.state()
	if !listed || !p.passed {
		return v1alpha1.BpfNodeStatus{}, false
	}
	applications := p.holder.Report()
	if runs := running(applications); !slices.Equal(runs, p.ran) {
		p.ran, p.stale = runs, true
	}
	if time.Since(p.podsAt) >= recountAfter*p.opts.InventoryInterval {
		p.countPods(applications)
	}
	p.metrics.report(applications)
	have, _ := p.own.get()
	f := facts{version: p.opts.Version, profile: *p.opts.Profile, applications: applications, fare: fare, pods: p.pods, programs: p.programs, now: time.Now()}
	if have != nil {
		f.conditions = have.Status.Conditions
	}
	if beside := besideStatus(have); beside <= maxBeside {
		f.beside = beside
	}
	return f.status(), true
}

// running names the programs of Skep's that are in the kernel.
func running(all []agent.ApplicationStatus) []string {
	var ids []string
	for _, a := range all {
		for _, program := range a.Programs {
			ids = append(ids, fmt.Sprint(program.ID))
		}
	}
	return ids
}

// differs reports whether there is something to write, and whether it is urgent.
func (p *publisher) differs() (differs, urgent bool) {
	want, known := p.wanted()
	if !known {
		return false, false
	}
	have, listed := p.own.get()
	if !listed {
		return false, false
	}
	urgent = p.urgent(want)
	if have == nil {
		return p.self.owner() != nil, urgent
	}
	return p.stale || !reflect.DeepEqual(have.Status, want) || !p.owned(have) || besideStatus(have) > maxBeside, urgent
}

// urgent reports whether nothing was written for as long as changes wait at most, and
// no application is on its way: what became of it would wait for the next write.
func (p *publisher) urgent(want v1alpha1.BpfNodeStatus) bool {
	pending := slices.ContainsFunc(want.Applications, func(a v1alpha1.NodeApplication) bool { return a.State == v1alpha1.NodePending })
	return p.failures == 0 && !pending && time.Since(p.last) >= p.opts.Debounce.Most
}

// owned reports whether the BpfNode is its Node's, as far as that is known.
func (p *publisher) owned(n *v1alpha1.BpfNode) bool {
	owner := p.self.owner()
	return owner == nil || reflect.DeepEqual(n.OwnerReferences, owner)
}

// write makes the BpfNode, or says what changed in one patch.
func (p *publisher) write(ctx context.Context) error {
	if p.wanted(); p.stale {
		p.list(ctx)
	}
	// What is written has the newest count.
	p.countPods(p.holder.Report())
	want, known := p.wanted()
	have, listed := p.own.get()
	if !known || !listed {
		return nil
	}
	owner := p.self.owner()
	if have == nil {
		if owner == nil {
			return nil
		}
		return p.create(ctx, want, owner)
	}
	patch, err := p.difference(have, want, owner)
	if err != nil || patch == nil {
		return err
	}
	return p.wrote("patch", func() (*v1alpha1.BpfNode, error) { return p.api.patch(ctx, patch) })
}

// difference is the patch that makes of the BpfNode what is wanted, nil where it
// is that.
func (p *publisher) difference(have *v1alpha1.BpfNode, want v1alpha1.BpfNodeStatus, owner []metav1.OwnerReference) (map[string]any, error) {
	patch, err := mergePatch(map[string]any{"status": have.Status}, map[string]any{"status": want})
	if err != nil {
		return nil, err
	}
	meta := map[string]any{}
	if !p.owned(have) {
		meta["ownerReferences"] = owner
	}
	if besideStatus(have) > maxBeside {
		// Somebody else's, without which the report has room.
		meta["labels"], meta["annotations"], meta["finalizers"] = nil, nil, nil
	}
	if len(have.ManagedFields) > 0 && (patch != nil || len(meta) > 0) {
		// Whose each field is takes half as much again as the fields, and all of
		// them are the agent's.
		meta["managedFields"] = []any{map[string]any{}}
	}
	switch {
	case len(meta) == 0:
	case patch == nil:
		patch = map[string]any{"metadata": meta}
	default:
		patch["metadata"] = meta
	}
	return patch, nil
}

func (p *publisher) create(ctx context.Context, want v1alpha1.BpfNodeStatus, owner []metav1.OwnerReference) error {
	n := &v1alpha1.BpfNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfNode},
		ObjectMeta: metav1.ObjectMeta{Name: p.opts.NodeName, OwnerReferences: owner},
		Status:     want,
	}
	return p.wrote("create", func() (*v1alpha1.BpfNode, error) { return p.api.create(ctx, n) })
}

// wrote does one write and remembers what came of it.
func (p *publisher) wrote(verb string, do func() (*v1alpha1.BpfNode, error)) error {
	n, err := do()
	p.last = time.Now()
	p.metrics.wrote(verb, err)
	switch {
	case err == nil:
		p.own.see(n, n.ResourceVersion)
		p.failures, p.said = 0, ""
		return nil
	case verb == "patch" && apierrors.IsNotFound(err):
		// Gone meanwhile; the watch will say so too.
		p.own.see(nil, "")
	}
	return fmt.Errorf("%s BpfNode %s: %w", verb, p.opts.NodeName, scrub(err))
}

// failed logs what is new of a failure, and says how long to wait.
func (p *publisher) failed(err error) time.Duration {
	if p.failures++; err.Error() != p.said {
		p.said = err.Error()
		p.opts.Log.Error("cannot report; what runs is kept", "error", err)
	}
	return p.opts.Retry.after(p.failures)
}
