package agent

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/intent"
)

// wholeness reports whether a revision has everything that its object needs.
type wholeness bool

// Close implements io.Closer: it holds nothing.
func (wholeness) Close() error { return nil }

// isWhole reports whether a revision that was found pinned has everything that its
// object needs. That takes the object, which may take memory and time: the revisions
// are checked beside the loop, one at a time, and it fails with loads.ErrLoading until then.
// A program that is to be attached and is missing is found at once.
func (p *pass) isWhole(o intent.Opened, held *kernel.Revision) (bool, error) {
	if lacksProgram(held, o.Payload()) {
		return false, nil
	}
	key := "check of " + revisionKey(held.UID, held.Key())
	got, err := loads.Get[wholeness](p.loads, key, func() (loads.Request, error) { return p.askWhole(o, held) })
	if isPending(err) {
		return false, err
	}
	p.loads.Take(key)
	if err != nil {
		return false, err
	}
	return bool(got), nil
}

// lacksProgram reports whether a revision lacks a program that its intent attaches.
func lacksProgram(held *kernel.Revision, payload intent.Payload) bool {
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			if held.Programs[plan.Instance(program.Name, at.Hook, at.Tracepoint)] == nil {
				return true
			}
		}
	}
	return false
}

// askWhole asks for the check of a revision.
func (p *pass) askWhole(o intent.Opened, held *kernel.Revision) (loads.Request, error) {
	payload := o.Payload()
	if err := p.available(payload); err != nil {
		return loads.Request{}, err
	}
	files := p.objects
	return loads.Request{
		Line: fmt.Sprintf("check of application %s", payload.UID), Tenants: []string{payload.Application.Namespace},
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			return func(*btf.Cache) (io.Closer, error) {
				object, err := files.Read(payload.ObjectDigest)
				if err != nil {
					return nil, err
				}
				prepared, err := kernel.Prepare(o, object)
				if err != nil {
					return nil, err
				}
				return wholeness(held.Whole(prepared)), nil
			}, nil
		},
	}, nil
}
