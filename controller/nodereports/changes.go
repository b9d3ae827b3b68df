package nodereports

import (
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Changed lists the applications that two reports of one node say different things about.
// Reports in short name UIDs alone; see ChangedInShort.
func Changed(before, now *v1alpha1.BpfNode) []v1alpha1.Identity {
	old := map[string]v1alpha1.NodeApplication{}
	for _, a := range before.Status.Applications {
		old[a.UID] = a
	}
	var ids []v1alpha1.Identity
	add := func(a v1alpha1.NodeApplication) {
		ids = append(ids, v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name})
	}
	for _, a := range now.Status.Applications {
		if old[a.UID] != a {
			add(a)
		}
		delete(old, a.UID)
	}
	for _, a := range old {
		add(a)
	}
	return ids
}

// ChangedInShort lists the UIDs of the applications that two reports of one node say
// different things about in short, sorted.
func ChangedInShort(before, now *v1alpha1.BpfNode) []string {
	old := map[string]bool{}
	for _, one := range before.Status.Loaded {
		old[one] = true
	}
	var uids []string
	add := func(one string) {
		uid, _, _ := strings.Cut(one, ":")
		uids = append(uids, uid)
	}
	for _, one := range now.Status.Loaded {
		if !old[one] {
			add(one)
		}
		delete(old, one)
	}
	for one := range old {
		add(one)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}
