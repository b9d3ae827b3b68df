package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// initialPIDs is the inode of the PID namespace in which all processes of a node are:
// PROC_PID_INIT_INO of include/linux/proc_ns.h.
const initialPIDs = 0xEFFFFFFC

// OfNode lists the network namespaces of processes, and those that have a name below one of
// the folders, as ip-netns(8) gives them. It fails with ErrUnknown, beside those that it found,
// where it sees not all processes of the node.
func OfNode(folders ...string) ([]Namespace, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	errs := []error{err}
	for _, folder := range folders {
		named, err := filepath.Glob(filepath.Join(folder, "*"))
		paths, errs = append(paths, named...), append(errs, err)
	}
	if pids, err := inode("/proc/self/ns/pid"); err != nil || pids != initialPIDs {
		errs = append(errs, errors.Join(err, fmt.Errorf("%w: this process is not in the PID namespace of the node", ErrUnknown)))
	}
	seen := map[uint64]bool{}
	var all []Namespace
	for _, path := range paths {
		id, err := inode(path)
		if err != nil || seen[id] {
			// The process ended.
			continue
		}
		seen[id] = true
		all = append(all, Namespace{ID: id, In: "net:[" + strconv.FormatUint(id, 10) + "]", Open: func() (*os.File, error) { return os.Open(path) }})
	}
	return all, errors.Join(errs...)
}
