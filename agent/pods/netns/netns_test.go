package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

// another makes a network namespace and opens it.
func another(t testing.TB) Namespace {
	t.Helper()
	need.Kernel(t)
	made := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open(threadNetns)
		if err == nil {
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		var file *os.File
		if err == nil {
			file, err = os.Open(threadNetns)
			err = errors.Join(err, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET), own.Close())
		}
		if err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
		made <- file
	}()
	file := <-made
	if file == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = file.Close() })
	id, err := identify(file)
	if err != nil {
		t.Fatal(err)
	}
	return Namespace{ID: id, In: "pod a/b", Open: func() (*os.File, error) {
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewFile(uintptr(fd), "ns"), err
	}}
}

// within returns the namespace in which a table does work.
func within(t *testing.T, table *Table, id uint64) (uint64, error) {
	t.Helper()
	var is uint64
	err := table.Do(id, func() (err error) {
		is, err = inode(threadNetns)
		return err
	})
	return is, err
}

func TestWorkIsDoneInTheNamespace(t *testing.T) {
	one := another(t)
	table := NewTable()
	table.Renew([]Namespace{one}, nil)
	own, err := inode(threadNetns)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if is, err := within(t, table, one.ID); err != nil || is != one.ID {
			t.Fatalf("in %d, %v", is, err)
		}
		// Threads are used again: none stays there.
		if is, err := within(t, table, 0); err != nil || is != own {
			t.Fatalf("then in %d, %v", is, err)
		}
	}
	if first, err := inode("/proc/self/ns/net"); err != nil || first != own {
		t.Errorf("the first thread is in %d, %v", first, err)
	}
	if table.Open() != 1 {
		t.Errorf("%d are open", table.Open())
	}
	failed := errors.New("no")
	if err := table.Do(one.ID, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Do = %v", err)
	}
	table.Close()
	if table.Open() != 0 {
		t.Errorf("%d are open after Close", table.Open())
	}
}

func TestWhichNamespacesAreGone(t *testing.T) {
	one := another(t)
	broken := errors.New("no memory")
	replaced, missing, failing := one, one, one
	replaced.ID, missing.ID, failing.ID = 3, 4, 5
	missing.Open = func() (*os.File, error) { return os.Open(filepath.Join(t.TempDir(), "net")) }
	failing.Open = func() (*os.File, error) { return nil, broken }
	file := one
	file.ID = 6
	file.Open = func() (*os.File, error) { return os.Open(os.DevNull) }
	all := []Namespace{one, replaced, missing, failing, file}
	for sentence, c := range map[string]struct {
		id    uint64
		known error
		want  error
	}{
		"one that is there":                    {id: one.ID},
		"one that nobody names":                {id: 2, want: ErrGone},
		"one whose place another has":          {id: 3, want: ErrGone},
		"one whose path is gone":               {id: 4, want: ErrGone},
		"one that cannot be opened":            {id: 5, want: broken},
		"one whose path is another thing's":    {id: 6, want: ErrGone},
		"one that nobody names, where unknown": {id: 2, known: broken, want: ErrUnknown},
		"one that is there, where unknown":     {id: one.ID, known: broken},
	} {
		t.Run(sentence, func(t *testing.T) {
			table := NewTable()
			table.Renew(all, c.known)
			defer table.Close()
			if _, err := within(t, table, c.id); !errors.Is(err, c.want) {
				t.Errorf("Do = %v, want %v", err, c.want)
			}
		})
	}
	if _, err := within(t, NewTable(), one.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("before namespaces are told, Do = %v", err)
	}
	var none *Table
	if _, err := within(t, none, one.ID); !errors.Is(err, ErrGone) {
		t.Errorf("without a table, Do = %v", err)
	}
}

func TestTheOwnNamespaceIsNone(t *testing.T) {
	own, err := inode(threadNetns)
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable()
	table.Renew([]Namespace{{ID: own, In: "pod a/b", Open: func() (*os.File, error) { return os.Open(threadNetns) }}}, nil)
	if _, ok := table.Lookup(own); ok {
		t.Error("the own namespace is among those of others")
	}
	if _, err := within(t, table, own); !errors.Is(err, ErrGone) {
		t.Errorf("Do = %v", err)
	}
}

func TestTheNumberOfOpenNamespacesIsBounded(t *testing.T) {
	one := another(t)
	table := NewTable()
	table.Renew([]Namespace{one}, nil)
	defer table.Close()
	table.open = map[uint64]*os.File{}
	for id := range uint64(maxOpen) {
		table.open[1<<40+id] = nil
	}
	if is, err := within(t, table, one.ID); err != nil || is != one.ID {
		t.Fatalf("in %d, %v", is, err)
	}
	if table.Open() != maxOpen {
		t.Errorf("%d are open", table.Open())
	}
}

func TestTheNamespacesOfTheNodeAreFound(t *testing.T) {
	one := another(t)
	file, err := one.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	dir := t.TempDir()
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), filepath.Join(dir, "blue")); err != nil {
		t.Fatal(err)
	}
	own, err := inode("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	all, err := OfNode(dir)
	found := map[uint64]bool{}
	for _, n := range all {
		found[n.ID] = true
	}
	if !found[own] || !found[one.ID] || err != nil && !errors.Is(err, ErrUnknown) {
		t.Errorf("OfNode = %v, %v", all, err)
	}
}

func BenchmarkWorkInAnotherNamespace(b *testing.B) {
	one := another(b)
	table := NewTable()
	table.Renew([]Namespace{one}, nil)
	defer table.Close()
	for b.Loop() {
		if err := table.Do(one.ID, func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
