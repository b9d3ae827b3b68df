package containers

import (
	"cmp"
	"errors"
	"path"
	"strings"

	"github.com/skep-dev/skep/agent/pods/process"
)

// maxCompared bounds how many processes of a cgroup are looked at for the first.
const maxCompared = 1024

// errNotFound is the error of a search that no cgroup or process answers.
var errNotFound = errors.New("no cgroup of its pod is named for it and has a process")

// firstProcess is the process of a container that began first, by the cgroups of its pod: all others are its
// children, or entered it later.
func (n *node) firstProcess(id string, p Pod) (int, error) {
	pod := cmp.Or(p.CgroupPath, n.searchPod(p.UID))
	if pod == "" {
		return 0, errNotFound
	}
	names, err := n.children(pod)
	if err != nil {
		return 0, err
	}
	var first process.Process
	for _, name := range names {
		if hasID(name, id) {
			first = n.first(path.Join(pod, name))
		}
	}
	if first.PID == 0 {
		return 0, errNotFound
	}
	return first.PID, nil
}

// first is the process that began first in a cgroup or below it; none where PID is 0.
func (n *node) first(name string) (first process.Process) {
	looked, compared := 0, 0
	n.below(name, func(name string) bool {
		looked++
		for _, pid := range n.members(name) {
			if compared++; compared > maxCompared {
				return false
			}
			one, err := n.see(pid, name)
			if err == nil && (first.PID == 0 || one.StartTime < first.StartTime) {
				first = one
			}
		}
		return looked <= maxWalked
	})
	return first
}

// searchPod finds the cgroup that the kubelet made for a pod. What a container makes lies deeper than those of
// all pods, so the first one counts.
func (n *node) searchPod(uid string) (found string) {
	looked := 0
	n.below("", func(name string) bool {
		if isPodCgroup(path.Base(name), uid) {
			found = name
		}
		looked++
		return found == "" && looked <= maxWalked
	})
	return found
}

// below calls visit for a cgroup and all below it, those that lie higher first, until it returns false.
func (n *node) below(name string, visit func(name string) bool) {
	for next := []string{strings.Trim(name, "/")}; len(next) > 0; next = next[1:] {
		if !visit(next[0]) {
			return
		}
		children, _ := n.children(next[0])
		for _, child := range children {
			next = append(next, path.Join(next[0], child))
		}
	}
}
