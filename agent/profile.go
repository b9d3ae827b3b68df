package agent

import (
	"io"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/intent"
)

// measureAgain is how long a revision that could not be measured is left alone.
const measureAgain = time.Minute

// profileOf returns what is known of a revision in the kernel, and has it measured
// where nothing is.
func (rec *reconcile) profileOf(uid, revision string) chain.Profile {
	id := [2]string{uid, revision}
	if known, ok := rec.profiles[id]; ok {
		return known
	}
	o := rec.intentOf(uid, revision)
	if o == nil || rec.live.Revisions[uid][revision] == nil || rec.now.Sub(rec.unmeasured[id]) < measureAgain {
		return chain.Profile{}
	}
	// Nothing is fetched for this.
	if !rec.objects.Has(o.Payload().ObjectDigest) {
		return chain.Profile{}
	}
	key := "profile of " + build.Key(uid, revision)
	got, err := loads.Get[build.Profile](rec.loads, key, func() (loads.Request, error) { return rec.askProfile(*o), nil })
	if isPending(err) {
		return chain.Profile{}
	}
	rec.loads.Take(key)
	if err != nil {
		rec.opts.Log.Error("measure what programs take; they count as programs alone", "application", o.Payload().Application.String(), "error", err)
		rec.unmeasured[id] = rec.now
		return chain.Profile{}
	}
	rec.profiles[id] = got.Profile
	return rec.profiles[id]
}

// askProfile asks for a revision to be measured. It waits in turn with the loads of
// its namespace.
func (rec *reconcile) askProfile(o intent.Opened) loads.Request {
	files := rec.objects
	return loads.Request{
		Line: "profile of application " + o.Payload().UID, Tenants: []string{o.Payload().Application.Namespace},
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			return func(*btf.Cache) (io.Closer, error) {
				return build.Measure(o, files)
			}, nil
		},
	}
}

// forgetProfile forgets what is known of a revision that is no more in the kernel.
func (l *loop) forgetProfile(uid, revision string) {
	id := [2]string{uid, revision}
	delete(l.profiles, id)
	delete(l.unmeasured, id)
}
