package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/kernel"
)

// IsIdle is what a sweep of Run asks before it spends a turn.
func (a *Agent) IsIdle() bool { return a.isIdle() }

// RefuseChains has chains fail to load as refuse says of the names of their members'
// applications.
func (a *Agent) RefuseChains(refuse func(members []string) error) {
	a.work.Lock()
	defer a.work.Unlock()
	a.buildChain = func(parts []chainPart, objects *cache, o chain.Options, shared sharedMaps) (*kernel.ChainVersion, error) {
		var members []string
		for _, part := range parts {
			members = append(members, part.member.Identity.Name)
		}
		if err := refuse(members); err != nil {
			return nil, err
		}
		return buildChain(parts, objects, o, shared)
	}
}

// IsLoading reports whether the verifier is at work.
func (a *Agent) IsLoading() bool {
	a.work.Lock()
	defer a.work.Unlock()
	return slices.ContainsFunc(a.loads.lanes, func(one *lane) bool {
		if one.load == nil {
			return false
		}
		select {
		case <-one.load.done:
			return false
		default:
			return true
		}
	})
}

// Lookups returns how many look-ups of targets wait for a file system.
func (a *Agent) Lookups() int {
	a.work.Lock()
	defer a.work.Unlock()
	n := 0
	for _, one := range a.lookups {
		if !one.isDone() {
			n++
		}
	}
	return n
}
