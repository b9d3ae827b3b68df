package holders

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFdinfoNamesTheObject(t *testing.T) {
	for name, tc := range map[string]struct {
		info string
		want Object
		ok   bool
	}{
		"a program":               {"pos:\t0\nflags:\t02000002\nprog_type:\t6\nprog_jited:\t1\nprog_id:\t77\nrun_cnt:\t0\n", Program(77), true},
		"a map":                   {"map_type:\t2\nmap_id:\t5\nfrozen:\t0\n", Map(5), true},
		"a link, not its program": {"link_type:\txdp\nlink_id:\t9\nprog_tag:\tx\nprog_id:\t77\nifindex:\t3\n", Link(9), true},
		"a file":                  {"pos:\t0\nflags:\t02\n", Object{}, false},
		"nothing":                 {"", Object{}, false},
		"a number out of range":   {"map_id:\t4294967296\n", Object{}, false},
		"words":                   {"map_id:\tmany\n", Object{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseFdinfo([]byte(tc.info))
			if got != tc.want || ok != tc.ok {
				t.Errorf("got %+v %v, want %+v %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestHoldersAreReadFromProc(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name string, descriptors map[string][2]string) {
		dir := filepath.Join(proc, pid)
		for _, sub := range []string{"fd", "fdinfo"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if name != "" {
			write(t, filepath.Join(dir, "comm"), name+"\n")
		}
		for fd, d := range descriptors {
			if err := os.Symlink(d[0], filepath.Join(dir, "fd", fd)); err != nil {
				t.Fatal(err)
			}
			if d[1] != "" {
				write(t, filepath.Join(dir, "fdinfo", fd), d[1])
			}
		}
	}
	process("20", "agent", map[string][2]string{
		"3": {"anon_inode:bpf-map", "map_id:\t1\n"}, "4": {"anon_inode:bpf-map", "map_id:\t1\n"}, "5": {"anon_inode:bpf-prog", "prog_id:\t2\n"},
	})
	process("3", "", map[string][2]string{"3": {"anon_inode:bpf-map", "map_id:\t1\n"}, "4": {"/etc/passwd", "map_id:\t8\n"}})
	process("4", "gone", map[string][2]string{"3": {"anon_inode:bpf_link", ""}})
	process("self", "no number", map[string][2]string{"3": {"anon_inode:bpf-map", "map_id:\t1\n"}})
	got, err := Processes(t.Context(), proc)
	if err != nil {
		t.Fatal(err)
	}
	want := map[Object][]Process{Map(1): {{3, ""}, {20, "agent"}}, Program(2): {{20, "agent"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

// TestHoldersSayWhatWasLookedAt: a look that a busy machine cut short does not say that there is nothing.
func TestHoldersSayWhatWasLookedAt(t *testing.T) {
	for want, h := range map[string]Holders{
		"no process or pin that this agent sees":                              {},
		"none of the processes and pins that could be looked at within 200ms": {Cut: true},
		"process 3 (cat) and perhaps more":                                    {Processes: []Process{{3, "cat"}}, Cut: true},
		"process 3 (cat) and the pin /sys/fs/bpf/a and the pin /sys/fs/bpf/b": {Processes: []Process{{3, "cat"}}, Pins: []string{"/sys/fs/bpf/a", "/sys/fs/bpf/b"}},
		"process 3 (cat) and process 4 (dd) and process 5 (tail) and 1 more":  {Processes: []Process{{3, "cat"}, {4, "dd"}, {5, "tail"}, {6, "sh"}}},
	} {
		if got := h.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHoldersNeedProc(t *testing.T) {
	if _, err := Processes(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("got no error without /proc")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Processes(ctx, "/proc"); err == nil {
		t.Error("got no error after the context ended")
	}
}

func TestPinsOfADirectoryThatIsNotThere(t *testing.T) {
	found, err := Pins(t.Context(), filepath.Join(t.TempDir(), "none"))
	if err != nil || len(found) != 0 {
		t.Errorf("got %v and error %v, want none of both", found, err)
	}
}

func TestPinsPassOverWhatIsNoObject(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		write(t, filepath.Join(dir, strconv.Itoa(i)), "no object")
	}
	found, err := Pins(t.Context(), dir)
	if err != nil || len(found) != 0 {
		t.Errorf("got %v and error %v, want none of both", found, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Pins(ctx, dir); err == nil {
		t.Error("got no error after the context ended")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
