// Package netns does work in network namespaces of the node beside the agent's own, and is the
// one place that holds them open.
//
// A descriptor keeps a namespace alive, with its devices, after the last process in it ended. So
// a Table opens a namespace when there is work in it, and closes all at the end of a reconcile.
// Links, programs and pins keep none. The package decides nothing.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/text"
)

// ErrGone: the node has no such network namespace any more.
var ErrGone = errors.New("the network namespace is gone")

// ErrUnknown: it is not known now which network namespaces the node has.
var ErrUnknown = errors.New("the network namespaces of the node are not known")

// Namespace is a network namespace of the node beside the agent's own.
type Namespace struct {
	// ID is the inode of the namespace's file.
	ID uint64
	// In says whose it is, for people and for what the node remembers, as "pod team-a/web".
	In string
	// Open opens a file of the namespace, such as /proc/PID/ns/net, without blocking. It
	// fails with fs.ErrNotExist where there is none any more. The caller closes the file.
	Open func() (*os.File, error)
}

// maxOpen bounds how many namespaces stay open during one reconcile. Of more, each is opened
// for one piece of work.
const maxOpen = 256

// Table is the network namespaces of the node as they were told last. The caller serializes all
// calls. A nil Table has no namespace but the agent's own.
type Table struct {
	byID map[uint64]Namespace
	open map[uint64]*os.File
	// err says why the namespaces are not known.
	err error
}

// NewTable returns a table that knows no namespace yet.
func NewTable() *Table { return &Table{err: ErrUnknown} }

// Renew replaces the namespaces. Where err is not nil, they are not known now: what is in
// none of all is then not taken for gone. The agent's own is never one of them.
func (t *Table) Renew(all []Namespace, err error) {
	t.Close()
	t.byID, t.err = map[uint64]Namespace{}, nil
	if err != nil {
		t.err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	own, statErr := inode(threadNetns)
	if statErr != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%w: %w", ErrUnknown, statErr))
		return
	}
	for _, one := range all {
		if one.ID != 0 && one.ID != own {
			t.byID[one.ID] = one
		}
	}
}

// Lookup returns a namespace by its inode.
func (t *Table) Lookup(id uint64) (Namespace, bool) {
	if t == nil {
		return Namespace{}, false
	}
	one, ok := t.byID[id]
	return one, ok
}

// Do calls do on a thread that is in the network namespace with the inode: in the caller's
// where that is 0. It fails with ErrGone where there is none, and with ErrUnknown where that
// is not known.
func (t *Table) Do(id uint64, do func() error) error {
	if id == 0 {
		return do()
	}
	file, err := t.file(id)
	if err != nil {
		return err
	}
	err = Do(file, fmt.Sprintf("net:[%d]", id), do)
	if len(t.open) > maxOpen {
		delete(t.open, id)
		_ = file.Close()
	}
	return err
}

// file returns an open file of a namespace, which the table closes.
func (t *Table) file(id uint64) (*os.File, error) {
	one, ok := t.Lookup(id)
	switch {
	case ok && t.open[id] != nil:
		return t.open[id], nil
	case !ok && t != nil && t.err != nil:
		return nil, fmt.Errorf("find network namespace net:[%d]: %w", id, t.err)
	case !ok:
		return nil, fmt.Errorf("find network namespace net:[%d]: %w", id, ErrGone)
	}
	file, err := one.Open()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open network namespace of %s: %w: %w", one.In, ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace of %s: %w", one.In, err)
	}
	if is, err := identify(file); err != nil || is != id {
		// Its process ended, and another has the number.
		return nil, errors.Join(fmt.Errorf("open network namespace of %s: %w: net:[%d] is in its place", one.In, ErrGone, is), err, file.Close())
	}
	if t.open == nil {
		t.open = map[uint64]*os.File{}
	}
	t.open[id] = file
	return file, nil
}

// Command is a command as a person runs it on the node, in the network namespace with the inode.
func (t *Table) Command(id uint64, command string) string {
	one, ok := t.Lookup(id)
	if !ok {
		return command
	}
	file, err := one.Open()
	if err != nil {
		return command
	}
	defer func() { _ = file.Close() }()
	return "nsenter --net=" + text.Word(file.Name()) + " " + command
}

// Open returns how many namespaces are open.
func (t *Table) Open() int { return len(t.open) }

// Close closes what is open. What is asked for later is opened again.
func (t *Table) Close() {
	for _, file := range t.open {
		_ = file.Close()
	}
	t.open = nil
}

// threadNetns is the network namespace of the calling thread.
const threadNetns = "/proc/thread-self/ns/net"

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Ino, nil
}

// identify returns the inode of the namespace that a file is of.
func identify(file *os.File) (uint64, error) {
	var on unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(file.Fd()), &on), unix.Fstat(int(file.Fd()), &st)); err != nil {
		return 0, fmt.Errorf("look at %s: %w", file.Name(), err)
	}
	if on.Type != unix.NSFS_MAGIC {
		return 0, fmt.Errorf("look at %s: it is no namespace", file.Name())
	}
	return st.Ino, nil
}

// Do calls do on a thread that is in the network namespace of a file, which errors name, and brings the thread
// back: it may be the first one, whose namespace is that of /proc/self. A thread that cannot
// come back ends, and do may have succeeded then.
func Do(ns *os.File, name string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		there, back := enter(ns, name, do)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(there, back)
	}()
	return <-done
}

// enter has the thread enter the network namespace, call do and come back. Where it cannot
// come back, the thread is of no use to others.
func enter(ns *os.File, name string, do func() error) (there, back error) {
	own, err := os.Open(threadNetns)
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err), nil
	}
	defer func() { _ = own.Close() }()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, rights.ExplainAttach(err, []rights.Capability{rights.SysAdmin})), nil
	}
	there = do()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		back = fmt.Errorf("leave network namespace %s: %w", name, err)
	}
	return there, back
}
