package plan

import (
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// UIDsOf lists the applications of members.
func UIDsOf(members []Member) []string {
	var uids []string
	for _, m := range members {
		if !slices.Contains(uids, m.UID) {
			uids = append(uids, m.UID)
		}
	}
	return uids
}

// Changed lists the applications with a member that does not run exactly so.
func Changed(members, running []Member) []string {
	return UIDsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return slices.Contains(running, m) }))
}

// NamespacesOf are the namespaces of the members of some applications, or of all
// where none is named.
func NamespacesOf(members []Member, uids []string) []string {
	var all []string
	for _, m := range members {
		if (len(uids) == 0 || slices.Contains(uids, m.UID)) && !slices.Contains(all, m.Identity.Namespace) {
			all = append(all, m.Identity.Namespace)
		}
	}
	return all
}

// Newcomers lists the applications with a member that does not run now.
func Newcomers(members, running []Member) []string {
	var uids []string
	for _, m := range members {
		if IsNew(m, running) && !slices.Contains(uids, m.UID) {
			uids = append(uids, m.UID)
		}
	}
	return uids
}

// IsNew reports whether the member's program, of its revision, is not among those that run.
func IsNew(m Member, running []Member) bool {
	return !slices.ContainsFunc(running, func(r Member) bool {
		return r.UID == m.UID && r.Revision == m.Revision && r.Program == m.Program
	})
}

// Without returns the members of all applications but some.
func Without(members []Member, uids []string) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return slices.Contains(uids, m.UID) })
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
	return slices.DeleteFunc(slices.Clone(running), func(r Member) bool {
		return slices.ContainsFunc(members, func(m Member) bool { return m.UID == r.UID && m.Program == r.Program })
	})
}

// Leavers are the applications that run and are to run no more.
func Leavers(members, running []Member) []string {
	return UIDsOf(Without(running, UIDsOf(members)))
}
