package inventory

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroups names cgroups by their id, which is the inode of their directory.
type cgroups struct {
	mount string
	known map[uint64]string
}

// findCgroups is where the cgroup2 hierarchy is mounted.
func findCgroups(proc string) string {
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mounts"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	return ""
}

// path is that of a cgroup below the mount, "/" for its root. A cgroup that is
// gone, or that another container's mount shows, is told by its number.
func (c *cgroups) path(id uint64) string {
	c.read()
	if path, ok := c.known[id]; ok {
		return path
	}
	return "cgroup " + strconv.FormatUint(id, 10)
}

// paths are those of all cgroups, in order.
func (c *cgroups) paths() []string {
	c.read()
	return slices.Sorted(maps.Values(c.known))
}

// read walks the hierarchy once. Cgroups come and go while it does.
func (c *cgroups) read() {
	if c.known != nil {
		return
	}
	c.known = map[uint64]string{}
	if c.mount == "" {
		return
	}
	_ = filepath.WalkDir(c.mount, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // what cannot be read is passed over
		}
		if ino, ok := inodeOf(path); ok {
			c.known[ino] = "/" + strings.TrimPrefix(strings.TrimPrefix(path, c.mount), "/")
		}
		return nil
	})
}
