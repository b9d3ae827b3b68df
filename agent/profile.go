package agent

import (
	"io"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// profile is what the programs of a revision take of a chain. The load of a revision
// measures it; that of one an earlier agent loaded is measured beside the loop.
type profile struct{ chain.Profile }

// Close implements io.Closer: there is nothing to free.
func (profile) Close() error { return nil }

// measureAgain is how long a revision that could not be measured is left alone.
const measureAgain = time.Minute

// profileOf returns what is known of a revision in the kernel, and has it measured
// where nothing is.
func (p *pass) profileOf(uid, revision string) chain.Profile {
	id := [2]string{uid, revision}
	if known, ok := p.profiles[id]; ok {
		return known
	}
	o := p.intentOf(uid, revision)
	if o == nil || p.live.Revisions[uid][revision] == nil || p.now.Sub(p.unmeasured[id]) < measureAgain {
		return chain.Profile{}
	}
	// Nothing is fetched for this.
	if !p.objects.Has(o.Payload().ObjectDigest) {
		return chain.Profile{}
	}
	key := "profile of " + revisionKey(uid, revision)
	got, err := loads.Get[profile](p.loads, key, func() (loads.Request, error) { return p.askProfile(*o), nil })
	if isPending(err) {
		return chain.Profile{}
	}
	p.loads.Take(key)
	if err != nil {
		p.opts.Log.Error("measure what programs take; they count as programs alone", "application", o.Payload().Application.String(), "error", err)
		p.unmeasured[id] = p.now
		return chain.Profile{}
	}
	p.profiles[id] = got.Profile
	return p.profiles[id]
}

// askProfile asks for a revision to be measured. It waits in turn with the loads of
// its namespace.
func (p *pass) askProfile(o intent.Opened) loads.Request {
	files := p.objects
	return loads.Request{
		Line: "profile of application " + o.Payload().UID, Tenants: []string{o.Payload().Application.Namespace},
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			return func(*btf.Cache) (io.Closer, error) {
				object, err := readMember(o, files)
				if err != nil {
					return nil, err
				}
				found, err := measure(o.Payload(), object)
				if err != nil {
					return nil, err
				}
				return profile{found}, nil
			}, nil
		},
	}
}

// measure returns what the XDP programs of an intent take.
func measure(p intent.Payload, object *memberObject) (chain.Profile, error) {
	var members []chain.Member
	for _, program := range p.Programs {
		if !slices.ContainsFunc(program.Attach, func(a v1alpha1.Attachment) bool { return a.Hook == plan.XDP }) {
			continue
		}
		one, err := object.member(plan.Member{UID: p.UID, Identity: p.Application, Program: program.Name})
		if err != nil {
			return chain.Profile{}, err
		}
		one.Key = program.Name
		members = append(members, one)
	}
	return chain.Measure(members)
}

// measureLoaded is measure for an object that is loaded anyway; nothing where it
// cannot be measured.
func measureLoaded(p intent.Payload, spec *ebpf.CollectionSpec, facts *bytecode.Facts) *chain.Profile {
	if facts == nil {
		return nil
	}
	found, err := measure(p, &memberObject{spec, *facts})
	if err != nil {
		return nil
	}
	return &found
}

// forgetProfile forgets what is known of a revision that is no more in the kernel.
func (a *Agent) forgetProfile(uid, revision string) {
	id := [2]string{uid, revision}
	delete(a.profiles, id)
	delete(a.unmeasured, id)
}
