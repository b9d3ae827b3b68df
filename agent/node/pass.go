package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// pass is one turn of the loop: look, decide, act, tell. It holds what is only
// of use within the turn.
type pass struct {
	*Agent
	ctx   context.Context
	now   time.Time
	apps  []*application
	state plan.State
	want  plan.Want
	// prepared objects by uid and revision, and the kernel's types they are
	// relocated by.
	prepared map[[2]string]*kernel.Prepared
	types    *btf.Cache
	// versions are the chains that were loaded for this turn.
	versions map[int]*kernel.ChainVersion
	// facts of links by their pin.
	facts map[string]kernel.Facts
	// outcomes by uid.
	outcomes map[string]*outcome
	// prune tells that cached objects may have lost their last intent.
	prune bool
}

// Reconcile looks once, and does what is to be done. Run calls it; a caller of
// its own needs it only to choose the moment.
func (a *Agent) Reconcile(ctx context.Context) {
	a.work.Lock()
	defer a.work.Unlock()
	p := a.newPass(ctx)
	if err := p.observe(); err != nil {
		a.opts.Log.Error("look at the kernel", "error", err)
		p.finish()
		return
	}
	p.decide()
	p.fitChains()
	p.act(plan.Make(p.want, p.state))
	p.finish()
}

// newPass makes a pass over the applications as they are now.
func (a *Agent) newPass(ctx context.Context) *pass {
	return &pass{Agent: a, ctx: ctx, now: a.opts.Clock(), apps: a.snapshot(),
		prepared: map[[2]string]*kernel.Prepared{}, types: btf.NewCache(),
		versions: map[int]*kernel.ChainVersion{}, facts: map[string]kernel.Facts{},
		outcomes: map[string]*outcome{}}
}

// snapshot copies what Accept may change meanwhile, ordered by name.
func (a *Agent) snapshot() []*application {
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
	return apps
}

// observe repairs pins and reads what is in the kernel.
func (p *pass) observe() error {
	p.repin()
	interfaces, err := listInterfaces(wantsPrimary(p.apps))
	if err != nil {
		return err
	}
	p.state = plan.State{Interfaces: interfaces, Revisions: map[string][]string{}}
	for uid, revisions := range p.held.revisions {
		for name := range revisions {
			p.state.Revisions[uid] = append(p.state.Revisions[uid], name)
		}
		slices.Sort(p.state.Revisions[uid])
	}
	for _, links := range p.held.links {
		for _, l := range links {
			facts, err := kernel.Inspect(l.Link)
			if err != nil {
				return err
			}
			p.facts[l.Path] = facts
			p.state.Links = append(p.state.Links, plan.Link{UID: l.UID, Attachment: l.Attachment,
				Revision: p.revisionOf(l, facts), Severed: facts.Severed})
		}
	}
	slices.SortFunc(p.state.Links, func(a, b plan.Link) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Attachment.Key(), b.Attachment.Key()))
	})
	if err := p.observeOrder(); err != nil {
		return err
	}
	return p.observeChains()
}

// observeOrder reads the place of each link on an ordered hook.
func (p *pass) observeOrder() error {
	orders := map[string][]link.ID{}
	for i := range p.state.Links {
		l := &p.state.Links[i]
		if h, ok := hook.Lookup(l.Attachment.Hook); !ok || h.Sharing != hook.Ordered || l.Severed {
			continue
		}
		at := fmt.Sprint(l.Attachment.Hook, l.Attachment.Ifindex)
		if orders[at] == nil {
			order, err := attach.OrderTCX(l.Attachment.Hook, l.Attachment.Ifindex)
			if err != nil && !errors.Is(err, attach.ErrTarget) {
				return err
			}
			orders[at] = order
		}
		pin := p.held.links[l.UID][l.Attachment.Key()].Path
		l.Position = slices.Index(orders[at], p.facts[pin].ID)
	}
	return nil
}

// revisionOf names the revision whose program a link runs.
func (p *pass) revisionOf(l *kernel.Link, facts kernel.Facts) string {
	for name, r := range p.held.revisions[l.UID] {
		if instance, ok := r.Instance(facts.Program); ok && instance == l.Attachment.Instance {
			return name
		}
	}
	return ""
}

func (p *pass) observeChains() error {
	for index, c := range p.held.chains {
		facts, err := kernel.Inspect(c.Link)
		if err != nil {
			return err
		}
		p.facts[p.store.ChainPath(index)] = facts
		one := plan.Chain{Ifindex: index, Severed: facts.Severed}
		if c.Version != nil {
			id, err := kernel.ProgramID(c.Version.Program)
			if err != nil {
				return err
			}
			// A program somebody else put under the link is not the members'.
			if id == facts.Program {
				one.Members = c.Version.Members
			}
		}
		p.state.Chains = append(p.state.Chains, one)
	}
	slices.SortFunc(p.state.Chains, func(a, b plan.Chain) int { return cmp.Compare(a.Ifindex, b.Ifindex) })
	return nil
}

// decide chooses for each application what is to be live: the newest intent,
// else the one that ran last, else whatever is there.
func (p *pass) decide() {
	known := map[string]bool{}
	for _, app := range p.apps {
		payload := app.newest.Payload()
		known[payload.UID] = true
		p.outcomes[payload.UID] = &outcome{}
		p.choose(app)
	}
	for uid := range p.state.Revisions {
		if !known[uid] {
			p.want.Frozen = append(p.want.Frozen, uid)
		}
	}
	for uid := range p.held.links {
		if !known[uid] && !slices.Contains(p.want.Frozen, uid) {
			p.want.Frozen = append(p.want.Frozen, uid)
		}
	}
	slices.Sort(p.want.Frozen)
}

func (p *pass) choose(app *application) {
	payload := app.newest.Payload()
	out := p.outcomes[payload.UID]
	if payload.Tombstone || !p.selects(payload) {
		p.want.Gone = append(p.want.Gone, payload.UID)
		return
	}
	err := p.have(app, app.newest)
	if err == nil {
		err = p.wantApplication(app.newest, out)
	}
	if err == nil {
		out.live = &app.newest
		return
	}
	if !errors.Is(err, errBackingOff) {
		p.fail(app, err)
	}
	out.refused = true
	p.fallBack(app)
}

// fallBack goes on with the intent that ran last, or freezes.
func (p *pass) fallBack(app *application) {
	payload := app.newest.Payload()
	out := p.outcomes[payload.UID]
	if app.deployed != nil && app.deployed.Payload().Serial != payload.Serial {
		if p.have(app, *app.deployed) == nil && p.wantApplication(*app.deployed, out) == nil {
			out.live = app.deployed
			return
		}
	}
	p.want.Frozen = append(p.want.Frozen, payload.UID)
}

// selects tells whether the intent is for this node.
func (p *pass) selects(payload intent.Payload) bool {
	if p.opts.Labels == nil || payload.NodeSelector == nil {
		return true
	}
	ok, err := matchLabels(payload.NodeSelector, p.opts.Labels)
	if err != nil {
		p.opts.Log.Error("read node selector; what runs is kept", "application", payload.Application.String(), "error", err)
		return true
	}
	return ok
}

// errBackingOff: the revision failed a short while ago.
var errBackingOff = errors.New("backing off")

// have makes sure that the intent's revision is in the kernel, whole.
func (p *pass) have(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	held := p.held.revisions[uid][revision]
	if app.refused == o.Payload().Serial && p.now.Before(app.retryAt) {
		return errBackingOff
	}
	if held != nil && app.checked[revision] {
		return nil
	}
	prepared, err := p.prepare(o)
	if err != nil {
		return err
	}
	if held == nil || !held.Whole(prepared) {
		if held, err = p.load(app, prepared, held); err != nil {
			return err
		}
	}
	app.checked = maps.Clone(app.checked)
	if app.checked == nil {
		app.checked = map[string]bool{}
	}
	app.checked[revision] = true
	return nil
}

// load loads a revision with the maps of the one that runs.
func (p *pass) load(app *application, prepared *kernel.Prepared, broken *kernel.Revision) (*kernel.Revision, error) {
	old := broken
	if old == nil {
		old = p.liveRevision(prepared.UID)
	}
	r, reports, err := p.store.Load(prepared, old, p.types)
	if err != nil {
		return nil, err
	}
	if broken != nil {
		if err := broken.Close(); err != nil {
			p.opts.Log.Error("let go of a broken revision", "error", err)
		}
	}
	p.held.putRevision(r)
	if !slices.Contains(p.state.Revisions[r.UID], r.Name) {
		p.state.Revisions[r.UID] = append(p.state.Revisions[r.UID], r.Name)
	}
	app.maps = reports
	p.opts.Log.Info("loaded", "application", prepared.Application.String(), "revision", r.Name)
	return r, nil
}

// liveRevision is the revision whose maps a new one goes on with: the one that
// links run, or the only one there is.
func (p *pass) liveRevision(uid string) *kernel.Revision {
	for _, l := range p.state.Links {
		if l.UID == uid && l.Revision != "" {
			return p.held.revisions[uid][l.Revision]
		}
	}
	for _, c := range p.state.Chains {
		for _, m := range c.Members {
			if r := p.held.revisions[uid][m.Revision]; m.UID == uid && r != nil {
				return r
			}
		}
	}
	for _, r := range p.held.revisions[uid] {
		return r
	}
	return nil
}

// prepare parses the intent's object, once a pass.
func (p *pass) prepare(o intent.Opened) (*kernel.Prepared, error) {
	id := [2]string{o.Payload().UID, o.Revision()}
	if done := p.prepared[id]; done != nil {
		return done, nil
	}
	object, err := p.object(o.Payload())
	if err != nil {
		return nil, err
	}
	prepared, err := kernel.Prepare(o, object)
	if err != nil {
		return nil, err
	}
	p.prepared[id] = prepared
	return prepared, nil
}

// object takes the bytes from the cache, or fetches and keeps them.
func (p *pass) object(payload intent.Payload) ([]byte, error) {
	if body := p.cache.object(payload.ObjectDigest); body != nil {
		return body, nil
	}
	body, err := p.opts.Fetch(p.ctx, payload.ObjectDigest)
	if err != nil {
		return nil, fmt.Errorf("fetch object of %s: %w", payload.Application, err)
	}
	if err := checkDigest(payload.ObjectDigest, body); err != nil {
		return nil, fmt.Errorf("fetch object of %s: %w", payload.Application, err)
	}
	if err := p.cache.putObject(payload.ObjectDigest, body); err != nil {
		return nil, err
	}
	return body, nil
}

// wantApplication turns an intent into resolved attachments. A target that is
// not there is told and waited for; what the definition says wrongly refuses
// the intent.
func (p *pass) wantApplication(o intent.Opened, out *outcome) error {
	payload := o.Payload()
	app := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: o.Revision()}
	var absent []unmade
	seen := map[string]bool{}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			found, err := p.resolve(payload.Application, program.Name, at)
			if errors.Is(err, errWaiting) || errors.Is(err, attach.ErrTarget) {
				absent = append(absent, unresolved(program.Name, at, err))
			} else if err != nil {
				return fmt.Errorf("place program %s of %s: %w", program.Name, payload.Application, err)
			}
			for _, a := range found {
				if seen[a.Key()] {
					return fmt.Errorf("place program %s of %s: the definition attaches it to %s %s twice; once is enough", a.Program, payload.Application, a.Hook, a.Target)
				}
				seen[a.Key()] = true
				app.Attachments = append(app.Attachments, a)
			}
		}
	}
	for _, u := range absent {
		out.links = append(out.links, u)
		if u.status.State == Failed {
			out.errs = append(out.errs, fmt.Errorf("place program %s of %s: %s", u.program, payload.Application, u.status.Error))
		}
	}
	p.want.Applications = append(p.want.Applications, app)
	return nil
}

// resolve turns one attachment of a definition into those on this node.
func (p *pass) resolve(application v1alpha1.Identity, program string, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	base := plan.Attachment{Application: application, Program: program, Instance: plan.Instance(program, at.Hook, at.Tracepoint),
		Hook: at.Hook, Priority: v1alpha1.DefaultPriority}
	if at.Priority != nil {
		base.Priority = *at.Priority
	}
	h, ok := hook.Lookup(at.Hook)
	if !ok {
		return nil, fmt.Errorf("resolve hook %q: no such hook", at.Hook)
	}
	if at.Hook == plan.XDP {
		mask, err := chain.ProceedOn(at.ProceedOn)
		if err != nil {
			return nil, err
		}
		base.ProceedOn = mask
	}
	if h.Shape == hook.NetworkDevice {
		return p.onInterfaces(base, at)
	}
	base.Tracepoint, base.Cgroup, base.NetworkNamespace = at.Tracepoint, at.Cgroup, at.NetworkNamespace
	if b := at.Binary; b != nil {
		base.Binary, base.Symbol, base.Offset, base.PID = b.Path, b.Symbol, b.Offset, b.PID
	}
	one, err := attach.Resolve(base, p.opts.CgroupRoot)
	if err != nil {
		return nil, err
	}
	return []plan.Attachment{one}, nil
}

func (p *pass) onInterfaces(base plan.Attachment, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	chosen, err := plan.Select(at.Interfaces, p.state.Interfaces)
	if err != nil {
		return nil, err
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: no interface of this node is chosen by %s", errWaiting, sayInterfaces(at.Interfaces))
	}
	var all []plan.Attachment
	for _, i := range chosen {
		one := base
		one.Ifindex, one.Interface = i.Index, i.Name
		all = append(all, one)
	}
	return all, nil
}
