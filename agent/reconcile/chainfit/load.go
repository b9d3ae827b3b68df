package chainfit

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/intent"
)

// load makes one program of the members. One alone is attached as it is, has no key, and is opened when it is handed
// over; others are loaded beside the loop, and belong to it until they are taken. It fails with build.ErrLoading until
// the verifier is done. named is their chainKey.
//
// What does not fit is blamed on the suspect, else on the last member.
func (r *Round) load(named string, d plan.Device, members, running []plan.Member, suspect string) (string, *pins.ChainVersion, error) {
	if len(members) == 1 {
		_, err := r.loaded(members[0])
		return "", &pins.ChainVersion{Members: members}, err
	}
	v, err := build.Get[*pins.ChainVersion](r.loadRound, named, func() (build.Request, error) { return r.askChain(d, members, running, suspect) })
	if err != nil {
		return named, nil, err
	}
	return named, v, nil
}

// loaded returns the program of a member as its revision has it in the kernel.
func (r *Round) loaded(m plan.Member) (*ebpf.Program, error) {
	program := programOf(m, r.look.Open)
	if program == nil {
		return nil, &build.MemberError{UID: m.UID, Err: fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)}
	}
	return program, nil
}

// programOf is the program of a member as its revision has it in the kernel; nil where it is not there.
func programOf(m plan.Member, s *live.Open) *ebpf.Program {
	revision := s.Revision(m.UID, m.Revision)
	if revision == nil {
		return nil
	}
	return revision.Programs[plan.Instance(m.Program, plan.XDP, "")]
}

// chainKey names a chain of exactly these members, on exactly the maps that their
// revisions have now.
func (r *Round) chainKey(d plan.Device, members []plan.Member, suspect string) string {
	key := make([]byte, 0, 64+256*len(members))
	key = append(key, "chain "+d.String()+" "+suspect...)
	for i := range members {
		m := &members[i]
		for _, part := range []string{m.UID, m.Revision, m.Program, m.Taken, string(m.Mode), r.revisionKeys.of(m, r.look.Open)} {
			key = strconv.AppendQuote(append(key, ' '), part)
		}
		key = strconv.AppendInt(append(key, ' '), int64(m.Priority), 10)
		key = strconv.AppendBool(append(key, ' '), m.AfterNamespaces)
		key = strconv.AppendUint(append(key, ' '), uint64(m.ProceedOn), 10)
	}
	return string(key)
}

// revisionKeys are those of revisions as they are in the kernel, each of which is made once.
type revisionKeys map[*loader.Revision]string

// of returns the loader.Revision.Key of a member's revision.
func (k revisionKeys) of(m *plan.Member, s *live.Open) string {
	revision := s.Revision(m.UID, m.Revision)
	key, known := k[revision]
	if !known {
		key = revision.Key()
		k[revision] = key
	}
	return key
}

// Take hands over the version that was loaded for an interface, where it has these members;
// else, and for one member alone, it returns nil.
func (r *Round) Take(d plan.Device, members []plan.Member) *pins.ChainVersion {
	v := r.versions[d]
	if v == nil || v.Program == nil || !slices.Equal(v.Members, members) {
		return nil
	}
	r.loadRound.Take(r.versionKeys[d])
	delete(r.versions, d)
	delete(r.versionKeys, d)
	return v
}

// Load loads and hands over a chain that is planned and was not taken, as load does.
func (r *Round) Load(d plan.Device, members []plan.Member) (*pins.ChainVersion, error) {
	if len(members) == 1 {
		return r.loneMember(members[0])
	}
	key, v, err := r.load(r.chainKey(d, members, ""), d, members, nil, "")
	if err == nil {
		r.loadRound.Take(key)
	}
	return v, err
}

// loneMember is the version of a chain with one member: its own program, opened once more.
func (r *Round) loneMember(m plan.Member) (*pins.ChainVersion, error) {
	program, err := r.loaded(m)
	if err != nil {
		return nil, err
	}
	if program, err = plain.Of(program.Clone()); err != nil {
		return nil, fmt.Errorf("load chain: %w", err)
	}
	return &pins.ChainVersion{Members: []plan.Member{m}, Program: program}, nil
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
		Urgency: r.urgencyOf(members, running), Tenants: plan.NamespacesOf(members, changed), For: identitiesOf(members, changed),
		Start: func() (build.Run, error) {
			options.Counts = r.countsOf(d)
			shared, err := build.Share(r.look.Revisions(), members)
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

// identitiesOf are the applications with the UIDs, one each, among members.
func identitiesOf(members []plan.Member, uids []string) (all []v1alpha1.Identity) {
	for _, m := range members {
		if slices.Contains(uids, m.UID) && !slices.Contains(all, m.Identity) {
			all = append(all, m.Identity)
		}
	}
	return all
}

// parts finds the intents that name the members' revisions, and sees to it that
// their objects are at hand.
func (r *Round) parts(members []plan.Member, suspect string) ([]build.Part, error) {
	var parts []build.Part
	for _, m := range members {
		o, err := r.intentOf(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, build.Part{Member: m, Intent: *o, IsNew: m.UID == suspect})
	}
	for i, key := range build.MemberKeys(members) {
		parts[i].Key = key
	}
	return parts, nil
}

// intentOf finds the intent that names a member's revision, and sees to it that the object is at hand. It fails with a
// *build.MemberError.
func (r *Round) intentOf(m plan.Member) (*intent.Opened, error) {
	o := r.decisions.IntentOf(m.UID, m.Revision)
	if o == nil {
		return nil, lostIntent(m)
	}
	if err := r.decisions.LostLately(m.UID); err != nil {
		return nil, &build.MemberError{UID: m.UID, Err: err}
	}
	if err := r.objectRound.Available(o.Payload()); err != nil {
		return nil, &build.MemberError{UID: m.UID, Err: err}
	}
	return o, nil
}

// lostIntent is the error of a member whose intent is not known here.
func lostIntent(m plan.Member) *build.MemberError {
	return &build.MemberError{
		UID: m.UID,
		Err: fmt.Errorf("link chain: the interface runs program %s of %s, whose intent this node has lost; send it again, or unload it", m.Program, m.Identity),
	}
}

// countsOf reads what the members of the running chain returned, so that their counts go on.
func (r *Round) countsOf(d plan.Device) map[string]chain.Counts {
	c := r.look.Chain(d)
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
