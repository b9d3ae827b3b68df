package mounter_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
)

// logged has what is logged.
type logged chan string

func (l logged) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestARequestThatIsNotWaitedForIsNotDone gives up before a mounter that hung comes to the request: another one may have been answered since.
func TestARequestThatIsNotWaitedForIsNotDone(t *testing.T) {
	n := newNode(t)
	log := make(logged, 1)
	s, err := mounter.New(mounter.Options{Pods: n.pods, Scratch: t.TempDir(), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	socket := filepath.Join(t.TempDir(), "mounter", "socket")
	l, err := mounter.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (mounter.Client{Socket: socket}).Mount(ctx, volume, group, nil, nil); err == nil {
		t.Fatal("what does not answer mounts")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	if said := <-log; !strings.Contains(said, "not answered") {
		t.Error(said)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if all := n.mountpoints(); len(all) > 0 {
		t.Errorf("it mounts %v", all)
	}
}

func TestAVolumeIsATmpfsAndTwoBPFFileSystems(t *testing.T) {
	n := newNode(t)
	read, write := newMap(t), newMap(t)
	n.mounts(volume, mounter.Pin{Name: "counts", Map: read.FD()}, mounter.Pin{Name: "rules", Write: true, Map: write.FD()})
	at := pod + "/volumes/kubernetes.io~csi/maps/mount"
	if diff := cmp.Diff([]string{at, at + "/maps", at + "/maps@write"}, n.mountpoints()); diff != "" {
		t.Fatalf("mounts (-want +got):\n%s", diff)
	}
	for path, want := range map[string]struct {
		kind int64
		mode fs.FileMode
	}{
		"":                 {unix.TMPFS_MAGIC, 0o750},
		"maps":             {unix.BPF_FS_MAGIC, 0o750},
		mounter.Writable:   {unix.BPF_FS_MAGIC, 0o750},
		"maps/counts":      {unix.BPF_FS_MAGIC, 0o440},
		"maps@write/rules": {unix.BPF_FS_MAGIC, 0o660},
	} {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(n.target(volume), path), &st); err != nil {
			t.Fatal(err)
		}
		const flags = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
		if st.Type != want.kind || st.Flags&flags != flags {
			t.Errorf("%q is on a file system of type %x with flags %x", path, st.Type, st.Flags)
		}
		info, err := os.Stat(filepath.Join(n.target(volume), path))
		if err != nil {
			t.Fatal(err)
		}
		var one unix.Stat_t
		if err := unix.Stat(filepath.Join(n.target(volume), path), &one); err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want.mode || one.Uid != 0 || one.Gid != group {
			t.Errorf("%q has mode %v, user %d and group %d", path, info.Mode(), one.Uid, one.Gid)
		}
	}
	n.unmounts(volume)
	if left := n.mountpoints(); len(left) > 0 {
		t.Errorf("these are left: %v", left)
	}
	if _, err := os.Lstat(n.target(volume)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target is left: %v", err)
	}
	n.unmounts(volume)
}

// TestRootOfAPodDoesNotWriteWhatItMayRead is of a container as most are: root, with rights beyond modes, and with bpf(2).
func TestRootOfAPodDoesNotWriteWhatItMayRead(t *testing.T) {
	n := newNode(t)
	read, write := newMap(t), newMap(t)
	n.mounts(volume, mounter.Pin{Name: "counts", Map: read.FD()}, mounter.Pin{Name: "rules", Write: true, Map: write.FD()})
	pin := filepath.Join(n.target(volume), "maps/counts")
	for what, err := range map[string]error{
		"open for writing": opens(pin, nil),
		"open write-only":  opens(pin, &ebpf.LoadPinOptions{WriteOnly: true}),
		"chmod":            os.Chmod(pin, 0o666),
		"remove":           os.Remove(pin),
		"pin another":      read.Pin(filepath.Join(n.target(volume), "maps/more")),
		"pin beside rules": write.Pin(filepath.Join(n.target(volume), "maps@write/more")),
		"remove rules":     os.Remove(filepath.Join(n.target(volume), "maps@write/rules")),
		"make a file":      os.WriteFile(filepath.Join(n.target(volume), "maps.json"), nil, 0o600),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(opens(pin, &ebpf.LoadPinOptions{ReadOnly: true}), opens(filepath.Join(n.target(volume), "maps@write/rules"), nil)); err != nil {
		t.Error(err)
	}
	// After a change, too.
	n.updates(mounter.Pin{Name: "counts", Map: write.FD()}, mounter.Pin{Name: "more", Map: read.FD()})
	for _, name := range []string{"counts", "more"} {
		if err := opens(filepath.Join(n.target(volume), "maps", name), nil); !errors.Is(err, unix.EROFS) {
			t.Errorf("open %s for writing after a change: %v", name, err)
		}
	}
}

// opens opens a pin.
func opens(path string, how *ebpf.LoadPinOptions) error {
	m, err := ebpf.LoadPinnedMap(path, how)
	if err == nil {
		err = m.Close()
	}
	return err
}

// idOf is the number of the map of a pin.
func idOf(t testing.TB, path string) ebpf.MapID {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func TestAnUpdateChangesWhatDiffers(t *testing.T) {
	n := newNode(t)
	one, two := newMap(t), newMap(t)
	n.mounts(volume, mounter.Pin{Name: "a", Map: one.FD()}, mounter.Pin{Name: "b", Map: one.FD()}, mounter.Pin{Name: "c", Map: one.FD()})
	inode := func(path string) uint64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(n.target(volume), path), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	a, b := inode("maps/a"), inode("maps/b")
	n.updates(mounter.Pin{Name: "a", Map: one.FD()}, mounter.Pin{Name: "b", Map: two.FD()}, mounter.Pin{Name: "c", Write: true, Map: one.FD()})
	if inode("maps/a") != a {
		t.Error("a pin of the same map was made again")
	}
	if inode("maps/b") == b || idOf(t, filepath.Join(n.target(volume), "maps/b")) == idOf(t, filepath.Join(n.target(volume), "maps/a")) {
		t.Error("the pin of another map stayed")
	}
	if _, err := os.Stat(filepath.Join(n.target(volume), "maps/c")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what may be written is where it was: %v", err)
	}
	inode("maps@write/c")
	n.updates()
	for _, dir := range []string{"maps", mounter.Writable} {
		if left, err := os.ReadDir(filepath.Join(n.target(volume), dir)); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
	n.unmounts(volume)
	if err := os.Mkdir(n.target(volume), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Update(t.Context(), volume, nil); !errors.Is(err, mounter.ErrNotMounted) {
		t.Errorf("an update of a target that nothing is mounted on: %v", err)
	}
	n.unmounts(volume)
	if _, err := n.Update(t.Context(), volume, nil); !errors.Is(err, mounter.ErrNotMounted) {
		t.Errorf("an update of what is not mounted: %v", err)
	}
	if left := n.mountpoints(); len(left) > 0 {
		t.Errorf("an update mounted %v", left)
	}
}

func TestTheAgentWritesFilesOfTheGroup(t *testing.T) {
	n := newNode(t)
	dir, err := n.Mount(t.Context(), volume, group, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	path := fmt.Sprintf("/proc/self/fd/%d/maps.json", dir.Fd())
	if err := os.WriteFile(path, []byte("{}"), 0o440); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(n.target(volume), "maps.json"), &st); err != nil || st.Gid != group {
		t.Errorf("the file is of group %d: %v", st.Gid, err)
	}
	if err := os.WriteFile(path+".large", make([]byte, 8<<20), 0o440); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a volume has no bound: %v", err)
	}
}

func TestVolumesAreFoundAgain(t *testing.T) {
	n := newNode(t)
	var want []mounter.Mounted
	for i := range 20 {
		v := mounter.Volume{Pod: pod, Name: fmt.Sprintf("v%02d", i)}
		n.makes(v)
		n.mounts(v)
		want = append(want, mounter.Mounted{Volume: v, Group: group, Record: []byte("record")})
	}
	// Of others: another type, without the mark, and at another place.
	n.makes(mounter.Volume{Pod: other, Name: "theirs"})
	theirs := n.target(mounter.Volume{Pod: other, Name: "theirs"})
	deeper := filepath.Join(n.pods, other, "volumes", "kubernetes.io~empty-dir")
	for _, dir := range []string{theirs, deeper} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	got, err := n.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

// TestAVolumeWithoutPinsIsATmpfs has pins in volumes, as an earlier mounter had, and then none. A process that has the folder of pins as
// its own mount, as a container with it in a subPath has, finds it empty.
func TestAVolumeWithoutPinsIsATmpfs(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	m := newMap(t)
	n.mounts(volume, mounter.Pin{Name: "counts", Map: m.FD()}, mounter.Pin{Name: "rules", Write: true, Map: m.FD()})
	kept := shared(t)
	if err := errors.Join(unix.Mount("", kept, "", unix.MS_PRIVATE, ""),
		unix.Mount(filepath.Join(n.target(volume), "maps"), kept, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(kept, unix.MNT_DETACH) })
	var before, after unix.Stat_t
	if err := unix.Stat(n.target(volume), &before); err != nil {
		t.Fatal(err)
	}
	stop()
	n.pins = false
	n.start()
	if left, err := os.ReadDir(kept); err != nil || len(left) > 0 {
		t.Errorf("the folder of pins has %v, %v", left, err)
	}
	at := pod + "/volumes/kubernetes.io~csi/maps/mount"
	if diff := cmp.Diff([]string{at}, n.mountpoints()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if left, err := os.ReadDir(n.target(volume)); err != nil || len(left) > 0 {
		t.Errorf("the volume has %v, %v", left, err)
	}
	if err := unix.Stat(n.target(volume), &after); err != nil || before.Ino != after.Ino || before.Dev != after.Dev {
		t.Errorf("the volume is another one: %v", err)
	}
	// No map is taken, and what is mounted anew is a tmpfs alone.
	if err := n.tries(volume, mounter.Pin{Name: "counts", Map: m.FD()}); err == nil || !strings.Contains(err.Error(), "csi.pins") {
		t.Errorf("with a pin: %v", err)
	}
	n.updates()
	n.unmounts(volume)
	n.mounts(volume)
	if diff := cmp.Diff([]string{at}, n.mountpoints()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}

	// With pins again, it gets none: its containers would not see them.
	n.pins = true
	n.start()
	n.mounts(volume, mounter.Pin{Name: "counts", Map: m.FD()})
	if diff := cmp.Diff([]string{at}, n.mountpoints()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	n.unmounts(volume)
}

// TestNoVolumeWaitsForAnother holds the folder of one volume as a request does that hangs.
func TestNoVolumeWaitsForAnother(t *testing.T) {
	n := newNode(t)
	second := mounter.Volume{Pod: other, Name: "maps"}
	n.makes(second)
	end, done := n.server.Hold(volume), make(chan error, 1)
	go func() { done <- n.tries(volume) }()
	n.mounts(second)
	if len(done) > 0 {
		t.Error("a volume has two requests at a time")
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, v := range []mounter.Volume{volume, second} {
		n.unmounts(v)
	}
}

// TestPinsAreRemovedWithoutTheirMaps has the names of some alone, as an agent that knows what is granted and not yet what is loaded.
func TestPinsAreRemovedWithoutTheirMaps(t *testing.T) {
	n := newNode(t)
	m := newMap(t)
	n.mounts(volume, mounter.Pin{Name: "kept", Map: m.FD()}, mounter.Pin{Name: "gone", Map: m.FD()}, mounter.Pin{Name: "rules", Write: true, Map: m.FD()},
		mounter.Pin{Name: "narrower", Write: true, Map: m.FD()})
	keep := []mounter.Pin{{Name: "kept"}, {Name: "rules", Write: true}, {Name: "narrower"}, {Name: "absent"}}
	if err := n.Narrow(t.Context(), volume, keep); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]string{"maps": "kept", mounter.Writable: "rules"} {
		if left, err := os.ReadDir(filepath.Join(n.target(volume), folder)); err != nil || len(left) != 1 || left[0].Name() != want {
			t.Errorf("%s has %v, %v, want %s", folder, left, err, want)
		}
	}
	if err := opens(filepath.Join(n.target(volume), "maps/kept"), nil); !errors.Is(err, unix.EROFS) {
		t.Errorf("open for writing after that: %v", err)
	}
	n.unmounts(volume)
	if err := n.Narrow(t.Context(), volume, nil); !errors.Is(err, mounter.ErrNotMounted) {
		t.Errorf("what is not mounted: %v", err)
	}
}
