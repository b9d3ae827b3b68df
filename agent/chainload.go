package agent

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
)

// loadChain makes one program of the members. One alone is attached as it is,
// and has no key; others are loaded beside the loop, and belong to it until
// setChain takes them. It fails with loads.ErrLoading until the verifier is done.
//
// What does not fit is blamed on the suspect, else on the last member.
func (rec *reconcile) loadChain(ifindex int, members, running []plan.Member, suspect string) (string, *kernel.ChainVersion, error) {
	if len(members) == 1 {
		v, err := rec.loneMember(members[0])
		return "", v, err
	}
	key := rec.chainKey(ifindex, members, suspect)
	v, err := loads.Get[*kernel.ChainVersion](rec.loads, key, func() (loads.Request, error) { return rec.askChain(ifindex, members, running, suspect) })
	if err != nil {
		return key, nil, err
	}
	return key, v, nil
}

// loneMember is the version of a chain with one member: its own program.
func (rec *reconcile) loneMember(m plan.Member) (*kernel.ChainVersion, error) {
	r := rec.live.Revisions[m.UID][m.Revision]
	if r == nil || r.Programs[plan.Instance(m.Program, plan.XDP, "")] == nil {
		return nil, &build.MemberError{UID: m.UID, Err: fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)}
	}
	program, err := r.Programs[plan.Instance(m.Program, plan.XDP, "")].Clone()
	if err != nil {
		return nil, fmt.Errorf("load chain: %w", err)
	}
	return &kernel.ChainVersion{Members: []plan.Member{m}, Program: program}, nil
}

// chainKey names a chain of exactly these members, on exactly the maps that their
// revisions have now.
func (rec *reconcile) chainKey(ifindex int, members []plan.Member, suspect string) string {
	var key strings.Builder
	fmt.Fprintf(&key, "chain %d %s", ifindex, suspect)
	for _, m := range members {
		fmt.Fprintf(&key, " %+v of %q", m, rec.live.Revisions[m.UID][m.Revision].Key())
	}
	return key.String()
}

// endUse ends the use of a version in this reconcile. One without a key is freed.
func (rec *reconcile) endUse(key string, v *kernel.ChainVersion) {
	if key == "" {
		logClose(rec.opts.Log, "chain", v)
	}
}

// releaseChosen ends the use of the version that was chosen for an interface.
func (rec *reconcile) releaseChosen(ifindex int) {
	rec.endUse(rec.chains.versionKeys[ifindex], rec.chains.versions[ifindex])
	delete(rec.chains.versions, ifindex)
	delete(rec.chains.versionKeys, ifindex)
}

// takeLoaded hands over the version that was chosen for an interface.
func (rec *reconcile) takeLoaded(ifindex int) *kernel.ChainVersion {
	v := rec.chains.versions[ifindex]
	rec.loads.Take(rec.chains.versionKeys[ifindex])
	delete(rec.chains.versions, ifindex)
	delete(rec.chains.versionKeys, ifindex)
	return v
}

// awaitChain makes the reconcile go on until a chain is loaded: the applications that
// change wait as they are, so that those that are to go need not wait for them.
// What only goes has the chain without it loaded at once, and waits for that.
func (rec *reconcile) awaitChain(chain plan.Chain, running []plan.Member) unfitChain {
	changed, others := plan.Changed(chain.Members, running), rec.chains.wanted[chain.Ifindex]
	delete(rec.chains.wanted, chain.Ifindex)
	leaves := len(changed) == 0
	for _, uid := range plan.Changed(others, running) {
		if !slices.Contains(changed, uid) {
			changed = append(changed, uid)
		}
	}
	return func() {
		for _, uid := range changed {
			rec.reject(uid, loads.ErrLoading)
		}
		if leaves {
			rec.await(chain, running, loads.ErrLoading)
		}
	}
}

// urgencyOf is what the load of a chain is for.
func (rec *reconcile) urgencyOf(members, running []plan.Member) loads.Urgency {
	changed := plan.Changed(members, running)
	switch {
	case len(changed) == 0 && len(plan.Leavers(members, running)) > 0:
		return loads.ForEnding
	case slices.ContainsFunc(changed, func(uid string) bool { return rec.replaces(uid, members, running) }):
		return loads.ForReplacing
	}
	return loads.ForNew
}

// askChain asks for the load of a chain.
func (rec *reconcile) askChain(ifindex int, members, running []plan.Member, suspect string) (loads.Request, error) {
	parts, err := rec.chainParts(members, suspect)
	if err != nil {
		return loads.Request{}, err
	}
	changed := plan.Changed(members, running)
	options := chain.Options{}
	if options.Owner, err = kernel.ChainOwner(members); err != nil {
		return loads.Request{}, err
	}
	return loads.Request{
		Line: fmt.Sprintf("chain of interface %d", ifindex), What: string(LoadChain),
		Urgency: rec.urgencyOf(members, running), Tenants: plan.NamespacesOf(members, changed),
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			options.Runs = rec.runsOf(ifindex)
			shared, err := build.Share(rec.live.Revisions, members)
			if err != nil {
				return nil, err
			}
			files, load := rec.objects.cache, rec.buildChain
			return func(*btf.Cache) (io.Closer, error) {
				defer shared.Close()
				v, err := load(parts, files, options, shared)
				if err != nil {
					return nil, err
				}
				return v, nil
			}, nil
		},
	}, nil
}

// chainParts finds the intents that name the members' revisions, and sees to it that
// their objects are at hand.
func (rec *reconcile) chainParts(members []plan.Member, suspect string) ([]build.Part, error) {
	var parts []build.Part
	keys := build.MemberKeys(members)
	for i, m := range members {
		o := rec.intentOf(m.UID, m.Revision)
		if o == nil {
			return nil, &build.MemberError{UID: m.UID, Err: fmt.Errorf("link chain: the interface runs program %s of %s, whose intent this node has lost; send it again, or unload it", m.Program, m.Identity)}
		}
		if err := rec.lostLately(m.UID); err != nil {
			return nil, &build.MemberError{UID: m.UID, Err: err}
		}
		if err := rec.objects.available(o.Payload()); err != nil {
			return nil, &build.MemberError{UID: m.UID, Err: err}
		}
		parts = append(parts, build.Part{Key: keys[i], Member: m, Intent: *o, IsNew: m.UID == suspect})
	}
	return parts, nil
}

// runsOf reads how often the members of the running chain ran, so that their
// counts go on.
func (rec *reconcile) runsOf(ifindex int) map[string]uint64 {
	c := rec.live.Chains[ifindex]
	if c == nil || c.Version == nil || c.Version.Counters == nil {
		return nil
	}
	counts, err := chain.ReadRuns(c.Version.Counters)
	if err != nil || len(counts) != len(c.Version.Members) {
		return nil
	}
	runs := map[string]uint64{}
	for i, key := range build.MemberKeys(c.Version.Members) {
		runs[key] = counts[i]
	}
	return runs
}
