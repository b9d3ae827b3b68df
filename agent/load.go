package agent

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/intent"
)

// load brings the intent's revision into the kernel, with the maps of the one
// that runs, and pins it. It fails with loads.ErrLoading until the verifier is done, and with
// a *noMemoryError where the node has no memory for its maps.
func (p *reconcile) load(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	broken := p.live.Revisions[uid][revision]
	old := broken
	if old == nil {
		old = p.look.Revision(uid)
	}
	key := fmt.Sprintf("revision %s after %q", build.Key(uid, revision), old.Key())
	got, err := loads.Get[*build.LoadedRevision](p.loads, key, func() (loads.Request, error) { return p.askWithin(key, o, old) })
	if isPending(err) {
		return p.whyNoMemory(key, uid, err)
	}
	p.loads.Take(key)
	if unfit := new(build.UnfitError); errors.As(err, &unfit) {
		app.lack(revision, unfit.Lacks)
	}
	if err != nil {
		return err
	}
	return p.install(app, got, broken)
}

// install pins a loaded revision and holds it.
func (p *reconcile) install(app *application, r *build.LoadedRevision, broken *kernel.Revision) error {
	if err := p.pins.PinRevision(r.Revision); err != nil {
		return errors.Join(err, r.Close())
	}
	if broken != nil {
		p.logClose("broken revision", broken)
	}
	p.live.PutRevision(r.Revision)
	if !slices.Contains(p.look.State.Revisions[r.UID], r.Name) {
		p.look.State.Revisions[r.UID] = append(p.look.State.Revisions[r.UID], r.Name)
	}
	if r.Profile != nil {
		p.profiles[[2]string{r.UID, r.Name}] = *r.Profile
	}
	app.maps = r.Reports
	p.opts.Log.Info("loaded", "application", app.Newest.Payload().Application.String(), "revision", r.Name)
	return nil
}

// askRevision asks for the load of an intent's revision. It replaces what runs where
// that may run no more.
func (p *reconcile) askRevision(o intent.Opened, old *kernel.Revision) (loads.Request, error) {
	payload := o.Payload()
	if err := p.available(payload); err != nil {
		return loads.Request{}, err
	}
	why, runs := loads.ForNew, p.look.RevisionName(payload.UID)
	if runs != "" && runs != o.Revision() && p.withdrawn(payload.UID, runs) {
		why = loads.ForReplacing
	}
	return loads.Request{
		Line: "application " + payload.UID, Tenants: []string{payload.Application.Namespace}, Urgency: why, What: string(LoadRevision),
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			from, err := old.Share()
			if err != nil {
				return nil, err
			}
			files, profile := p.objects, p.opts.Profile
			return func(types *btf.Cache) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Revision(o, files, profile, from, types)
			}, nil
		},
	}, nil
}

// lack remembers what this node's kernel lacks for a revision.
func (app *application) lack(revision, lacks string) {
	app.lacks = maps.Clone(app.lacks)
	if app.lacks == nil {
		app.lacks = map[string]string{}
	}
	app.lacks[revision] = lacks
}

// copyOf returns one more program of an instance, pinned. It fails with
// loads.ErrLoading until the verifier is done.
func (p *reconcile) copyOf(r *kernel.Revision, a plan.Action) (*ebpf.Program, error) {
	instance := a.Attachment.Instance
	key := fmt.Sprintf("copy %d of %s of %s", len(r.Copies(instance)), instance, r.Key())
	program, err := loads.Get[*ebpf.Program](p.loads, key, func() (loads.Request, error) { return p.askCopy(r, a) })
	if isPending(err) {
		return nil, err
	}
	p.loads.Take(key)
	if err != nil {
		return nil, err
	}

	return program, p.pins.AddCopy(r, instance, program)
}

func (p *reconcile) askCopy(r *kernel.Revision, a plan.Action) (loads.Request, error) {
	o := p.intentOf(r.UID, r.Name)
	if o == nil {
		return loads.Request{}, fmt.Errorf("move %s: its intent is not known here", a.Attachment.Program)
	}
	if err := p.available(o.Payload()); err != nil {
		return loads.Request{}, err
	}
	opened, files := *o, p.objects
	return loads.Request{
		Line: "application " + r.UID, Tenants: []string{o.Payload().Application.Namespace}, What: string(LoadRevision),
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			from, err := r.Share()
			if err != nil {
				return nil, err
			}
			return func(types *btf.Cache) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Copy(opened, files, from, a.Attachment.Instance, types)
			}, nil
		},
	}, nil
}
