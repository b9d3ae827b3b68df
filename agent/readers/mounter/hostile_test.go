package mounter_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
)

func TestWhatIsNoVolumeIsNotMounted(t *testing.T) {
	n := newNode(t)
	for sentence, v := range map[string]mounter.Volume{
		"a pod that is a way up":     {Pod: "..", Name: "maps"},
		"a pod with a way up":        {Pod: pod + "/../" + pod, Name: "maps"},
		"a pod of upper case":        {Pod: strings.ToUpper(pod), Name: "maps"},
		"a pod without a UID":        {Name: "maps"},
		"a volume that is a way up":  {Pod: pod, Name: ".."},
		"a volume with a way up":     {Pod: pod, Name: "maps/../maps"},
		"a volume with a slash":      {Pod: pod, Name: "maps/mount"},
		"a volume with a zero byte":  {Pod: pod, Name: "maps\x00"},
		"a volume with a line feed":  {Pod: pod, Name: "maps\n"},
		"a pod that is not there":    {Pod: other, Name: "maps"},
		"a volume that is not there": {Pod: pod, Name: "absent"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if err := n.tries(v); err == nil {
				t.Errorf("it was mounted: %v", n.mountpoints())
			}
			if left := n.mountpoints(); len(left) > 0 {
				t.Errorf("something was mounted: %v", left)
			}
		})
	}
}

// TestAPathOfAVolumeIsFollowedNowhere puts symlinks and mounts in each place of a target's path.
func TestAPathOfAVolumeIsFollowedNowhere(t *testing.T) {
	for sentence, prepare := range map[string]func(n *node, theirs string) error{
		"the target is a symlink to a folder": func(n *node, theirs string) error {
			return os.Symlink(theirs, n.target(volume))
		},
		"the target is a symlink within the folder": func(n *node, _ string) error {
			return errors.Join(os.Mkdir(filepath.Join(n.folder(volume), "inner"), 0o755), os.Symlink("inner", n.target(volume)))
		},
		"the target is a file": func(n *node, _ string) error {
			return os.WriteFile(n.target(volume), nil, 0o600)
		},
		"the volume is a symlink to another pod's": func(n *node, _ string) error {
			n.makes(mounter.Volume{Pod: other, Name: "maps"})
			return errors.Join(os.Remove(n.folder(volume)), os.Symlink(n.folder(mounter.Volume{Pod: other, Name: "maps"}), n.folder(volume)))
		},
		"the pod is a symlink": func(n *node, _ string) error {
			return errors.Join(os.Rename(filepath.Join(n.pods, pod), filepath.Join(n.pods, "moved")), os.Symlink("moved", filepath.Join(n.pods, pod)))
		},
		"the volumes are mounted from elsewhere": func(n *node, theirs string) error {
			at := filepath.Dir(n.folder(volume))
			if err := os.MkdirAll(filepath.Join(theirs, "maps"), 0o755); err != nil {
				return err
			}
			n.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			return unix.Mount(theirs, at, "", unix.MS_BIND, "")
		},
		"something is mounted at the target": func(n *node, theirs string) error {
			n.Cleanup(func() { _ = unix.Unmount(n.target(volume), unix.MNT_DETACH) })
			return errors.Join(os.Mkdir(n.target(volume), 0o755), unix.Mount(theirs, n.target(volume), "", unix.MS_BIND, ""))
		},
		"another tmpfs is mounted at the target": func(n *node, _ string) error {
			n.Cleanup(func() { _ = unix.Unmount(n.target(volume), unix.MNT_DETACH) })
			return errors.Join(os.Mkdir(n.target(volume), 0o755), unix.Mount("skep", n.target(volume), "tmpfs", 0, ""))
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			n, theirs := newNode(t), t.TempDir()
			if err := prepare(n, theirs); err != nil {
				t.Fatal(err)
			}
			before := n.mountpoints()
			if err := n.tries(volume); err == nil {
				t.Error("it was mounted")
			}
			if _, err := n.Update(t.Context(), volume, nil); err == nil {
				t.Error("it was updated")
			}
			_ = n.Unmount(t.Context(), volume)
			if now := n.mountpoints(); strings.Join(now, " ") != strings.Join(before, " ") {
				t.Errorf("mounts are %v, and were %v", now, before)
			}
			if found, err := os.ReadDir(theirs); err != nil || len(found) > 1 || len(found) == 1 && found[0].Name() != "maps" {
				t.Errorf("in the folder of others there are %v, %v", found, err)
			}
		})
	}
}

// TestATargetThatChangesDuringAMountLeadsNowhere swaps the target with a symlink to a folder of others, all the time.
func TestATargetThatChangesDuringAMountLeadsNowhere(t *testing.T) {
	n, theirs := newNode(t), shared(t)
	link := filepath.Join(n.folder(volume), "link")
	if err := errors.Join(os.Mkdir(n.target(volume), 0o755), os.Symlink(theirs, link)); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, n.target(volume), unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				runtime.Gosched()
			}
		}
	})
	mounted := 0
	for range 300 {
		if n.tries(volume) == nil {
			mounted++
		}
		_ = n.Unmount(t.Context(), volume)
	}
	close(end)
	swaps.Wait()
	t.Logf("%d of 300 were mounted", mounted)
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(all), theirs+"/") || strings.Count(string(all), " "+theirs+" ") != 1 {
		t.Errorf("something is mounted in the folder of others: %v\n%s", err, all)
	}
	if found, err := os.ReadDir(theirs); err != nil || len(found) > 0 {
		t.Errorf("in the folder of others there are %v, %v", found, err)
	}
}

// TestRequestsThatNoAgentMakesAreRefused speaks the protocol by hand.
func TestRequestsThatNoAgentMakesAreRefused(t *testing.T) {
	n := newNode(t)
	m := newMap(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	ask := func(body string, descriptors ...int) string {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: n.Socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, _, err := c.WriteMsgUnix([]byte(body), unix.UnixRights(descriptors...), nil); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 128<<10)
		k, err := c.Read(answer)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Error string }
		if err := json.Unmarshal(answer[:k], &r); err != nil {
			t.Fatal(err)
		}
		return r.Error
	}
	of := `"pod": "` + pod + `", "name": "maps"`
	for sentence, c := range map[string]struct {
		body        string
		descriptors []int
		want        string
	}{
		"no JSON":                           {"{", nil, "does not take the request"},
		"an operation that is none":         {`{"op": "chmod", ` + of + `}`, nil, `does not know "chmod"`},
		"no pod":                            {`{"op": "mount"}`, nil, "is not the UID"},
		"a group that is none":              {`{"op": "mount", "group": 4294967295, ` + of + `}`, nil, "is no group"},
		"a negative group":                  {`{"op": "mount", "group": -1, ` + of + `}`, nil, "does not take the request"},
		"a pin without a map":               {`{"op": "mount", ` + of + `, "pins": [{"name": "a"}]}`, nil, "1 pins with 0 descriptors"},
		"a map without a pin":               {`{"op": "mount", ` + of + `}`, []int{m.FD()}, "0 pins with 1 descriptors"},
		"a pin that leads up":               {`{"op": "mount", ` + of + `, "pins": [{"name": ".."}]}`, []int{m.FD()}, "is not the name of a pin"},
		"a pin in another folder":           {`{"op": "mount", ` + of + `, "pins": [{"name": "../maps@write/a"}]}`, []int{m.FD()}, "is not the name of a pin"},
		"the name that pins have meanwhile": {`{"op": "mount", ` + of + `, "pins": [{"name": "+"}]}`, []int{m.FD()}, "is not the name of a pin"},
		"two pins of one name": {`{"op": "mount", ` + of + `, "pins": [{"name": "a"}, {"name": "a", "write": true}]}`, []int{m.FD(), m.FD()},
			"pinned twice"},
		"a descriptor of another kind": {`{"op": "mount", ` + of + `, "pins": [{"name": "a"}]}`, []int{int(null.Fd())}, "not a map"},
		"a record that is too long":    {`{"op": "mount", ` + of + `, "record": "` + strings.Repeat("AAAA", 4<<10) + `"}`, nil, "at most 4096"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if said := ask(c.body, c.descriptors...); !strings.Contains(said, c.want) {
				t.Errorf("it says %q, want %q", said, c.want)
			}
			if left := n.mountpoints(); len(left) > 0 {
				t.Errorf("something was mounted: %v", left)
			}
		})
	}
}

// reached is the environment variable by which TestOnlyRootIsAnswered runs as another user.
const reached = "SKEP_TEST_MOUNTER_SOCKET"

// TestOnlyRootIsAnswered has the socket's folders opened to other users, who are refused all the same.
func TestOnlyRootIsAnswered(t *testing.T) {
	if socket := os.Getenv(reached); socket != "" {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			t.Fatalf("the test does not come to the socket: %v", err)
		}
		_, _ = c.Write([]byte(`{"op": "list"}`))
		if n, err := c.Read(make([]byte, 1)); n > 0 {
			t.Fatalf("it was answered: %v", err)
		}
		t.Log("it was not answered")
		return
	}
	n := newNode(t)
	for path, want := range map[string]fs.FileMode{n.Socket: 0o600, filepath.Dir(n.Socket): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
	}
	for path := n.Socket; path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOnlyRootIsAnswered$", "-test.v")
	cmd.Env = append(os.Environ(), reached+"="+n.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: group, Gid: group}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "it was not answered") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := n.List(t.Context()); err != nil {
		t.Errorf("root is not answered: %v", err)
	}
}

// TestWhereMountsDoNotComeToTheNodeThereIsNoMounter is of a container without the propagation.
func TestWhereMountsDoNotComeToTheNodeThereIsNoMounter(t *testing.T) {
	n := newNode(t)
	if err := unix.Mount("", n.pods, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := mounter.New(mounter.Options{Pods: n.pods, Scratch: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "Bidirectional") {
		t.Errorf("it starts: %v", err)
	}
	if _, err := mounter.New(mounter.Options{Pods: filepath.Join(n.pods, "absent"), Scratch: t.TempDir()}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it starts without pods: %v", err)
	}
}

// FuzzRequests has the mounter get anything as root. Whatever it is, nothing is mounted but a target.
func FuzzRequests(f *testing.F) {
	of := `"pod": "` + pod + `", "name": "maps"`
	for _, seed := range []string{`{"op": "mount", ` + of + `, "group": 1}`, `{"op": "update", ` + of + `}`, `{"op": "unmount", ` + of + `}`, `{"op": "list"}`,
		`{"op": "mount", "pod": "..", "name": "../.."}`, `{"op": "mount", ` + of + `, "pins": [{"name": "../a"}]}`} {
		f.Add([]byte(seed))
	}
	made := newNode(f)
	target := pod + "/volumes/kubernetes.io~csi/maps/mount"
	f.Fuzz(func(t *testing.T, body []byte) {
		n := &node{TB: t, pods: made.pods, Client: made.Client}
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: n.Socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write(body); err != nil || len(body) == 0 {
			return // longer than a message can be, or none
		}
		if _, err := c.Read(make([]byte, 128<<10)); err != nil {
			t.Errorf("it does not answer: %v", err)
		}
		for _, at := range n.mountpoints() {
			if at != target && at != target+"/maps" && at != target+"/maps@write" {
				t.Errorf("%q mounts %s", body, at)
			}
		}
		n.unmounts(volume)
	})
}
