package nodemode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// silent is the address of a git server that accepts connections and never answers. asked receives a value for each connection.
func silent(t *testing.T) (address string, asked <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		var open []net.Conn
		for {
			c, err := listener.Accept()
			if err != nil {
				break
			}
			open = append(open, c)
			connections <- struct{}{}
		}
		for _, c := range open {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-ended })
	return "https://" + listener.Addr().String() + "/defs.git", connections
}

// start runs a host until the test ends, or until stop.
func (s *stage) start(h *Host) (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, nil) }()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				s.t.Error(err)
			}
		}
	}
	s.t.Cleanup(stop)
	return stop
}

// loaded has a host load definitions, and ends it.
func (s *stage) loaded(names ...string) {
	s.t.Helper()
	h := s.open()
	before := s.pass(h)
	for _, name := range names {
		if running(before[name]) == 0 {
			s.t.Fatalf("%s is not loaded: %+v", name, before[name])
		}
	}
	if err := h.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// revoke writes that a signer is revoked.
func (s *stage) revoke(name string) {
	s.t.Helper()
	s.signers[name].Spec.Revoked = true
	s.writeSigners()
}

// annotated is a policy by which what a ticket names is allowed if one of the signers signed it.
const annotated = "package skep.policy\n\ndeny contains \"no ticket\" if not input.application.metadata.annotations.ticket\n\n" +
	"deny contains \"nobody signed it\" if count(input.signatures) == 0\n"

// TestARevocationWaitsForNoSourceAtAStart revokes a signer while no host runs, and starts one whose source does not answer: what is
// denied ends, by what its definition said when it was read last, and nothing else does.
func TestARevocationWaitsForNoSourceAtAStart(t *testing.T) {
	for name, c := range map[string]struct {
		// forgets: the state does not have what definitions said.
		forgets, isWrittenLater bool
		// isOver: the wait for the source is over.
		isOver bool
	}{
		"revoked before the start":                          {},
		"revoked while the source is waited for":            {isWrittenLater: true},
		"revoked before the start, and the state lost them": {forgets: true},
		"revoked before the start, and the wait is over":    {isOver: true},
		"revoked later, and the wait is over":               {isOver: true, isWrittenLater: true},
		"the state lost them, and the wait is over":         {isOver: true, forgets: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.policy(annotated, v1alpha1.RunningKeep)
			for name, signers := range map[string][]string{"revoked": {"team-a"}, "both": {"team-a", "team-b"}, "other": {"team-b"}} {
				s.ticketed(name, s.push(first, name+":v1", signers...))
			}
			s.loaded("revoked", "both", "other")
			if c.forgets {
				if err := os.Remove(filepath.Join(s.state, definitionsFile)); err != nil {
					t.Fatal(err)
				}
			}
			if !c.isWrittenLater {
				s.revoke("team-a")
			}
			address, asked := silent(t)
			h := s.open(func(o *Options) { o.Source, o.Interval, o.Now = address, time.Hour, nil })
			if h.catalog.waited = time.Hour; c.isOver {
				h.catalog.waited = 100 * time.Millisecond
			}
			stop := s.start(h)
			<-asked
			if c.isWrittenLater {
				s.revoke("team-a")
			}
			if !c.forgets {
				eventually(t, "the revoked one is unloaded", func() bool { return isUnloaded(h, "revoked") })
			}
			if c.isOver {
				first := time.Time{}
				eventually(t, "the sync is over", func() bool { first = h.Status().Synced; return !first.IsZero() })
				h.poke()
				eventually(t, "the next one is, too", func() bool { return h.Status().Synced.After(first) })
			} else if !h.Status().Synced.IsZero() {
				t.Error("the sync did not wait for the source")
			}
			// The round that unloads has ended then.
			stop()
			if c.forgets && isUnloaded(h, "revoked") || isUnloaded(h, "both") || isUnloaded(h, "other") {
				t.Errorf("more than the revoked one is unloaded: %+v", h.agent.Intents())
			}
		})
	}
}

// TestLargeAnnotationsCrowdNoOtherDefinitionOut has definitions say more together than a start knows: what the others say counts at a
// start as if the largest were not there, which is what is left out.
func TestLargeAnnotationsCrowdNoOtherDefinitionOut(t *testing.T) {
	s := newStage(t)
	s.policy(annotated, v1alpha1.RunningKeep)
	ref := s.push(first, "both:v1", "team-a", "team-b")
	sizes := map[string]int{"both": 0, "large-1": 200_000, "large-2": 210_000, "large-3": 220_000, "largest": 230_000}
	for name, size := range sizes {
		s.annotated(name, ref, size)
	}
	s.ticketed("revoked", s.push(first, "revoked:v1", "team-a"))
	s.loaded("both", "large-1", "large-2", "large-3", "largest", "revoked")
	s.revoke("team-a")
	address, asked := silent(t)
	silently := func(o *Options) { o.Source, o.Interval, o.Now = address, time.Hour, nil }
	h := s.open(silently)
	h.catalog.waited = time.Hour
	stop := s.start(h)
	<-asked
	eventually(t, "the revoked one is unloaded", func() bool { return isUnloaded(h, "revoked") })
	stop()
	for name := range sizes {
		if isUnloaded(h, name) {
			t.Errorf("%s is unloaded while the source is waited for", name)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = s.open(silently)
	h.catalog.waited = time.Millisecond
	s.start(h)
	eventually(t, "the sync is over", func() bool { return !h.Status().Synced.IsZero() })
	for name := range sizes {
		if is := isUnloaded(h, name); is != (name == "largest") {
			t.Errorf("when the wait is over, %s is unloaded: %t", name, is)
		}
	}
}

// TestWhatCouldNotBeKeptIsKeptLater has the files of what was read last be places where no file can be, for a while.
func TestWhatCouldNotBeKeptIsKeptLater(t *testing.T) {
	for name, said := range map[string]string{definitionsFile: "at the next start", settingsFile: "the next start does not know"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.define("app", s.push(first, "app:v1", "team-a"))
			var log bytes.Buffer
			path := filepath.Join(s.state, name)
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("none", path, "tmpfs", 0, "size=4k"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
			h := s.open(func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			log.Reset()
			s.policy(annotated, v1alpha1.RunningKeep)
			for range 3 {
				s.pass(h)
			}
			if n := strings.Count(log.String(), said); n > 1 {
				t.Errorf("the same error is logged %d times:\n%s", n, log.String())
			}
			if err := errors.Join(unix.Unmount(path, 0), os.RemoveAll(path)); err != nil {
				t.Fatal(err)
			}
			s.pass(h)
			if _, err := os.Stat(path); err != nil {
				t.Errorf("what was read last is not kept: %v", err)
			}
		})
	}
}

// ticketed is define with an annotation.
func (s *stage) ticketed(name, ref string) {
	s.t.Helper()
	s.annotated(name, ref, 0)
}

// annotated is ticketed with another annotation, of a number of bytes.
func (s *stage) annotated(name, ref string, bytes int) {
	s.t.Helper()
	annotations := "metadata:\n  annotations: {ticket: \"1\", note: \"" + strings.Repeat("x", bytes) + "\"}\n"
	body := strings.Replace(string(s.definition(name, ref)), "metadata:\n", annotations, 1)
	s.write(filepath.Join(s.defs, name+".yaml"), []byte(body))
}

// TestARevocationAtAStartFollowsNoTag moves the tag of what is revoked while nothing looks, and has the source answer late.
func TestARevocationAtAStartFollowsNoTag(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	s.loaded("app")
	s.push(second, "app:v1", "team-b")
	s.revoke("team-a")
	h := s.open()
	folder := h.catalog.source
	server := hanging{make(chan struct{}), make(chan struct{})}
	h.catalog.source = server
	close(server.letGo)
	if s.pass(h); !isUnloaded(h, "app") {
		t.Errorf("the revocation did not act: %+v", h.agent.Intents())
	}
	h.catalog.source = folder
	for range 2 {
		if app := s.pass(h)["app"]; running(app) != 0 || !strings.Contains(app.Unloaded, "team-a") {
			t.Errorf("program %d runs, unloaded %q", running(app), app.Unloaded)
		}
	}
}

// TestARevocationActsAmidASync revokes a signer while a sync evaluates what it cannot read from a disk that hangs, and then lets that
// go: what is denied ends at once, and is not brought back by what the sync had found out before.
func TestARevocationActsAmidASync(t *testing.T) {
	s := newStage(t)
	s.define("revoked", s.push(first, "revoked:v1", "team-a"))
	s.define("slow", s.push(second, "slow:v1", "team-b"))
	s.loaded("revoked", "slow")
	h := s.open(func(o *Options) { o.Interval, o.Now = time.Hour, nil })
	letGo := s.hangs(h, "slow")
	// The sync finds that a change of it is allowed.
	changed := strings.Replace(string(s.definition("revoked", s.registry+"/bpf/revoked@"+intentOf(t, h, "revoked").ImageDigest)),
		"spec:\n", "spec:\n  nodeSelector: {matchLabels: {kubernetes.io/os: linux}}\n", 1)
	s.write(filepath.Join(s.defs, "revoked.yaml"), []byte(changed))
	s.start(h)
	write := -1
	t.Cleanup(func() { _, _ = os.Remove(letGo), unix.Close(write) })
	eventually(t, "the sync reads what is on the disk that hangs", func() bool {
		var err error
		write, err = unix.Open(letGo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err == nil
	})
	s.revoke("team-a")
	eventually(t, "the revoked one is unloaded", func() bool { return isUnloaded(h, "revoked") })
	if !h.Status().Synced.IsZero() {
		t.Error("the sync was over")
	}
	if err := os.Remove(letGo); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(write)
	write = -1
	eventually(t, "the sync ends", func() bool { return !h.Status().Synced.IsZero() })
	if !isUnloaded(h, "revoked") || isUnloaded(h, "slow") || runs(h, "slow") == 0 {
		t.Errorf("after the sync, the intents are %+v", h.agent.Intents())
	}
}

// TestASyncEndsWhilePoliciesChangeAllTheTime changes one whenever it is read. What the last rounds decided by policies that are
// older by then, another sync at once decides anew.
func TestASyncEndsWhilePoliciesChangeAllTheTime(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	s.loaded("app")
	h := s.open()
	changed := make(chan struct{})
	close(changed)
	h.settingsChanged = changed
	reads := 0
	h.settings.now = func() time.Time {
		reads++
		s.policy(fmt.Sprintf("%s\nwarn contains \"read %d times\"\n", annotated, reads), v1alpha1.RunningKeep)
		return s.now
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if h.Sync(ctx); h.Status().Synced.IsZero() {
		t.Errorf("the sync did not end, and read policies %d times", reads)
	}
	select {
	case <-h.wake:
	default:
		t.Error("no sync follows at once")
	}
}

// hangs makes the evidence of an application a file whose reader waits, and returns its path.
func (s *stage) hangs(h *Host, name string) string {
	s.t.Helper()
	_, digest, _ := strings.Cut(intentOf(s.t, h, name).ImageDigest, ":")
	files, err := filepath.Glob(filepath.Join(h.memory.Dir, "*"+digest+"*"))
	if err != nil || len(files) != 1 {
		s.t.Fatalf("the evidence of %s is in %q: %v", name, files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Mkfifo(files[0], 0o600); err != nil {
		s.t.Fatal(err)
	}
	return files[0]
}

// intentOf is the intent that the agent has of an application.
func intentOf(t testing.TB, h *Host, name string) intent.Payload {
	t.Helper()
	for _, o := range h.agent.Intents() {
		if p := o.Payload(); p.Application.Name == name {
			return p
		}
	}
	t.Fatalf("%s has no intent", name)
	return intent.Payload{}
}

// TestARevocationIsSeenHoweverItIsWritten writes it in each way that an admin, or a tool of theirs, replaces files.
func TestARevocationIsSeenHoweverItIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		// signers is what the option names, in a folder that prepare fills; replace writes the revocation.
		signers          string
		prepare, replace func(s *stage, dir string)
	}{
		"over the file": {
			"signers.yaml", func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "signers.yaml")) },
			func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "signers.yaml")) },
		},
		"by renaming a file": {
			"signers.yaml", func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "signers.yaml")) },
			func(s *stage, dir string) {
				s.signersIn(filepath.Join(dir, "new"))
				s.rename(filepath.Join(dir, "new"), filepath.Join(dir, "signers.yaml"))
			},
		},
		"by another link to the folder": {
			"current/signers.yaml", func(s *stage, dir string) { s.linked(dir, "one") },
			func(s *stage, dir string) { s.linked(dir, "two") },
		},
		"by another folder": {
			"signers", func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "signers", "all.yaml")) },
			func(s *stage, dir string) {
				s.signersIn(filepath.Join(dir, "next", "all.yaml"))
				s.swap(filepath.Join(dir, "signers"), filepath.Join(dir, "next"))
			},
		},
		"by another folder of the file": {
			"signers/all.yaml", func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "signers", "all.yaml")) },
			func(s *stage, dir string) {
				s.signersIn(filepath.Join(dir, "next", "all.yaml"))
				s.swap(filepath.Join(dir, "signers"), filepath.Join(dir, "next"))
			},
		},
		"by another folder further up": {
			"etc/skep/signers", func(s *stage, dir string) { s.signersIn(filepath.Join(dir, "etc", "skep", "signers", "all.yaml")) },
			func(s *stage, dir string) {
				s.signersIn(filepath.Join(dir, "next", "skep", "signers", "all.yaml"))
				s.swap(filepath.Join(dir, "etc"), filepath.Join(dir, "next"))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.define("app", s.push(first, "app:v1", "team-a"))
			s.define("later", s.push(second, "later:v1", "team-b"))
			dir := t.TempDir()
			c.prepare(s, dir)
			h := s.open(func(o *Options) {
				o.Interval, o.Now, o.Signers = time.Hour, nil, []string{filepath.Join(dir, c.signers)}
			})
			s.start(h)
			eventually(t, "both are loaded", func() bool { return runs(h, "app") != 0 && runs(h, "later") != 0 })
			s.signers["team-a"].Spec.Revoked = true
			c.replace(s, dir)
			eventually(t, "it is unloaded", func() bool { return isUnloaded(h, "app") })
			s.signers["team-b"].Spec.Revoked = true
			again := filepath.Join(dir, c.signers)
			if filepath.Ext(again) == "" {
				again = filepath.Join(again, "all.yaml")
			}
			s.signersIn(again)
			eventually(t, "what is written after that is seen, too", func() bool { return isUnloaded(h, "later") })
		})
	}
}

// TestARevocationIsSeenInTheRootFolder writes it to a file that is in no folder but the root.
func TestARevocationIsSeenInTheRootFolder(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	file, err := os.CreateTemp("/", "skep-test-*.yaml")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _, _ = file.Close(), os.Remove(file.Name()) })
	s.signersIn(file.Name())
	h := s.open(func(o *Options) { o.Interval, o.Now, o.Signers = time.Hour, nil, []string{file.Name()} })
	s.start(h)
	eventually(t, "it is loaded", func() bool { return runs(h, "app") != 0 })
	s.revoke("team-a")
	eventually(t, "it is unloaded", func() bool { return isUnloaded(h, "app") })
}

// TestARevocationIsSeenInAFolderThatIsWrittenToAllTheTime writes beside it more often than a burst of changes ends.
func TestARevocationIsSeenInAFolderThatIsWrittenToAllTheTime(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	dir := filepath.Join(t.TempDir(), "signers")
	s.signersIn(filepath.Join(dir, "all.yaml"))
	h := s.open(func(o *Options) { o.Interval, o.Now, o.Signers = time.Hour, nil, []string{dir} })
	s.start(h)
	eventually(t, "it is loaded", func() bool { return runs(h, "app") != 0 })
	s.signers["team-a"].Spec.Revoked = true
	s.signersIn(filepath.Join(dir, "all.yaml"))
	enough, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-enough:
				return
			case <-time.After(time.Millisecond):
				_ = os.WriteFile(filepath.Join(dir, "log.txt"), []byte(time.Now().String()), 0o600)
			}
		}
	}()
	defer func() { close(enough); <-ended }()
	eventually(t, "it is unloaded", func() bool { return isUnloaded(h, "app") })
}

// TestARevocationWaitsForNoDiskOfTheSource has the source be on a disk that hangs, revokes a signer and ends the host.
func TestARevocationWaitsForNoDiskOfTheSource(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	s.loaded("app")
	h := s.open(func(o *Options) { o.Interval, o.Now = time.Hour, nil })
	h.catalog.waited = time.Hour
	s.revoke("team-a")
	defer hangingDisk(t, s.defs)()
	stop := s.start(h)
	eventually(t, "it is unloaded", func() bool { return isUnloaded(h, "app") })
	ended := make(chan struct{})
	go func() { defer close(ended); stop() }()
	eventually(t, "the host ends", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// hangingDisk mounts a file system over a folder that answers nothing until it is let go, or the test ends.
func hangingDisk(t *testing.T, dir string) (letGo func()) {
	t.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE: ", err)
	}
	letGo = sync.OnceFunc(func() { _, _ = unix.Close(device), unix.Unmount(dir, unix.MNT_DETACH) })
	t.Cleanup(letGo)
	if err := unix.Mount("hangs", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
		t.Skip("no FUSE: ", err)
	}
	return letGo
}

// signersIn writes the signers to a file, in a folder that it makes.
func (s *stage) signersIn(path string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.signersFile = path
	s.writeSigners()
}

// linked writes the signers into a folder of dir, and has the link current lead there.
func (s *stage) linked(dir, target string) {
	s.t.Helper()
	s.signersIn(filepath.Join(dir, target, "signers.yaml"))
	link := filepath.Join(dir, "current")
	if err := os.Symlink(target, link+".new"); err != nil {
		s.t.Fatal(err)
	}
	s.rename(link+".new", link)
}

// swap replaces a folder by another one.
func (s *stage) swap(folder, next string) {
	s.t.Helper()
	s.rename(folder, folder+".before")
	s.rename(next, folder)
}

func (s *stage) rename(from, to string) {
	s.t.Helper()
	if err := os.Rename(from, to); err != nil {
		s.t.Fatal(err)
	}
}
