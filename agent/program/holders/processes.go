package holders

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Processes finds, by /proc, which processes hold descriptors of BPF objects. A
// process that ends meanwhile, or that may not be looked into, is passed over.
func Processes(ctx context.Context, proc string) (map[Object][]Process, error) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	held := map[Object][]Process{}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return held, err
		}
		pid, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		objects := objectsOf(ctx, filepath.Join(proc, dir.Name()))
		if len(objects) == 0 {
			continue
		}
		name := processName(filepath.Join(proc, dir.Name()))
		for o := range objects {
			held[o] = append(held[o], Process{PID: pid, Name: name})
		}
	}
	if err := ctx.Err(); err != nil {
		return held, err
	}
	for _, processes := range held {
		slices.SortFunc(processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	}
	return held, nil
}

func processName(dir string) string {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}

// maxDescriptors is how many descriptors of a process are looked at.
const maxDescriptors = 1 << 16

// objectsOf are the objects one process holds, until the context ends. Only
// descriptors whose link says so are read, since a process may have very many others.
func objectsOf(ctx context.Context, dir string) map[Object]bool {
	folder, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return nil
	}
	descriptors, err := folder.ReadDir(maxDescriptors)
	if _ = folder.Close(); err != nil {
		return nil
	}
	found := map[Object]bool{}
	for _, fd := range descriptors {
		if ctx.Err() != nil {
			return found
		}
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil || !strings.HasPrefix(target, "anon_inode:bpf") {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", fd.Name()))
		if err != nil {
			continue
		}
		if o, ok := parseFdinfo(info); ok {
			found[o] = true
		}
	}
	return found
}

// parseFdinfo reads which object a descriptor is of. A link's information names
// its program too, so the link counts first.
func parseFdinfo(info []byte) (Object, bool) {
	fields := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(info)); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	for _, k := range []struct {
		field string
		kind  Kind
	}{{"link_id", OfLink}, {"map_id", OfMap}, {"prog_id", OfProgram}} {
		if id, err := strconv.ParseUint(fields[k.field], 10, 32); err == nil {
			return Object{k.kind, uint32(id)}, true
		}
	}
	return Object{}, false
}
