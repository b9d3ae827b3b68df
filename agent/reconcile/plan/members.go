package plan

import (
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// UIDsOf lists the applications of members.
func UIDsOf(members []Member) []string {
	return uidsOf(members, func(*Member) bool { return true })
}

// uidsOf lists the applications of those members that count.
func uidsOf(members []Member, counts func(*Member) bool) []string {
	var uids []string
	seen := make(map[string]bool, len(members))
	for i := range members {
		if uid := members[i].UID; !seen[uid] && counts(&members[i]) {
			uids, seen[uid] = append(uids, uid), true
		}
	}
	return uids
}

// Changed lists the applications with a member that does not run exactly so.
func Changed(members, running []Member) []string {
	runs := make(map[Member]bool, len(running))
	for _, m := range running {
		runs[m] = true
	}
	return uidsOf(members, func(m *Member) bool { return !runs[*m] })
}

// NamespacesOf are the namespaces of the members of some applications, or of all
// where none is named.
func NamespacesOf(members []Member, uids []string) []string {
	var all []string
	named := set(uids)
	for _, m := range members {
		if (len(uids) == 0 || named[m.UID]) && !slices.Contains(all, m.Identity.Namespace) {
			all = append(all, m.Identity.Namespace)
		}
	}
	return all
}

// Newcomers lists the applications with a member that does not run now.
func Newcomers(members, running []Member) []string {
	runs := programsOf(running)
	return uidsOf(members, func(m *Member) bool { return !runs[m.program()] })
}

// program is a program of a revision.
type program struct{ uid, revision, name string }

// programsOf are the programs of members.
func programsOf(members []Member) map[program]bool {
	all := make(map[program]bool, len(members))
	for i := range members {
		all[members[i].program()] = true
	}
	return all
}

func (m *Member) program() program { return program{m.UID, m.Revision, m.Program} }

// IsNew reports whether the member's program, of its revision, is not among those that run.
func IsNew(m Member, running []Member) bool {
	return !slices.ContainsFunc(running, func(r Member) bool {
		return r.UID == m.UID && r.Revision == m.Revision && r.Program == m.Program
	})
}

// Without returns the members of all applications but some.
func Without(members []Member, uids []string) []Member {
	out := set(uids)
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return out[m.UID] })
}

// ModeOf returns how members ask their chain to run; empty is Auto. Those that ask for nothing follow
// those that do, and no two that are admitted differ.
func ModeOf(members []Member) v1alpha1.XDPMode {
	for _, m := range members {
		if m.Mode != "" {
			return m.Mode
		}
	}
	return ""
}

// Leaving returns the members that run, and whose program the chain is to have no more in any revision.
func Leaving(members, running []Member) []Member {
	stays := make(map[program]bool, len(members))
	for i := range members {
		stays[program{uid: members[i].UID, name: members[i].Program}] = true
	}
	return slices.DeleteFunc(slices.Clone(running), func(m Member) bool { return stays[program{uid: m.UID, name: m.Program}] })
}

// Leavers are the applications that run and are to run no more.
func Leavers(members, running []Member) []string {
	stay := set(UIDsOf(members))
	return uidsOf(running, func(m *Member) bool { return !stay[m.UID] })
}
