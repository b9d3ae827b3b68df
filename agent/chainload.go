package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/rights"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// loadChain makes one program of the members. One alone is attached as it is,
// and has no key; others are loaded beside the loop, and belong to it until
// setChain takes them. It fails with loads.ErrLoading until the verifier is done.
//
// What does not fit is blamed on the suspect, else on the last member.
func (p *pass) loadChain(ifindex int, members, running []plan.Member, suspect string) (string, *kernel.ChainVersion, error) {
	if len(members) == 1 {
		v, err := p.loneMember(members[0])
		return "", v, err
	}
	key := p.chainKey(ifindex, members, suspect)
	v, err := loads.Get[*kernel.ChainVersion](p.loads, key, func() (loads.Request, error) { return p.askChain(ifindex, members, running, suspect) })
	if err != nil {
		return key, nil, err
	}
	return key, v, nil
}

// loneMember is the version of a chain with one member: its own program.
func (p *pass) loneMember(m plan.Member) (*kernel.ChainVersion, error) {
	r := p.live.Revisions[m.UID][m.Revision]
	if r == nil || r.Programs[plan.Instance(m.Program, plan.XDP, "")] == nil {
		return nil, &memberError{m.UID, fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)}
	}
	program, err := r.Programs[plan.Instance(m.Program, plan.XDP, "")].Clone()
	if err != nil {
		return nil, fmt.Errorf("load chain: %w", err)
	}
	return &kernel.ChainVersion{Members: []plan.Member{m}, Program: program}, nil
}

// chainKey names a chain of exactly these members, on exactly the maps that their
// revisions have now.
func (p *pass) chainKey(ifindex int, members []plan.Member, suspect string) string {
	var key strings.Builder
	fmt.Fprintf(&key, "chain %d %s", ifindex, suspect)
	for _, m := range members {
		fmt.Fprintf(&key, " %+v of %q", m, p.live.Revisions[m.UID][m.Revision].Key())
	}
	return key.String()
}

// endUse ends the use of a version in this pass. One without a key is freed.
func (p *pass) endUse(key string, v *kernel.ChainVersion) {
	if key == "" {
		p.logClose("chain", v)
	}
}

// releaseChosen ends the use of the version that was chosen for an interface.
func (p *pass) releaseChosen(ifindex int) {
	p.endUse(p.versionKeys[ifindex], p.versions[ifindex])
	delete(p.versions, ifindex)
	delete(p.versionKeys, ifindex)
}

// takeLoaded hands over the version that was chosen for an interface.
func (p *pass) takeLoaded(ifindex int) *kernel.ChainVersion {
	v := p.versions[ifindex]
	p.loads.Take(p.versionKeys[ifindex])
	delete(p.versions, ifindex)
	delete(p.versionKeys, ifindex)
	return v
}

// awaitChain makes the pass go on until a chain is loaded: the applications that
// change wait as they are, so that those that are to go need not wait for them.
// What only goes has the chain without it loaded at once, and waits for that.
func (p *pass) awaitChain(chain plan.Chain, running []plan.Member) unfitChain {
	changed, others := changes(chain.Members, running), p.wanted[chain.Ifindex]
	delete(p.wanted, chain.Ifindex)
	leaves := len(changed) == 0
	for _, uid := range changes(others, running) {
		if !slices.Contains(changed, uid) {
			changed = append(changed, uid)
		}
	}
	return func() {
		for _, uid := range changed {
			p.refuse(uid, loads.ErrLoading)
		}
		if leaves {
			p.await(chain, running, true)
		}
	}
}

// changes lists the applications with a member that does not run exactly so.
func changes(members, running []plan.Member) []string {
	return uidsOf(slices.DeleteFunc(slices.Clone(members), func(m plan.Member) bool { return slices.Contains(running, m) }))
}

// urgencyOf is what the load of a chain is for.
func (p *pass) urgencyOf(members, running []plan.Member) loads.Urgency {
	changed := changes(members, running)
	switch {
	case len(changed) == 0 && len(leavers(members, running)) > 0:
		return loads.ForEnding
	case slices.ContainsFunc(changed, func(uid string) bool { return p.replaces(uid, members, running) }):
		return loads.ForReplacing
	}
	return loads.ForNew
}

// askChain asks for the load of a chain.
func (p *pass) askChain(ifindex int, members, running []plan.Member, suspect string) (loads.Request, error) {
	parts, err := p.chainParts(members, suspect)
	if err != nil {
		return loads.Request{}, err
	}
	changed := changes(members, running)
	options := chain.Options{}
	if options.Owner, err = kernel.ChainOwner(members); err != nil {
		return loads.Request{}, err
	}
	return loads.Request{
		Line: fmt.Sprintf("chain of interface %d", ifindex), What: string(LoadChain),
		Urgency: p.urgencyOf(members, running), Tenants: namespacesOf(members, changed),
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			options.Runs = p.runsOf(ifindex)
			shared, err := p.shareMaps(members)
			if err != nil {
				return nil, err
			}
			files, build := p.objects, p.buildChain
			return func(*btf.Cache) (io.Closer, error) {
				defer shared.close()
				v, err := build(parts, files, options, shared)
				if err != nil {
					return nil, err
				}
				return v, nil
			}, nil
		},
	}, nil
}

// namespacesOf are the namespaces of the members of some applications, or of all
// where none is named.
func namespacesOf(members []plan.Member, uids []string) []string {
	var all []string
	for _, m := range members {
		if (len(uids) == 0 || slices.Contains(uids, m.UID)) && !slices.Contains(all, m.Identity.Namespace) {
			all = append(all, m.Identity.Namespace)
		}
	}
	return all
}

// buildChain links a chain and loads it. It runs beside the loop.
func buildChain(parts []chainPart, files *objects.Cache, o chain.Options, shared sharedMaps) (*kernel.ChainVersion, error) {
	linked, err := linkChain(parts, files, o)
	if err != nil {
		return nil, err
	}
	loaded, err := chain.Load(linked, shared.open, ebpf.ProgramOptions{})
	if err != nil {
		return nil, rights.ExplainLoad(err, rights.ToLoad(ebpf.XDP))
	}
	var members []plan.Member
	for _, part := range parts {
		members = append(members, part.member)
	}
	return &kernel.ChainVersion{Members: members, Program: loaded.Program, Counters: loaded.Counters}, nil
}

// chainPart is one member of a chain with all that linking needs of it but for its
// object.
type chainPart struct {
	key    string
	member plan.Member
	intent intent.Opened
	// isNew: it is blamed where the chain does not fit.
	isNew bool
}

// chainParts finds the intents that name the members' revisions, and sees to it that
// their objects are at hand.
func (p *pass) chainParts(members []plan.Member, suspect string) ([]chainPart, error) {
	var parts []chainPart
	keys := memberKeys(members)
	for i, m := range members {
		o := p.intentOf(m.UID, m.Revision)
		if o == nil {
			return nil, &memberError{m.UID, fmt.Errorf("link chain: the interface runs program %s of %s, whose intent this node has lost; send it again, or unload it", m.Program, m.Identity)}
		}
		if err := p.lostLately(m.UID); err != nil {
			return nil, &memberError{m.UID, err}
		}
		if err := p.available(o.Payload()); err != nil {
			return nil, &memberError{m.UID, err}
		}
		parts = append(parts, chainPart{key: keys[i], member: m, intent: *o, isNew: m.UID == suspect})
	}
	return parts, nil
}

// linkChain makes one program of the members. It touches no kernel.
func linkChain(parts []chainPart, files *objects.Cache, o chain.Options) (*chain.Linked, error) {
	var members []chain.Member
	read := map[string]*memberObject{}
	for _, part := range parts {
		m := part.member
		key := revisionKey(m.UID, m.Revision)
		if read[key] == nil {
			one, err := readMember(part.intent, files)
			if err != nil {
				return nil, &memberError{m.UID, err}
			}
			read[key] = one
		}
		one, err := read[key].member(m)
		if err != nil {
			return nil, &memberError{m.UID, err}
		}
		one.Key, one.New = part.key, part.isNew
		members = append(members, one)
	}
	return chain.Link(members, o)
}

// memberObject is the object of a revision with what is known of it. All members of
// the revision share it.
type memberObject struct {
	spec  *ebpf.CollectionSpec
	facts bytecode.Facts
}

// readMember reads the object of an intent whose programs are members of a chain.
func readMember(o intent.Opened, files *objects.Cache) (*memberObject, error) {
	object, err := files.Read(o.Payload().ObjectDigest)
	if err != nil {
		return nil, err
	}
	prepared, err := kernel.Prepare(o, object)
	if err != nil {
		return nil, err
	}
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return nil, fmt.Errorf("inspect object of %s: %w", o.Payload().Application, err)
	}
	return &memberObject{prepared.Spec, facts}, nil
}

// member is one program of the object as package chain takes it.
func (o *memberObject) member(m plan.Member) (chain.Member, error) {
	program, ok := o.facts.Program(m.Program)
	if !ok {
		return chain.Member{}, fmt.Errorf("link chain: the object of %s has no program %s", m.Identity, m.Program)
	}
	return chain.Member{
		Application: revisionKey(m.UID, m.Revision), Object: o.spec, Program: plan.Instance(m.Program, plan.XDP, ""), Facts: program,
		ProceedOn: m.ProceedOn, Tenant: m.Identity.Namespace,
	}, nil
}

func revisionKey(uid, revision string) string { return uid + "@" + revision }

// runsOf reads how often the members of the running chain ran, so that their
// counts go on.
func (p *pass) runsOf(ifindex int) map[string]uint64 {
	c := p.live.Chains[ifindex]
	if c == nil || c.Version == nil || c.Version.Counters == nil {
		return nil
	}
	counts, err := chain.ReadRuns(c.Version.Counters)
	if err != nil || len(counts) != len(c.Version.Members) {
		return nil
	}
	runs := map[string]uint64{}
	for i, key := range memberKeys(c.Version.Members) {
		runs[key] = counts[i]
	}
	return runs
}

// memberKeys names the members for people. Two applications of one name, one
// of them about to go, are told apart by their uids.
func memberKeys(members []plan.Member) []string {
	seen := map[string]int{}
	for _, m := range members {
		seen[m.Identity.String()+" "+m.Program]++
	}
	var keys []string
	for _, m := range members {
		key := m.Identity.String() + " " + m.Program
		if seen[key] > 1 {
			key += " (" + m.UID + ")"
		}
		keys = append(keys, key)
	}
	return keys
}

// sharedMaps are the maps of the members' revisions, held open apart from the
// agent's, by revisionKey.
type sharedMaps map[string]*kernel.Revision

// shareMaps opens the maps of the members' revisions once more, for a load that
// runs beside the loop.
func (p *pass) shareMaps(members []plan.Member) (sharedMaps, error) {
	shared := sharedMaps{}
	for _, m := range members {
		key := revisionKey(m.UID, m.Revision)
		if shared[key] != nil {
			continue
		}
		r, err := p.live.Revisions[m.UID][m.Revision].Share()
		if err != nil {
			shared.close()
			return nil, fmt.Errorf("load chain: %w", err)
		}
		if r == nil {
			shared.close()
			return nil, &memberError{m.UID, fmt.Errorf("load chain: revision %s of %s is not in the kernel", m.Revision, m.Identity)}
		}
		shared[key] = r
	}
	return shared, nil
}

func (s sharedMaps) close() {
	for _, r := range s {
		_ = r.Close()
	}
}

// open finds the map of a member's revision.
func (s sharedMaps) open(ref chain.MapRef) (*ebpf.Map, error) {
	if r := s[ref.Application]; r != nil && r.Maps[ref.Name] != nil {
		return r.Maps[ref.Name], nil
	}
	return nil, errors.New("revision " + ref.Application + " has no map " + ref.Name + " pinned")
}
