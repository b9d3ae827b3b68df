package volumes_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/reader"
)

// asUser is the environment variable of a child that reads the map of a volume at a path, once its input has a line.
const asUser = "SKEP_TEST_VOLUME"

// maybeUser ends the process where it is such a child.
func maybeUser() {
	path := os.Getenv(asUser)
	if path == "" {
		return
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c, err := protocol.Dial(ctx, filepath.Join(path, skepmap.SocketFile))
	if err == nil {
		_, err = c.Do(ctx, protocol.Request{Op: protocol.Get, Map: "counts", Key: make([]byte, 4)})
	}
	_, listErr := skepmap.ReadListing(path)
	fmt.Println(errors.Join(err, listErr))
	cancel()
	os.Exit(0)
}

// TestAPodWithUsersOfItsOwnReads mounts a volume as a runtime does for hostUsers: false: with the ids of the pod's user namespace.
func TestAPodWithUsersOfItsOwnReads(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r, dir := n.mounts(n.ofCluster("web", "reader")), t.TempDir()
	world.Must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asUser+"="+dir)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 17, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 4711, Gid: 4711, Groups: []uint32{reader.ID}}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	tell, err := cmd.StdinPipe()
	world.Must(t, err)
	world.Must(t, child.Start(cmd))
	t.Cleanup(func() { _, _ = tell.Close(), cmd.Wait() })
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	world.Must(t, err)
	defer func() { _ = users.Close() }()
	tree, err := unix.OpenTree(unix.AT_FDCWD, n.path(r), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	world.Must(t, err)
	defer func() { _ = unix.Close(tree) }()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())})
	if errors.Is(err, unix.EINVAL) {
		t.Skip("SKIPPED: the kernel mounts no tmpfs with other ids (Linux 6.3)")
	}
	world.Must(t, errors.Join(err, unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	_, err = tell.Write([]byte("\n"))
	world.Must(t, errors.Join(err, cmd.Wait()))
	if got := strings.TrimSpace(out.String()); got != "<nil>" {
		t.Errorf("it is answered %s", got)
	}
}
