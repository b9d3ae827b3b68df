package chainfit

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// load makes one program of the members. One alone is attached as it is,
// and has no key; others are loaded beside the loop, and belong to it until
// it is taken. It fails with build.ErrLoading until the verifier is done.
//
// What does not fit is blamed on the suspect, else on the last member.
func (r *Round) load(d plan.Device, members, running []plan.Member, suspect string) (string, *pins.ChainVersion, error) {
	if len(members) == 1 {
		v, err := r.loneMember(members[0])
		return "", v, err
	}
	key := r.chainKey(d, members, suspect)
	v, err := build.Get[*pins.ChainVersion](r.loadRound, key, func() (build.Request, error) { return r.askChain(d, members, running, suspect) })
	if err != nil {
		return key, nil, err
	}
	return key, v, nil
}

// loneMember is the version of a chain with one member: its own program.
func (r *Round) loneMember(m plan.Member) (*pins.ChainVersion, error) {
	revision := r.look.Set.Revisions[m.UID][m.Revision]
	if revision == nil || revision.Programs[plan.Instance(m.Program, plan.XDP, "")] == nil {
		return nil, &build.MemberError{UID: m.UID, Err: fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)}
	}
	program, err := revision.Programs[plan.Instance(m.Program, plan.XDP, "")].Clone()
	if err != nil {
		return nil, fmt.Errorf("load chain: %w", err)
	}
	return &pins.ChainVersion{Members: []plan.Member{m}, Program: program}, nil
}

// chainKey names a chain of exactly these members, on exactly the maps that their
// revisions have now.
func (r *Round) chainKey(d plan.Device, members []plan.Member, suspect string) string {
	var key strings.Builder
	fmt.Fprintf(&key, "chain %s %s", d, suspect)
	for _, m := range members {
		fmt.Fprintf(&key, " %+v of %q", m, r.look.Set.Revisions[m.UID][m.Revision].Key())
	}
	return key.String()
}

// endUse ends the use of a version in this reconcile. One without a key is freed.
func (r *Round) endUse(key string, v *pins.ChainVersion) {
	if key == "" {
		r.look.Set.Release("chain", v)
	}
}

// releaseChosen ends the use of the version that was chosen for an interface.
func (r *Round) releaseChosen(d plan.Device) {
	r.endUse(r.versionKeys[d], r.versions[d])
	delete(r.versions, d)
	delete(r.versionKeys, d)
}

// Take hands over the version that was chosen for an interface, where it has these members;
// else it returns nil.
func (r *Round) Take(d plan.Device, members []plan.Member) *pins.ChainVersion {
	v := r.versions[d]
	if v == nil || !slices.Equal(v.Members, members) {
		return nil
	}
	r.loadRound.Take(r.versionKeys[d])
	delete(r.versions, d)
	delete(r.versionKeys, d)
	return v
}

// Load loads and hands over a chain that is planned and was not fitted, as load does.
func (r *Round) Load(d plan.Device, members []plan.Member) (*pins.ChainVersion, error) {
	key, v, err := r.load(d, members, nil, "")
	if err == nil {
		r.loadRound.Take(key)
	}
	return v, err
}

// awaitChain makes the reconcile go on until a chain is loaded: the applications that
// change wait as they are, so that those that are to go need not wait for them.
// What only goes has the chain without it loaded at once, and waits for that.
func (r *Round) awaitChain(chain plan.Chain, running []plan.Member) unfitChain {
	changed, others := plan.Changed(chain.Members, running), r.wanted[chain.Device]
	delete(r.wanted, chain.Device)
	leaves := len(changed) == 0
	for _, uid := range plan.Changed(others, running) {
		if !slices.Contains(changed, uid) {
			changed = append(changed, uid)
		}
	}
	return func() {
		for _, uid := range changed {
			r.decisions.Reject(uid, build.ErrLoading)
		}
		if leaves {
			r.decisions.Await(chain, running, build.ErrLoading)
		}
	}
}

// urgencyOf is what the load of a chain is for.
func (r *Round) urgencyOf(members, running []plan.Member) build.Urgency {
	changed := plan.Changed(members, running)
	switch {
	case len(changed) == 0 && len(plan.Leavers(members, running)) > 0:
		return build.ForEnding
	case slices.ContainsFunc(changed, func(uid string) bool { return r.replaces(uid, members, running) }):
		return build.ForReplacing
	}
	return build.ForNew
}

// askChain asks for the load of a chain.
func (r *Round) askChain(d plan.Device, members, running []plan.Member, suspect string) (build.Request, error) {
	parts, err := r.parts(members, suspect)
	if err != nil {
		return build.Request{}, err
	}
	for i := range parts {
		parts[i].Joins = plan.IsNew(parts[i].Member, running)
	}
	changed := plan.Changed(members, running)
	options := chain.Options{}
	if options.Owner, err = owner.OfChain(members); err != nil {
		return build.Request{}, err
	}
	return build.Request{
		Line: fmt.Sprintf("chain of interface %s", d), What: build.ChainLoad,
		Urgency: r.urgencyOf(members, running), Tenants: plan.NamespacesOf(members, changed),
		Start: func() (build.Run, error) {
			options.Counts = r.countsOf(d)
			shared, err := build.Share(r.look.Set.Revisions, members)
			if err != nil {
				return nil, err
			}
			files, load := r.objectRound.Cache, r.Build
			return func(turn build.Turn) (io.Closer, error) {
				defer shared.Close()
				v, err := load(parts, files, options, shared, turn)
				if err != nil {
					return nil, err
				}
				return v, nil
			}, nil
		},
	}, nil
}

// parts finds the intents that name the members' revisions, and sees to it that
// their objects are at hand.
func (r *Round) parts(members []plan.Member, suspect string) ([]build.Part, error) {
	var parts []build.Part
	keys := build.MemberKeys(members)
	for i, m := range members {
		o := r.decisions.IntentOf(m.UID, m.Revision)
		if o == nil {
			return nil, &build.MemberError{
				UID: m.UID,
				Err: fmt.Errorf("link chain: the interface runs program %s of %s, whose intent this node has lost; send it again, or unload it", m.Program, m.Identity),
			}
		}
		if err := r.decisions.LostLately(m.UID); err != nil {
			return nil, &build.MemberError{UID: m.UID, Err: err}
		}
		if err := r.objectRound.Available(o.Payload()); err != nil {
			return nil, &build.MemberError{UID: m.UID, Err: err}
		}
		parts = append(parts, build.Part{Key: keys[i], Member: m, Intent: *o, IsNew: m.UID == suspect})
	}
	return parts, nil
}

// countsOf reads what the members of the running chain returned, so that their counts go on.
func (r *Round) countsOf(d plan.Device) map[string]chain.Counts {
	c := r.look.Set.Chains[d]
	if c == nil || c.Version == nil || c.Version.Counters == nil {
		return nil
	}
	read, err := chain.ReadCounts(c.Version.Counters, len(c.Version.Members))
	if err != nil {
		return nil
	}
	counts := map[string]chain.Counts{}
	for i, key := range build.MemberKeys(c.Version.Members) {
		counts[key] = read[i]
	}
	return counts
}
