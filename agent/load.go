package agent

import (
	"errors"
	"fmt"
	"io"
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
func (rec *reconcile) load(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	broken := rec.live.Revisions[uid][revision]
	old := broken
	if old == nil {
		old = rec.look.BaseRevision(uid)
	}
	key := fmt.Sprintf("revision %s after %q", build.Key(uid, revision), old.Key())
	got, err := loads.Get[*build.LoadedRevision](rec.loads, key, func() (loads.Request, error) { return rec.askWithin(key, o, old) })
	if isPending(err) {
		return rec.whyNoMemory(key, uid, err)
	}
	rec.loads.Take(key)
	if unfit := new(build.UnfitError); errors.As(err, &unfit) {
		app.lack(revision, unfit.Lacks)
	}
	if err != nil {
		return err
	}
	return rec.install(app, got, broken)
}

// install pins a loaded revision and holds it.
func (rec *reconcile) install(app *application, r *build.LoadedRevision, broken *kernel.Revision) error {
	if err := rec.pins.PinRevision(r.Revision); err != nil {
		return errors.Join(err, r.Close())
	}
	if broken != nil {
		rec.logClose("broken revision", broken)
	}
	rec.live.PutRevision(r.Revision)
	if !slices.Contains(rec.look.State.Revisions[r.UID], r.Name) {
		rec.look.State.Revisions[r.UID] = append(rec.look.State.Revisions[r.UID], r.Name)
	}
	if r.Profile != nil {
		rec.profiles[[2]string{r.UID, r.Name}] = *r.Profile
	}
	app.maps = r.Reports
	rec.opts.Log.Info("loaded", "application", app.Newest.Payload().Application.String(), "revision", r.Name)
	return nil
}

// askRevision asks for the load of an intent's revision. It replaces what runs where
// that may run no more.
func (rec *reconcile) askRevision(o intent.Opened, old *kernel.Revision) (loads.Request, error) {
	payload := o.Payload()
	if err := rec.available(payload); err != nil {
		return loads.Request{}, err
	}
	why, runs := loads.ForNew, rec.look.RevisionName(payload.UID)
	if runs != "" && runs != o.Revision() && rec.withdrew(payload.UID, runs) {
		why = loads.ForReplacing
	}
	return loads.Request{
		Line: "application " + payload.UID, Tenants: []string{payload.Application.Namespace}, Urgency: why, What: string(LoadRevision),
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			from, err := old.Share()
			if err != nil {
				return nil, err
			}
			files, profile := rec.objects, rec.opts.Profile
			return func(types *btf.Cache) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Revision(o, files, profile, from, types)
			}, nil
		},
	}, nil
}

// lack remembers what this node's kernel lacks for a revision.
func (app *application) lack(revision, lacks string) {
	app.lacks = with(app.lacks, revision, lacks)
}

// copyOf returns one more program of an instance, pinned. It fails with
// loads.ErrLoading until the verifier is done.
func (rec *reconcile) copyOf(r *kernel.Revision, a plan.Action) (*ebpf.Program, error) {
	instance := a.Attachment.Instance
	key := fmt.Sprintf("copy %d of %s of %s", len(r.Copies(instance)), instance, r.Key())
	program, err := loads.Get[*ebpf.Program](rec.loads, key, func() (loads.Request, error) { return rec.askCopy(r, a) })
	if isPending(err) {
		return nil, err
	}
	rec.loads.Take(key)
	if err != nil {
		return nil, err
	}

	return program, rec.pins.AddCopy(r, instance, program)
}

func (rec *reconcile) askCopy(r *kernel.Revision, a plan.Action) (loads.Request, error) {
	o := rec.intentOf(r.UID, r.Name)
	if o == nil {
		return loads.Request{}, fmt.Errorf("move %s: its intent is not known here", a.Attachment.Program)
	}
	if err := rec.available(o.Payload()); err != nil {
		return loads.Request{}, err
	}
	opened, files := *o, rec.objects
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
