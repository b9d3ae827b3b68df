package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// loadedRevision is a revision in the kernel that is not pinned yet.
type loadedRevision struct {
	*kernel.Revision
	reports []kernel.MapReport
	// profile is what its programs take of a chain; nil where that is not known.
	profile *chain.Profile
}

// load brings the intent's revision into the kernel, with the maps of the one
// that runs, and pins it. It fails with loads.ErrLoading until the verifier is done, and with
// a *noRoomError where the node has no memory for its maps.
func (p *pass) load(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	broken := p.live.Revisions[uid][revision]
	old := broken
	if old == nil {
		old = p.look.Revision(uid)
	}
	key := fmt.Sprintf("revision %s after %q", revisionKey(uid, revision), old.Key())
	got, err := loads.Get[*loadedRevision](p.loads, key, func() (loads.Request, error) { return p.askWithin(key, o, old) })
	if isPending(err) {
		return p.roomFor(key, uid, err)
	}
	p.loads.Take(key)
	if unfit := new(unfitError); errors.As(err, &unfit) {
		app.lack(revision, unfit.lacks)
	}
	if err != nil {
		return err
	}
	return p.install(app, got, broken)
}

// install pins a loaded revision and holds it.
func (p *pass) install(app *application, r *loadedRevision, broken *kernel.Revision) error {
	if err := p.store.PinRevision(r.Revision); err != nil {
		return errors.Join(err, r.Close())
	}
	if broken != nil {
		p.logClose("broken revision", broken)
	}
	p.live.PutRevision(r.Revision)
	if !slices.Contains(p.look.State.Revisions[r.UID], r.Name) {
		p.look.State.Revisions[r.UID] = append(p.look.State.Revisions[r.UID], r.Name)
	}
	if r.profile != nil {
		p.profiles[[2]string{r.UID, r.Name}] = *r.profile
	}
	app.maps = r.reports
	p.opts.Log.Info("loaded", "application", app.Newest.Payload().Application.String(), "revision", r.Name)
	return nil
}

// askRevision asks for the load of an intent's revision. It replaces what runs where
// that may run no more.
func (p *pass) askRevision(o intent.Opened, old *kernel.Revision) (loads.Request, error) {
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
				r, err := loadRevision(o, files, profile, from, types)
				if err != nil {
					return nil, err
				}
				return r, nil
			}, nil
		},
	}, nil
}

// loadRevision reads an object, prepares it and loads it. It runs beside the loop:
// until its turn comes, a load holds no more of its object than the digest.
func loadRevision(o intent.Opened, files *objects.Cache, profile *v1alpha1.KernelProfile, old *kernel.Revision, types *btf.Cache) (*loadedRevision, error) {
	object, err := files.Read(o.Payload().ObjectDigest)
	if err != nil {
		return nil, err
	}
	prepared, err := kernel.Prepare(o, object)
	if err != nil {
		return nil, err
	}
	facts := inspect(object)
	if err := objectFits(o, facts, profile); err != nil {
		return nil, err
	}
	r, reports, err := kernel.Load(prepared, old, types)
	if err != nil {
		return nil, err
	}
	return &loadedRevision{Revision: r, reports: reports, profile: measureLoaded(o.Payload(), prepared.Spec, facts)}, nil
}

// inspect returns what is known of an object, or nil where it cannot be inspected.
func inspect(object []byte) *bytecode.Facts {
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return nil
	}
	return &facts
}

// objectFits reports what of the object's needs the node's kernel lacks, as an
// *unfitError. An object that cannot be inspected is left to the kernel.
func objectFits(o intent.Opened, facts *bytecode.Facts, profile *v1alpha1.KernelProfile) error {
	if profile == nil || facts == nil {
		return nil
	}
	if lacks := placement.Of(o.Payload(), facts).Missing(*profile); lacks != "" {
		return &unfitError{lacks}
	}
	return nil
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
func (p *pass) copyOf(r *kernel.Revision, a plan.Action) (*ebpf.Program, error) {
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

	return program, p.store.AddCopy(r, instance, program)
}

func (p *pass) askCopy(r *kernel.Revision, a plan.Action) (loads.Request, error) {
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
				object, err := files.Read(opened.Payload().ObjectDigest)
				if err != nil {
					return nil, err
				}
				prepared, err := kernel.Prepare(opened, object)
				if err != nil {
					return nil, err
				}
				program, err := kernel.LoadCopy(prepared, from, a.Attachment.Instance, types)
				if err != nil {
					return nil, err
				}
				return program, nil
			}, nil
		},
	}, nil
}
