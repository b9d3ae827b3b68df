package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/bytecode"
)

// fitChains loads the chain of every interface whose members change, before
// any link is touched. A newcomer that does not fit is refused alone: its
// application goes on as it was, and the others as they are to.
func (p *pass) fitChains() {
	for range len(p.apps) + 1 {
		refused := p.loadChains()
		if refused == nil {
			return
		}
		p.refuse(refused.uid, refused.err)
	}
}

// refusal is an application that a chain has no room for.
type refusal struct {
	uid string
	err error
}

// loadChains loads what changed and returns the first refusal.
func (p *pass) loadChains() *refusal {
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
		if r := p.fit(want, running); r != nil {
			return r
		}
	}
	return nil
}

// fit loads one chain. Where it does not load with all newcomers, they are
// tried one application at a time, so that the right one is refused.
func (p *pass) fit(want plan.Chain, running []plan.Member) *refusal {
	v, err := p.loadChain(want.Ifindex, want.Members, running)
	if err == nil {
		p.versions[want.Ifindex] = v
		return nil
	}
	newcomers := newcomersOf(want.Members, running)
	for i, uid := range newcomers {
		if i == len(newcomers)-1 {
			return &refusal{uid, err}
		}
		v, one := p.loadChain(want.Ifindex, without(want.Members, newcomers[i+1:]), running)
		if one != nil {
			return &refusal{uid, one}
		}
		p.logClose("chain", v)
	}
	// Nobody is new, and yet it does not load: whoever is last gives way.
	return &refusal{want.Members[len(want.Members)-1].UID, err}
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
			return nil, fmt.Errorf("load chain: program %s of %s is not in the kernel", m.Program, m.Identity)
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
	loaded, err := chain.Load(linked, p.openMap, ebpf.ProgramOptions{})
	if err != nil {
		return nil, err
	}
	v := &kernel.ChainVersion{Members: members, Program: loaded.Program, Counters: loaded.Counters}
	if err := kernel.BindChainOwner(loaded.Program, members); err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	return v, nil
}

func (p *pass) linkChain(ifindex int, members, running []plan.Member) (*chain.Linked, error) {
	var places []chain.Member
	keys := memberKeys(members)
	for i, m := range members {
		prepared, facts, err := p.chainMember(m)
		if err != nil {
			return nil, err
		}
		places = append(places, chain.Member{
			Key: keys[i], Application: m.UID + "@" + m.Revision,
			Object: prepared.Spec, Program: plan.Instance(m.Program, plan.XDP, ""), Facts: facts,
			ProceedOn: m.ProceedOn, New: isNew(m, running),
		})
	}
	return chain.Link(places, chain.Options{Runs: p.runsOf(ifindex)})
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
