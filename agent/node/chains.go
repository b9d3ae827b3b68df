package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/rights"
	"github.com/skep-dev/skep/bytecode"
)

// fitChains loads the chain of every interface whose members change, before
// any link is touched. A newcomer that does not fit is refused alone: its
// application goes on as it was, and the others as they are to.
func (p *pass) fitChains() {
	// Each turn refuses, takes out or leaves something more.
	for range (len(p.apps) + 2) * (len(plan.WantedChains(p.want, p.state)) + 1) {
		misfit := p.loadChains()
		if misfit == nil {
			return
		}
		misfit()
	}
}

// misfit makes the pass go on without what does not fit into a chain.
type misfit func()

// loadChains loads what changed, up to the first that does not fit.
func (p *pass) loadChains() misfit {
	for _, want := range plan.WantedChains(p.want, p.state) {
		have := p.chainOf(want.Ifindex)
		if len(want.Members) == 0 || have != nil && slices.Equal(have.Members, want.Members) {
			continue
		}
		if v := p.versions[want.Ifindex]; v != nil {
			if slices.Equal(v.Members, want.Members) {
				continue
			}
			p.logClose("chain", v)
			delete(p.versions, want.Ifindex)
		}
		var running []plan.Member
		if have != nil {
			running = have.Members
		}
		if m := p.fit(want, running); m != nil {
			return m
		}
	}
	return nil
}

// fit loads one chain.
func (p *pass) fit(want plan.Chain, running []plan.Member) misfit {
	v, err := p.loadChain(want.Ifindex, want.Members, running)
	if err == nil {
		p.versions[want.Ifindex] = v
		return nil
	}
	if lost := new(memberError); errors.As(err, &lost) {
		return p.without(want, running, lost)
	}
	newcomers := newcomersOf(want.Members, running)
	if len(newcomers) == 0 {
		return func() { p.leave(want, running, err) }
	}
	uid, err := p.misfitOf(want, running, newcomers, err)
	return func() { p.refuse(uid, err) }
}

// misfitOf tries the newcomers one application at a time, so that the right one
// is refused.
func (p *pass) misfitOf(want plan.Chain, running []plan.Member, newcomers []string, all error) (string, error) {
	last := len(newcomers) - 1
	for i, uid := range newcomers[:last] {
		v, err := p.loadChain(want.Ifindex, without(want.Members, newcomers[i+1:]), running)
		if err != nil {
			return uid, err
		}
		p.logClose("chain", v)
	}
	return newcomers[last], all
}

// newcomersOf lists the applications with a member that does not run now.
func newcomersOf(members, running []plan.Member) []string {
	var uids []string
	for _, m := range members {
		if isNew(m, running) && !slices.Contains(uids, m.UID) {
			uids = append(uids, m.UID)
		}
	}
	return uids
}

func isNew(m plan.Member, running []plan.Member) bool {
	return !slices.ContainsFunc(running, func(r plan.Member) bool {
		return r.UID == m.UID && r.Revision == m.Revision && r.Program == m.Program
	})
}

func without(members []plan.Member, uids []string) []plan.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m plan.Member) bool { return slices.Contains(uids, m.UID) })
}

// chainOf finds the interface's chain that runs.
func (p *pass) chainOf(ifindex int) *plan.Chain {
	for i, c := range p.state.Chains {
		if c.Ifindex == ifindex && !c.Severed {
			return &p.state.Chains[i]
		}
	}
	return nil
}

// loadChain makes one program of the members. One alone is attached as it is.
func (p *pass) loadChain(ifindex int, members, running []plan.Member) (*kernel.ChainVersion, error) {
	if len(members) == 1 {
		m := members[0]
		r := p.held.revisions[m.UID][m.Revision]
		if r == nil || r.Programs[plan.Instance(m.Program, plan.XDP, "")] == nil {
			return nil, &memberError{m.UID, fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)}
		}
		program, err := r.Programs[plan.Instance(m.Program, plan.XDP, "")].Clone()
		if err != nil {
			return nil, fmt.Errorf("load chain: %w", err)
		}
		return &kernel.ChainVersion{Members: members, Program: program}, nil
	}
	linked, err := p.linkChain(ifindex, members, running)
	if err != nil {
		return nil, err
	}
	began := p.opts.Clock()
	loaded, err := chain.Load(linked, p.openMap, ebpf.ProgramOptions{})
	p.opts.Observer.Loaded(LoadChain, p.opts.Clock().Sub(began), err)
	if err != nil {
		return nil, rights.ExplainLoad(err, rights.ToLoad(ebpf.XDP))
	}
	return &kernel.ChainVersion{Members: members, Program: loaded.Program, Counters: loaded.Counters}, nil
}

func (p *pass) linkChain(ifindex int, members, running []plan.Member) (*chain.Linked, error) {
	var places []chain.Member
	keys := memberKeys(members)
	for i, m := range members {
		prepared, facts, err := p.chainMember(m)
		if err != nil {
			return nil, &memberError{m.UID, err}
		}
		places = append(places, chain.Member{
			Key: keys[i], Application: m.UID + "@" + m.Revision,
			Object: prepared.Spec, Program: plan.Instance(m.Program, plan.XDP, ""), Facts: facts,
			ProceedOn: m.ProceedOn, New: isNew(m, running),
		})
	}
	owner, err := kernel.ChainOwner(members)
	if err != nil {
		return nil, err
	}
	return chain.Link(places, chain.Options{Runs: p.runsOf(ifindex), Owner: owner})
}

// runsOf reads how often the members of the running chain ran, so that their
// counts go on.
func (p *pass) runsOf(ifindex int) map[string]uint64 {
	c := p.held.chains[ifindex]
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

// chainMember finds a member's object and facts by the intent that names its
// revision.
func (p *pass) chainMember(m plan.Member) (*kernel.Prepared, bytecode.Program, error) {
	o := p.intentOf(m.UID, m.Revision)
	if o == nil {
		return nil, bytecode.Program{}, fmt.Errorf("link chain: the interface runs program %s of %s, whose intent this node has lost; send it again, or unload it", m.Program, m.Identity)
	}
	if err := p.lostLately(m.UID); err != nil {
		return nil, bytecode.Program{}, err
	}
	prepared, err := p.prepare(*o)
	if err != nil {
		return nil, bytecode.Program{}, err
	}
	facts, err := p.factsOfObject(*o)
	if err != nil {
		return nil, bytecode.Program{}, err
	}
	one, ok := facts.Program(m.Program)
	if !ok {
		return nil, bytecode.Program{}, fmt.Errorf("link chain: the object of %s has no program %s", m.Identity, m.Program)
	}
	return prepared, one, nil
}

// openMap finds the pinned map of a member's revision.
func (p *pass) openMap(ref chain.MapRef) (*ebpf.Map, error) {
	for uid, revisions := range p.held.revisions {
		for name, r := range revisions {
			if uid+"@"+name == ref.Application {
				if m := r.Maps[ref.Name]; m != nil {
					return m, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("revision %s has no map %s pinned", ref.Application, ref.Name)
}
