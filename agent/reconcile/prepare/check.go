package prepare

import (
	"fmt"
	"io"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/intent"
)

// isWhole reports whether a revision that was found pinned has everything that its
// object needs. That takes the object, which may take memory and time: the revisions
// are checked beside the loop, one at a time, and it fails with build.ErrLoading until then.
// A program that is to be attached and is missing is found at once.
func (v *Versions) isWhole(o intent.Opened, loaded *loader.Revision) (bool, error) {
	if build.LacksProgram(loaded, o.Payload()) {
		return false, nil
	}
	key := "check of " + build.Key(loaded.UID, loaded.Key())
	got, err := build.Get[build.Wholeness](v.LoadRound, key, func() (build.Request, error) { return v.askWhole(o, loaded) })
	if decide.IsPending(err) {
		return false, err
	}
	if err != nil || got.IsWhole {
		v.LoadRound.Take(key)
	}
	// That it is not whole stays known while its load is asked for: another check would drop that.
	return err == nil && got.IsWhole, err
}

// askWhole asks for the check of a revision.
func (v *Versions) askWhole(o intent.Opened, loaded *loader.Revision) (build.Request, error) {
	payload := o.Payload()
	if err := v.ObjectRound.Available(payload); err != nil {
		return build.Request{}, err
	}
	files := v.ObjectRound.Cache
	return build.Request{
		Line: fmt.Sprintf("check of application %s", payload.UID), Tenants: []string{payload.Application.Namespace},
		Start: func() (build.Run, error) {
			return func(build.Turn) (io.Closer, error) {
				return build.Check(o, files, loaded)
			}, nil
		},
	}, nil
}
