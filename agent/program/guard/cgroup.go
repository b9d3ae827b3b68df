package guard

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// rootID is the inode, and id, of the root of cgroup2: kernfs counts from 1.
const rootID = 1

// maxDepth is how deep the root of a cgroup namespace may lie.
const maxDepth = 32

// Hierarchy is a mount of cgroup2, and how deep its root lies in the hierarchy of the host.
type Hierarchy struct {
	root  string
	level int
}

// FindHierarchy reads where the folder at which cgroup2 is mounted lies. Where that is not
// the host's own root but that of a cgroup namespace, the kernel is asked by a program that
// runs once, for the current task, which has to be in that namespace.
func FindHierarchy(root string) (Hierarchy, error) {
	id, err := cgroupID(root)
	if err != nil || id == rootID {
		return Hierarchy{root: root}, err
	}
	level, err := levelOf(id)
	if err != nil {
		return Hierarchy{}, fmt.Errorf("find how deep %s lies in cgroup2: %w", root, err)
	}
	return Hierarchy{root, level}, nil
}

// Member returns the cgroup of a folder below the root as a member of a scope.
func (h Hierarchy) Member(dir string) (Member, error) {
	below, err := filepath.Rel(h.root, dir)
	if err != nil {
		return Member{}, fmt.Errorf("read cgroup %s: %w", dir, err)
	}
	if below == "." || below == ".." || strings.HasPrefix(below, "../") {
		return Member{}, fmt.Errorf("read cgroup %s: it is not below %s", dir, h.root)
	}
	id, err := cgroupID(dir)
	if err != nil {
		return Member{}, err
	}
	return Member{CgroupID: id, Level: h.level + strings.Count(below, "/") + 1}, nil
}

// levelOf asks the kernel at which level the current task has an ancestor cgroup.
func levelOf(id uint64) (int, error) {
	insns := asm.Instructions{asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord)}
	for level := range int32(maxDepth) {
		insns = append(insns,
			asm.Mov.Imm(asm.R1, level), asm.FnGetCurrentAncestorCgroupId.Call(), asm.Mov.Reg(asm.R1, asm.R0),
			asm.Mov.Imm(asm.R0, level), asm.JEq.Reg(asm.R1, asm.R6, "found"))
	}
	insns = append(insns, asm.Mov.Imm(asm.R0, maxDepth), asm.Return().WithSymbol("found"))
	program, err := plain.Of(ebpf.NewProgram(&ebpf.ProgramSpec{Name: "skep_level", Type: ebpf.RawTracepoint, License: "GPL", Instructions: insns}))
	if err != nil {
		return 0, fmt.Errorf("load program: %w", err)
	}
	level, err := plain.Of(program.Run(&ebpf.RunOptions{Context: struct{ ID uint64 }{id}}))
	if err := errors.Join(err, program.Close()); err != nil {
		return 0, fmt.Errorf("run program: %w", err)
	}
	if level == maxDepth {
		return 0, errors.New("this process is in no cgroup below it; mount the host's cgroup2")
	}
	return int(level), nil
}

// cgroupID is the inode of a folder of cgroup2.
func cgroupID(dir string) (uint64, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open cgroup %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var at unix.Statfs_t
	if err := unix.Fstatfs(fd, &at); err != nil {
		return 0, fmt.Errorf("read file system of cgroup %s: %w", dir, err)
	}
	if at.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("read cgroup %s: it is not on cgroup2", dir)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("read cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}
