package act

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// copyOf returns one more program of an instance, pinned. It fails with
// build.ErrLoading until the verifier is done.
func (mk *linkMaker) copyOf(r *loader.Revision, a plan.Action) (*ebpf.Program, error) {
	instance := a.Attachment.Instance
	key := fmt.Sprintf("copy %d of %s of %s", len(r.Copies(instance)), instance, r.Key())
	program, err := build.Get[*ebpf.Program](mk.LoadRound, key, func() (build.Request, error) { return mk.askCopy(r, a) })
	if decide.IsPending(err) {
		return nil, err
	}
	mk.LoadRound.Take(key)
	if err != nil {
		return nil, err
	}
	mk.Look.Others.ForgetOurs()
	return program, mk.Pins.AddCopy(r, instance, program)
}

func (mk *linkMaker) askCopy(r *loader.Revision, a plan.Action) (build.Request, error) {
	o := mk.Decisions.IntentOf(r.UID, r.Name)
	if o == nil {
		return build.Request{}, fmt.Errorf("move %s: its intent is not known here", a.Attachment.Program)
	}
	if err := mk.ObjectRound.Available(o.Payload()); err != nil {
		return build.Request{}, err
	}
	opened, files := *o, mk.ObjectRound.Cache
	return build.Request{
		Line: "application " + r.UID, Tenants: []string{o.Payload().Application.Namespace}, What: build.RevisionLoad,
		Start: func() (build.Run, error) {
			from, err := r.Share()
			if err != nil {
				return nil, err
			}
			return func(turn build.Turn) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Copy(opened, files, from, a.Attachment.Instance, turn)
			}, nil
		},
	}, nil
}
