package chainfit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// startedChain is what is known of an interface whose chain is being loaded. A load takes
// seconds, and who changes in less than that must not have it begin again for ever:
// what was begun is finished while it may run, and then comes what is wanted by then.
type startedChain struct {
	// members are those of the chain; nil where none is being loaded. order are the
	// newcomers among them by precedence, as it was when the load began.
	members []plan.Member
	order   []string
	// spoilers are the namespaces for whose changes a chain that was begun is of no
	// use. They change after the others.
	spoilers map[string]bool
}

// followStartedChains looks at what was begun, and what it is good for by now.
func (r *Round) followStartedChains() {
	for index, b := range r.started {
		want, running := r.chains.Of(index).Members, r.look.GivenTo(index)
		if len(want) == 0 || slices.Equal(running, want) {
			delete(r.started, index)
			continue
		}
		for _, namespace := range r.spoiled(b.members, want, running) {
			b.members, b.order, b.spoilers[namespace] = nil, nil, true
		}
	}
}

// spoiled lists the namespaces for whose members a chain that was begun may not run
// any more: programs that are neither wanted nor run until others take their place.
// Who left and came back meanwhile comes with the next one.
func (r *Round) spoiled(members, want, running []plan.Member) []string {
	var namespaces []string
	wanted := plan.UIDsOf(want)
	for _, m := range members {
		replaced := !plan.IsNew(m, running) && slices.Contains(wanted, m.UID) && !r.decisions.Withdrew(m.UID, m.Revision)
		if plan.IsNew(m, want) && !replaced {
			namespaces = append(namespaces, m.Identity.Namespace)
		}
	}
	return namespaces
}

// waitForReplacements has those wait that are to change on an interface after others: after the
// versions that take the place of withdrawn ones, and those who spoiled a load after
// all others.
func (r *Round) waitForReplacements(want plan.Chain, running []plan.Member) unfitChain {
	b := r.started[want.Device]
	if b != nil && b.members != nil && !r.visited[want.Device] {
		return nil
	}
	changed := plan.Changed(want.Members, running)
	later := slices.DeleteFunc(slices.Clone(changed), func(uid string) bool { return r.replaces(uid, want.Members, running) })
	if len(later) == len(changed) {
		later = slices.DeleteFunc(later, func(uid string) bool {
			return b == nil || !slices.ContainsFunc(want.Members, func(m plan.Member) bool { return m.UID == uid && b.spoilers[m.Identity.Namespace] })
		})
	}
	if len(later) == 0 || len(later) == len(changed) {
		return nil
	}
	return func() {
		for _, uid := range later {
			r.Waiting.postpone(uid, want.Device, fmt.Sprintf("it waits for its turn on %s of %s", plan.XDP, want.Interface))
		}
	}
}

// replaces reports whether an application runs a version in a chain that may run no
// more, and that is to go from it.
func (r *Round) replaces(uid string, members, running []plan.Member) bool {
	return slices.ContainsFunc(running, func(m plan.Member) bool {
		return m.UID == uid && plan.IsNew(m, members) && r.decisions.Withdrew(m.UID, m.Revision)
	})
}

// chainToLoad is the chain to load for an interface: the one that was begun, else the one
// that is wanted. A reconcile goes on once with what was begun, and then does what need
// not wait for it.
func (r *Round) chainToLoad(want plan.Chain) plan.Chain {
	if r.visited[want.Device] {
		return want
	}
	r.visited[want.Device] = true
	b := r.started[want.Device]
	if b == nil {
		b = &startedChain{spoilers: map[string]bool{}}
		r.started[want.Device] = b
	}
	if b.members == nil {
		b.members = want.Members
		return want
	}
	r.wanted[want.Device] = want.Members
	want.Members = b.members
	return want
}

// inOrder are the newcomers of a chain by precedence. The order stays while the chain
// is loaded: another one would be another load.
func (r *Round) inOrder(chain plan.Chain, newcomers []string) []admission.Claim {
	claims, b := r.admission.Precedence(chain, newcomers), r.started[chain.Device]
	switch {
	case b == nil || !slices.Equal(b.members, chain.Members):
	case b.order == nil:
		b.order = uidsOfClaims(claims)
	default:
		slices.SortStableFunc(claims, func(x, y admission.Claim) int {
			return cmp.Compare(slices.Index(b.order, x.UID), slices.Index(b.order, y.UID))
		})
	}
	return claims
}

// abandonChain ends what was begun for an interface: it cannot be made, and something else
// is to be tried at once.
func (r *Round) abandonChain(chain plan.Chain) {
	if b := r.started[chain.Device]; b != nil && slices.Equal(b.members, chain.Members) {
		b.members, b.order = nil, nil
		delete(r.visited, chain.Device)
		delete(r.wanted, chain.Device)
	}
}

// useLoaded takes a chain that was loaded. Where something else is wanted by now, it runs
// until that is loaded, and who changed meanwhile waits for that.
func (r *Round) useLoaded(chain plan.Chain, key string, v *pins.ChainVersion) unfitChain {
	index := chain.Device
	r.versions[index], r.versionKeys[index] = v, key
	want, others := r.wanted[index]
	if b := r.started[index]; b != nil && slices.Equal(b.members, chain.Members) {
		delete(r.started, index)
	}
	delete(r.wanted, index)
	r.Waiting.behind[index] = r.Waiting.behind[index] || others && !slices.Equal(want, chain.Members)
	if !others || slices.Equal(want, chain.Members) {
		return nil
	}
	return func() { r.decisions.RunInterim(chain, want) }
}

// endRetry is how long at most what ends a member waits for another attempt to load its
// chain.
const endRetry = 2 * time.Second

// patience is how long at most a chain is not loaded again that could not be loaded.
func (r *Round) patience(want, running []plan.Member) time.Duration {
	for _, m := range running {
		if plan.IsNew(m, want) && (r.decisions.IsGone(m.UID) || r.decisions.Withdrew(m.UID, m.Revision)) {
			return endRetry
		}
	}
	return r.longest
}
