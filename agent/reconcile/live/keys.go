package live

import "github.com/skep-dev/skep/agent/reconcile/plan"

// keys remember the keys of attachments, which are a hash of all that they are of, and are asked for in each reconcile for each
// attachment. A key depends on Attachment.Unnamed alone, with which what is remembered is compared in whole.
type keys struct{ known map[spot]keyed }

// spareKeys is how many keys are kept beside two for each link and chain, before all are forgotten for those of pods that went.
const spareKeys = 4096

// bound forgets keys of which there are too many for so many links and chains.
func (k *keys) bound(n int) {
	if len(k.known) > 2*n+spareKeys {
		clear(k.known)
	}
}

// spot is what few attachments have in common. Of those that do, the last one is remembered.
type spot struct {
	program, hook, container, function string
	netns, cgroup                      uint64
	ifindex                            int
}

// keyed is an attachment with its key.
type keyed struct {
	of  *plan.Attachment
	key string
}

// of returns the key of an attachment.
func (k *keys) of(a *plan.Attachment) string {
	at := spot{a.Program, a.Hook, a.Container, a.Function, a.NetnsID, a.CgroupID, a.Ifindex}
	is := a.Unnamed()
	if known, ok := k.known[at]; ok && *known.of == is {
		return known.key
	}
	kept := is
	one := keyed{&kept, kept.Key()}
	put(&k.known, at, one)
	return one.key
}

// KeyOf is Key of an attachment, made once.
func (l *Look) KeyOf(a *plan.Attachment) string { return l.Set.keys.of(a) }
