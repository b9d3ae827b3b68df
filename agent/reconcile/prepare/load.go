package prepare

import (
	"errors"
	"fmt"
	"io"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// load brings the intent's revision into the kernel, with the maps of the one
// that runs and those that others lend, and pins it. It fails with build.ErrLoading until the verifier is done, and with
// a *decide.NoMemoryError where the node has no memory for its maps.
func (v *Versions) load(app *decide.Application, o intent.Opened, lent map[string]loader.Lent) error {
	uid, revision := o.Payload().UID, o.Revision()
	old := v.Look.Revision(uid, revision)
	if old == nil {
		old = v.Look.BaseRevision(uid)
	}
	from := build.From{Old: old, Lent: lent}
	key := fmt.Sprintf("revision %s after %q", build.Key(uid, revision), from.Key())
	got, err := build.Get[*build.LoadedRevision](v.LoadRound, key, func() (build.Request, error) { return v.askWithin(app, key, o, from) })
	if decide.IsPending(err) {
		return v.Memory.Explain(key, err)
	}
	v.LoadRound.Take(key)
	if unfit := new(build.UnfitError); errors.As(err, &unfit) {
		app.NoteLack(revision, unfit.Lacks)
	}
	if err != nil {
		return err
	}
	return v.install(app, got)
}

// install pins a loaded revision and holds it.
func (v *Versions) install(app *decide.Application, r *build.LoadedRevision) error {
	if err := v.Pin(r.Revision); err != nil {
		return errors.Join(err, r.Close())
	}
	v.Look.PutRevision(r.Revision)
	if r.Profile != nil {
		v.Measured.Put(r.UID, r.Name, *r.Profile)
	}
	app.Maps = r.Reports
	identity := app.Newest.Payload().Application.String()
	v.Log.Debug("load ended", "application", identity, "revision", r.Name)
	for _, m := range r.Reports {
		if m.Kept && m.Reason != "" {
			v.Log.Warn("map kept its contents", "application", identity, "map", m.Map, "reason", m.Reason)
		}
	}
	return nil
}

// askRevision asks for the load of an intent's revision. It replaces what runs where
// that may run no more.
func (v *Versions) askRevision(app *decide.Application, o intent.Opened, maps build.From) (build.Request, error) {
	payload := o.Payload()
	if err := v.ObjectRound.Available(payload); err != nil {
		return build.Request{}, err
	}
	for _, one := range maps.Lent {
		if one.IsKept {
			continue
		}
		if err := v.ObjectRound.Available(one.Owner.Payload()); err != nil {
			return build.Request{}, err
		}
	}
	lacks, err := v.lacks(payload)
	if err != nil {
		return build.Request{}, err
	}
	why, runs := build.ForNew, v.Look.RevisionName(payload.UID)
	if runs != "" && runs != o.Revision() && v.Node.Withdrew(app.Known, runs) {
		why = build.ForReplacing
	}
	return build.Request{
		Line: "application " + payload.UID, Tenants: []string{payload.Application.Namespace}, Urgency: why, What: build.RevisionLoad,
		For: []v1alpha1.Identity{payload.Application},
		Start: func() (build.Run, error) {
			from, err := maps.Share()
			if err != nil {
				return nil, err
			}
			files, profile := v.ObjectRound.Cache, v.Profile
			return func(turn build.Turn) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Revision(o, files, profile, from, lacks, turn)
			}, nil
		},
	}, nil
}

// askWithin asks for the load of an intent's revision with its claim to the memory for
// maps, where that is limited. It fails with build.ErrLoading until the maps are weighed.
func (v *Versions) askWithin(app *decide.Application, key string, o intent.Opened, from build.From) (build.Request, error) {
	r, err := v.askRevision(app, o, from)
	if err != nil || v.Memory.Limit == 0 {
		return r, err
	}
	key = "memory of " + key
	got, err := build.Get[build.Memory](v.LoadRound, key, func() (build.Request, error) { return v.askWeight(r, o, from.Old), nil })
	if decide.IsPending(err) {
		return build.Request{}, err
	}
	if err != nil {
		v.LoadRound.Take(key)
		return build.Request{}, err
	}
	// The weight stays among the results for as long as the load is asked for.
	r.Claim = v.Memory.Claim(o, got.Bytes)
	return r, nil
}

// askWeight asks for the maps to be weighed that a load makes. It waits in turn with
// loads, so that no more objects are open at once, but does not use up the turn of its
// namespace.
func (v *Versions) askWeight(load build.Request, o intent.Opened, old *loader.Revision) build.Request {
	files := v.ObjectRound.Cache
	return build.Request{
		Line: "memory of " + load.Line, Tenants: []string{"memory of " + o.Payload().Application.Namespace}, Urgency: load.Urgency,
		Start: func() (build.Run, error) {
			from, err := old.Share()
			if err != nil {
				return nil, err
			}
			return func(build.Turn) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Weigh(o, files, from)
			}, nil
		},
	}
}
