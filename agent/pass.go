package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/live"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// pass is one turn of the loop: look, decide, act, tell. It holds what is only
// of use within the turn.
type pass struct {
	*Agent
	now  time.Time
	apps []*application
	// labels are the node's at the turn's begin.
	labels map[string]string
	// look is what the kernel said.
	look *live.Look
	want plan.Want
	// versions are the chains that were loaded for this turn, and versionKeys
	// name the loads they came from; those without one were not loaded.
	versions    map[int]*kernel.ChainVersion
	versionKeys map[int]string
	// loads are those that the reconcile needs. fetching reports that an object is on its
	// way, and observed that the kernel could be read.
	loads              *loads.Round
	fetching, observed bool
	// ending reports that the kernel has yet to end links that were closed.
	ending bool
	// awaited are the revisions, by uid, that only wait for the load of a chain.
	awaited map[[2]string]bool
	// outcomes by uid.
	outcomes map[string]*outcome
	// targets are the look-ups of this reconcile.
	targets *targets.Round
	// unmanagedFiles by the uid they lie under.
	unmanagedFiles map[string][]string
	// present is what ran at each place when the pass began.
	present map[ranAt]ran
	// created is when each application was created, by uid.
	created map[string]int64
	// pendingClaims are those of applications whose objects are on their way; nil
	// until they are asked for.
	pendingClaims map[plan.Place][]plan.Claim
	// visited are the interfaces whose chain the pass looked at, wanted what was
	// wanted there where a chain that was begun comes first, and behind those where
	// applications wait until the chain of others is set.
	visited, behind map[int]bool
	wanted          map[int][]plan.Member
	// lost are the places that others run at now which an application had before.
	lost map[ranAt]bool
	// again means that something was put off that the next pass can do at once.
	again bool
	// acted reports that the pass had actions to do.
	acted bool
	// prune tells that cached objects may have lost their last intent.
	prune bool
}

// Reconcile looks, and does what is to be done: first what needs no load, then,
// for as long as turnGrace, one load after the other. What takes longer goes on
// beside it. Run calls it; a caller of its own needs it only to choose the moment.
func (a *Agent) Reconcile(ctx context.Context) {
	a.work.Lock()
	defer a.work.Unlock()
	grace, cancel := context.WithTimeout(ctx, turnGrace)
	defer cancel()
	p := a.pass()
	for a.advance(grace, p) && ctx.Err() == nil {
		p = a.pass()
	}
	a.idle = newIdle(p)
	// Not after each pass: what is loaded within the turn is reported once.
	select {
	case a.passed <- struct{}{}:
	default:
	}
}

// pass looks once, and does what can be done without waiting for anything.
func (a *Agent) pass() *pass {
	a.loads.Collect()
	p := a.newPass()
	defer p.finish()
	p.unmanagedFiles = p.live.UnmanagedFiles()
	if err := p.observe(); err != nil {
		a.opts.Log.Error("look at the kernel", "error", err)
		return p
	}
	p.observed = true
	p.decide()
	p.admit()
	p.fitChains()
	actions := plan.Make(p.want, p.look.State)
	p.acted = len(actions) > 0
	p.act(actions)
	p.finishUnloads()
	p.admitLoads()
	p.remember()
	return p
}

// newPass makes a pass over the applications as they are now.
func (a *Agent) newPass() *pass {
	now := a.opts.Clock()
	apps, labels := a.snapshot()
	return &pass{Agent: a, now: now, apps: apps, labels: labels, look: a.live.Look(), targets: a.lookups.Begin(now),
		loads: a.loads.Begin(), awaited: map[[2]string]bool{},
		versions: map[int]*kernel.ChainVersion{}, versionKeys: map[int]string{},
		outcomes: map[string]*outcome{}, lost: map[ranAt]bool{},
		visited: map[int]bool{}, behind: map[int]bool{}, wanted: map[int][]plan.Member{}}
}

// snapshot copies what Accept and Relabel may change meanwhile; applications
// are ordered by name.
func (a *Agent) snapshot() ([]*application, map[string]string) {
	a.intake.Lock()
	defer a.intake.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	apps := make([]*application, 0, len(a.apps))
	for _, app := range a.apps {
		one := *app
		apps = append(apps, &one)
	}
	slices.SortFunc(apps, func(x, y *application) int {
		p, q := x.newest.Payload(), y.newest.Payload()
		return cmp.Or(cmp.Compare(p.Application.String(), q.Application.String()), cmp.Compare(p.UID, q.UID))
	})
	return apps, a.labels
}

// observe repairs pins and reads what is in the kernel.
func (p *pass) observe() error {
	p.live.Repin(p.repinned)
	interfaces, err := targets.Interfaces(wantsPrimary(p.apps), p.running())
	if err != nil {
		return err
	}
	p.look.Observe(interfaces)
	return nil
}

// repinned notes that a pin was made again, or could not be.
func (p *pass) repinned(what string, made bool, err error) {
	switch {
	case err != nil:
		p.opts.Log.Error("pin again", "what", what, "error", err)
	case made:
		p.opts.Observer.Healed(Unpinned)
		p.opts.Log.Warn("pinned again what was removed", "what", what)
	}
}

// decide chooses for each application what is to be live: the newest intent's
// version, else what instead says.
func (p *pass) decide() {
	known := map[string]bool{}
	for _, app := range p.apps {
		payload := app.newest.Payload()
		known[payload.UID] = true
		p.outcomes[payload.UID] = &outcome{}
		p.choose(app)
	}
	for uid := range p.look.State.Revisions {
		if !known[uid] {
			p.want.Frozen = append(p.want.Frozen, uid)
		}
	}
	for uid := range p.live.Links {
		if !known[uid] && !slices.Contains(p.want.Frozen, uid) {
			p.want.Frozen = append(p.want.Frozen, uid)
		}
	}
	slices.Sort(p.want.Frozen)
}

func (p *pass) choose(app *application) {
	payload := app.newest.Payload()
	out := p.outcomes[payload.UID]
	selected, err := p.selects(payload)
	if err != nil {
		// Nobody can report whether it is for this node.
		out.errs, out.refused = append(out.errs, err), true
		p.want.Frozen = append(p.want.Frozen, payload.UID)
		return
	}
	if payload.Tombstone || len(payload.Programs) == 0 || !selected {
		p.want.Gone = append(p.want.Gone, payload.UID)
		return
	}
	err = p.have(app, app.newest)
	if err == nil {
		err = p.wantApplication(app.newest, out)
	}
	if err == nil {
		out.live = &app.newest
		return
	}
	out.pending, out.loading = isPending(err), errors.Is(err, loads.ErrLoading)
	p.cannotHave(app, app.newest, err)
	out.refused = true
	p.fallBack(app)
}

// fallBack goes on without the newest intent's version: with another, with what
// runs as it is, or with nothing.
func (p *pass) fallBack(app *application) {
	uid := app.newest.Payload().UID
	out := p.outcomes[uid]
	other, stays := p.fallback(app, p.look.RevisionName(uid), out.pending)
	if other != nil {
		err := p.have(app, *other)
		if err == nil {
			err = p.wantApplication(*other, out)
		}
		if err == nil {
			out.live = other
			return
		}
		out.unsettled = isPending(err)
		p.cannotHave(app, *other, err)
		stays = p.outlasts(uid, other) || isPending(err)
	}
	p.rest(uid, stays)
}

// outlasts reports whether what runs goes on where another version that was to take
// its place cannot be had: that very version, and in node mode any.
func (p *pass) outlasts(uid string, other *intent.Opened) bool {
	return p.opts.Node == "" || p.look.RevisionName(uid) == other.Revision()
}

// rest leaves what runs of an application as it is, or has it go.
func (p *pass) rest(uid string, stays bool) {
	if stays {
		p.want.Frozen = append(p.want.Frozen, uid)
		return
	}
	p.want.Gone = append(p.want.Gone, uid)
}

// fallback is what a node goes on with that cannot have the newest version while
// another revision runs, or none: a version, or, where that is nil and stays is
// true, what runs as it is. Node mode goes on with what ran last. In a cluster the
// intent says which versions may run beside its own; what it does not name goes,
// but is waited for while the newest is on its way, in which time nothing else is
// loaded. A version that is not for this node is none.
func (p *pass) fallback(app *application, runs string, pending bool) (other *intent.Opened, stays bool) {
	if p.opts.Node == "" {
		last := app.deployed
		if last != nil && last.Payload().Serial == app.newest.Payload().Serial {
			last = nil
		}
		return last, true
	}
	named := app.newest.Names(runs)
	mine := slices.IndexFunc(named, p.takes)
	before, isBefore := app.newest.Before()
	switch {
	case mine >= 0:
		return &named[mine], true
	case pending || runs == app.newest.Revision() && !app.sameBytesElsewhere(app.newest):
		return nil, true
	case isBefore && p.takes(before):
		return &before, true
	}
	return nil, false
}

// selects reports whether the intent is for this node.
func (p *pass) selects(payload intent.Payload) (bool, error) {
	if p.labels == nil || payload.Tombstone || payload.NodeSelector == nil {
		return true, nil
	}
	ok, err := matchLabels(payload.NodeSelector, p.labels)
	if err != nil {
		return false, fmt.Errorf("choose nodes for %s: %w", payload.Application, err)
	}
	return ok, nil
}

// takes reports whether a version is known to be for this node.
func (p *pass) takes(o intent.Opened) bool {
	ok, err := p.selects(o.Payload())
	return err == nil && ok
}

// have makes sure that the intent's revision is in the kernel, whole. One that was
// found pinned is relied on until it is checked.
func (p *pass) have(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	loaded := p.live.Revisions[uid][revision]
	if err := p.fits(app, o); err != nil {
		return err
	}
	if err := app.refused[o.Payload().Serial]; err != nil && p.now.Before(app.retryAt) {
		return &backingOffError{err}
	}
	if loaded != nil && app.checked[revision] {
		return nil
	}
	whole := false
	if loaded != nil {
		var err error
		if whole, err = p.isWhole(o, loaded); errors.Is(err, loads.ErrLoading) {
			p.outcomes[uid].unsettled = true
			return nil
		} else if err != nil {
			return err
		}
	}
	if !whole {
		if err := p.load(app, o); err != nil {
			return explain(o.Payload(), err)
		}
	}
	app.checked = maps.Clone(app.checked)
	if app.checked == nil {
		app.checked = map[string]bool{}
	}
	app.checked[revision] = true
	return nil
}

// explain says which hook of the intent the kernel lacks, where it refused to
// load a program for that.
func explain(payload intent.Payload, err error) error {
	if refused := new(kernel.LoadError); !errors.As(err, &refused) || refused.Log != "" {
		return err
	}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			h, ok := hook.Lookup(at.Hook)
			if lacks := new(attach.LackingError); ok && errors.As(attach.Explain(h, err), &lacks) {
				return fmt.Errorf("load program %s of %s: %w", program.Name, payload.Application, lacks)
			}
		}
	}
	return err
}

// intentOf finds the intent with the revision.
func (p *pass) intentOf(uid, revision string) *intent.Opened {
	for _, app := range p.apps {
		if app.newest.Payload().UID != uid {
			continue
		}
		if !app.newest.Payload().Tombstone && app.newest.Revision() == revision {
			return &app.newest
		}
		if app.deployed != nil && app.deployed.Revision() == revision {
			return app.deployed
		}
		if named := app.newest.Names(revision); len(named) > 0 {
			return &named[0]
		}
	}
	return nil
}

func (p *pass) logClose(what string, c io.Closer) {
	if err := c.Close(); err != nil {
		p.opts.Log.Error("let go", "what", what, "error", err)
	}
}
