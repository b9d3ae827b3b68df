package containers

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/pods/process"
)

// maxCompared bounds how many processes of a container are looked at for the first.
const maxCompared = 16 << 10

// Errors of the search for a container's process.
var (
	errNotFound = errors.New("no cgroup of its pod is named for it and has a process that the runtime started")
	errMany     = fmt.Errorf("it has more than %d processes or %d cgroups, so its first process was not searched for", maxCompared, maxWalked)
)

// firstProcess is the process of a container that the runtime started first, by the cgroups of its pod: what the runtime
// starts later entered it then, and all others have their parents in the container.
func (n *node) firstProcess(id string, p Pod) (int, error) {
	pod := cmp.Or(p.CgroupPath, n.searchPod(p.UID))
	if pod == "" {
		return 0, errNotFound
	}
	names, err := n.children(pod)
	if err != nil {
		return 0, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !hasID(name, id) })
	if len(names) != 1 {
		return 0, errNotFound
	}
	own := path.Join(pod, names[0])
	var first process.Process
	looked, compared := 0, 0
	err = n.below(own, func(name string) bool {
		looked++
		for _, pid := range n.members(name) {
			compared++
			one, err := n.see(pid, name)
			isFirst := first.PID == 0 || cmp.Or(cmp.Compare(one.StartTime, first.StartTime), cmp.Compare(one.PID, first.PID)) < 0
			if err == nil && isFirst && !n.isChildIn(pid, own) {
				first = one
			}
		}
		return looked <= maxWalked && compared <= maxCompared
	})
	switch {
	case err != nil:
		return 0, err
	case looked > maxWalked || compared > maxCompared:
		return 0, errMany
	case first.PID == 0:
		return 0, errNotFound
	}
	return first.PID, nil
}

// isChildIn reports whether a process has its parent in a cgroup or below it, or may have.
func (n *node) isChildIn(pid int, cgroup string) bool {
	opened, err := process.Open(pid)
	if err != nil {
		return true
	}
	defer opened.Close()
	parent, err := opened.Parent()
	if err != nil {
		return true
	}
	above, err := process.Open(parent)
	if err != nil {
		// One in another PID namespace has none here.
		return parent != 0
	}
	defer above.Close()
	in, err := above.Cgroup()
	return err != nil || process.Below(path.Join(n.origin, in), "/"+cgroup)
}

// searchPod finds the cgroup that the kubelet made for a pod. What a container makes lies deeper than those of
// all pods, so the first one counts.
func (n *node) searchPod(uid string) (found string) {
	looked := 0
	_ = n.below("", func(name string) bool {
		if isPodCgroup(path.Base(name), uid) {
			found = name
		}
		looked++
		return found == "" && looked <= maxWalked
	})
	return found
}

// below calls visit for a cgroup and all below it, those that lie higher first, until it returns false. It fails where one
// has more below it than are listed.
func (n *node) below(name string, visit func(name string) bool) error {
	for next := []string{strings.Trim(name, "/")}; len(next) > 0; next = next[1:] {
		if !visit(next[0]) {
			return nil
		}
		children, err := n.children(next[0])
		if errors.Is(err, errTooMany) {
			return err
		}
		// One that cannot be opened is gone.
		for _, child := range children {
			next = append(next, path.Join(next[0], child))
		}
	}
	return nil
}
