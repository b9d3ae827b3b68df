package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/process"
)

// The labels of a pod of NewCgroups.
const (
	// LabelUnit is the name of a unit of systemd, such as nginx.service.
	LabelUnit = "systemd.unit"
	// LabelSlice is the nearest slice above it, such as system.slice.
	LabelSlice = "systemd.slice"
	// LabelCgroup is the name of a cgroup that is no unit: of its path, the last part.
	LabelCgroup = "cgroup.name"
	// LabelManager is the unit or cgroup in which another manager than the node's systemd made a
	// unit or cgroup, such as user@1000.service.
	LabelManager = "systemd.manager"
	// LabelManaged is the name that such a manager gave it.
	LabelManaged = "systemd.managed"
)

// The bounds of a walk over cgroups, besides maxWalked.
const (
	maxDepth = 16
	// maxUnits is how many may be found.
	maxUnits = maxContainers
)

// NewCgroups returns the Source of a host without a container runtime. Each unit of systemd
// that runs (a service, scope, socket, mount, swap), and each other cgroup with processes in
// it, is a pod with one container. Slices are none; a unit with units below it, as a user's
// manager has, is not one either.
//
// A pod's name is the unit's, or the path of the cgroup; its namespace is empty, and UID,
// SandboxID and the container's ID are made of the cgroup's id. Labels are LabelUnit and
// LabelSlice, or LabelCgroup. What a user's manager, or systemd in a container, makes below its own
// unit may have any name: it has LabelManager and LabelManaged alone. Process is one of those in the cgroup or below, the same
// as long as it runs. Who may make cgroups there decides what is in them: root, or systemd for
// a user.
func NewCgroups(o Options) (Source, error) {
	o.fill()
	if o.CgroupRoot == "" {
		return nil, errors.New("make source of cgroups: no mount of cgroup2 is named")
	}
	read := func(ctx context.Context, st *state) {
		var n *node
		for ctx.Err() == nil {
			var err error
			if n == nil {
				n, err = openNode(o.CgroupRoot)
			}
			if err == nil {
				err = readCgroups(n, st)
			}
			if err != nil {
				st.failed(o.CgroupRoot, o.Clock(), err)
			}
			rest(ctx, o.Interval)
		}
		if n != nil {
			n.close()
		}
	}
	return &source{opts: o, kept: newKept(), read: read}, nil
}

// readCgroups walks over the cgroups once, and notes what changed.
func readCgroups(n *node, st *state) error {
	w := &walk{node: n, before: st.all(), found: map[string]Container{}}
	if _, err := w.visit(".", 0); err != nil {
		return err
	}
	st.replace(w.found)
	st.answered()
	return nil
}

// walk is one walk over cgroups.
type walk struct {
	node   *node
	looked int
	before map[string]Container
	found  map[string]Container
}

// errTooMany is the error of a walk that is given up.
var errTooMany = fmt.Errorf("walk cgroups: there are more than %d, or %d units", maxWalked, maxUnits)

// isUnit reports whether systemd names the cgroups of running units so, and isSlice those that
// only hold others.
func isUnit(name string) bool {
	return slices.Contains([]string{".service", ".scope", ".socket", ".mount", ".swap"}, path.Ext(name))
}

func isSlice(name string) bool { return path.Ext(name) == ".slice" }

// visit looks at a cgroup and those below. It reports whether units are among those.
func (w *walk) visit(name string, depth int) (units bool, err error) {
	if w.looked++; w.looked > maxWalked || len(w.found) > maxUnits {
		return false, errTooMany
	}
	if depth >= maxDepth {
		return false, nil
	}
	below, err := w.node.children(name)
	if errors.Is(err, errTooMany) {
		return false, err
	}
	if err != nil {
		// It was removed meanwhile.
		return false, nil //nolint:nilerr // Cgroups come and go.
	}
	own := path.Base(name)
	plain := !isUnit(own) && !isSlice(own)
	for _, child := range below {
		if isUnit(own) && !isUnit(child) && !isSlice(child) {
			// What a unit makes below its own cgroup belongs to it.
			continue
		}
		some, err := w.visit(path.Join(name, child), depth+1)
		if err != nil {
			return false, err
		}
		units = units || some || isUnit(child) || isSlice(child)
	}
	if name == "." || isSlice(own) || isUnit(own) && units {
		return units, nil
	}
	w.note(name, plain)
	return units, nil
}

// notOfLabels are the characters that the value of a label has not.
var notOfLabels = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// labelValue writes a name as a selector can ask for it: at most 63 characters, of which those that
// a label has not are _, and letters and digits at both ends.
func labelValue(name string) string {
	value := notOfLabels.ReplaceAllString(name, "_")
	return strings.Trim(value[:min(len(value), 63)], "_.-")
}

// note notes a cgroup with processes in it.
func (w *walk) note(name string, plain bool) {
	at, err := w.node.locate(name)
	if err != nil {
		// It was removed meanwhile.
		return
	}
	id := fmt.Sprintf("cgroup-%d", at.id)
	if c, ok := w.before[id]; ok && c.IsRunning() {
		w.found[id] = c
		return
	}
	first, ok := w.member(at, plain, 0)
	if !ok {
		return
	}
	p := Pod{UID: id, SandboxID: id, Name: path.Base(name), Labels: w.labels(name, plain), CgroupPath: at.path, CgroupID: at.id}
	if plain {
		p.Name = at.path
	}
	c := Container{ID: id, Name: p.Name, Pod: p, Process: first, CgroupPath: at.path, CgroupID: at.id}
	if opened, err := process.Open(first.PID); err == nil {
		c.Pod.NetnsID, _ = opened.NetnsID()
		opened.Close()
	}
	c.Pod.HostNetwork = c.Pod.NetnsID != 0 && c.Pod.NetnsID == w.node.netns
	w.found[id] = c
}

// labels are those of a unit, or of a plain cgroup.
func (w *walk) labels(name string, plain bool) map[string]string {
	own := labelValue(path.Base(name))
	switch manager := w.managerOf(name); {
	case manager != "" && (!plain || isUnit(manager)):
		return map[string]string{LabelManager: labelValue(manager), LabelManaged: own}
	case plain:
		return map[string]string{LabelCgroup: own}
	case path.Dir(name) != ".":
		return map[string]string{LabelUnit: own, LabelSlice: labelValue(path.Base(path.Dir(name)))}
	}
	return map[string]string{LabelUnit: own}
}

// managerOf names the lowest cgroup above one in which another manager than the node's systemd can
// make cgroups; it is empty where there is none. The node's systemd makes units in slices alone, and a slice in the one that
// its name begins with (systemd.slice(5)); the slices are root's.
func (w *walk) managerOf(name string) string {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		own, in := path.Base(above), path.Base(path.Dir(above))
		switch {
		case !isSlice(own), !w.isRoots(above):
			return unitAbove(above)
		case isSlice(in) && !strings.HasPrefix(own, strings.TrimSuffix(in, ".slice")+"-"):
			return unitAbove(path.Dir(above))
		}
	}
	return ""
}

// unitAbove is the name of the nearest unit that a cgroup is or is in, or else its own.
func unitAbove(name string) string {
	for at := name; at != "."; at = path.Dir(at) {
		if isUnit(at) {
			return path.Base(at)
		}
	}
	return path.Base(name)
}

// isRoots reports whether only root can make cgroups in one.
func (w *walk) isRoots(name string) bool {
	dir, err := w.node.openCgroup(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	var st unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &st) == nil && st.Uid == 0 && st.Mode&0o022 == 0
}

// member finds a process of the cgroup: one in it, or else one below, unless those are others'.
func (w *walk) member(at place, plain bool, depth int) (process.Process, bool) {
	for _, pid := range w.node.members(at.path) {
		if p, err := w.node.see(pid, at.path); err == nil {
			return p, true
		}
	}
	if plain || depth >= maxDepth {
		return process.Process{}, false
	}
	below, _ := w.node.children(at.path)
	for _, child := range below {
		if w.looked++; w.looked > maxWalked {
			break
		}
		if p, ok := w.member(place{path: path.Join(at.path, child)}, plain, depth+1); ok {
			return p, true
		}
	}
	return process.Process{}, false
}

// see looks at a process that is in the cgroup.
func (n *node) see(pid int, cgroup string) (process.Process, error) {
	opened, err := process.Open(pid)
	if err != nil {
		return process.Process{}, err
	}
	defer opened.Close()
	p := process.Process{PID: pid}
	if p.StartTime, err = opened.StartTime(); err != nil {
		return p, err
	}
	in, err := opened.Cgroup()
	if err != nil {
		return p, err
	}
	if path.Join(n.origin, in) != path.Join("/", cgroup) {
		return p, process.ErrOther
	}
	p = p.Within(in)
	return p, opened.Check(p)
}

// children are the cgroups directly below one, in order.
func (n *node) children(name string) ([]string, error) {
	dir, err := n.openCgroup(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	// The files of a cgroup count, too.
	entries, err := dir.ReadDir(maxWalked + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	if len(entries) > maxWalked {
		return nil, errTooMany
	}
	var names []string
	for _, one := range entries {
		if one.IsDir() {
			names = append(names, one.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}
