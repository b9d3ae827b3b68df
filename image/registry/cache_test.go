package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/test/fixture/images"
	"github.com/skep-dev/skep/test/harness/need"
)

// padded is an object of about that many bytes that does not compress.
func padded(t *testing.T, n int) []byte {
	t.Helper()
	noise := make([]byte, n)
	if _, err := rand.Read(noise); err != nil {
		t.Fatalf("read noise: %v", err)
	}
	return append(append([]byte(nil), images.LittleEndian...), noise...)
}

// blobPath is where a cache or a layout keeps a blob.
func blobPath(dir string, digest v1.Hash) string {
	return filepath.Join(dir, "blobs", "sha256", digest.Hex)
}

func TestDamagedCacheIsFetchedAgain(t *testing.T) {
	damages := map[string]func(path string) error{
		"cut short":      func(p string) error { return os.Truncate(p, 3) },
		"emptied":        func(p string) error { return os.Truncate(p, 0) },
		"grown":          func(p string) error { return os.Truncate(p, 1<<40) },
		"altered":        flip,
		"a link":         func(p string) error { return swap(p, func(p string) error { return os.Symlink("/etc/hostname", p) }) },
		"a pipe":         func(p string) error { return swap(p, func(p string) error { return syscall.Mkfifo(p, 0o600) }) },
		"an empty place": os.Remove,
	}
	srv := images.Real(t)
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	mustPush(t, newTestClient(t), srv.Host+"/bpf/damage:v1", b)
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := newTestClient(t, cachedIn(dir))
			r := image.Resolved{Registry: srv.Host, Repository: "bpf/damage", Digest: b.Digest()}
			first := mustPull(t, c, r)
			before := images.Blobs(t, dir)
			for blob := range before {
				if err := damage(filepath.Join(dir, "blobs", "sha256", blob)); err != nil {
					t.Fatalf("damage: %v", err)
				}
			}
			if _, err := c.Object(t.Context(), first.ObjectDigest); !errors.Is(err, image.ErrNotFound) {
				t.Errorf("Object from a damaged cache: %v, want ErrNotFound", err)
			}
			srv.Taken()
			if diff := cmp.Diff(first, mustPull(t, c, r), cmpopts.IgnoreUnexported(Image{})); diff != "" {
				t.Errorf("pulled another image (-first +again):\n%s", diff)
			}
			if got := len(srv.Taken()); got != 3 {
				t.Errorf("%d requests to fix the cache, want 3", got)
			}
			if diff := cmp.Diff(before, images.Blobs(t, dir)); diff != "" {
				t.Errorf("the cache was not fixed (-before +after):\n%s", diff)
			}
		})
	}
}

// flip changes one bit.
func flip(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return os.WriteFile(path, data, 0o600)
}

// TestForgedCacheLeadsNowhereElse: whoever writes the cache cannot make one
// digest yield another's object, since each step is hashed.
func TestForgedCacheLeadsNowhereElse(t *testing.T) {
	srv := images.Real(t)
	dir := t.TempDir()
	c := newTestClient(t, cachedIn(dir))
	good := mustPush(t, c, srv.Host+"/bpf/good:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	evil := mustPush(t, c, srv.Host+"/bpf/evil:v1", images.MustBuild(t, images.BigEndian, image.BuildOptions{}))
	mustPull(t, c, good)
	mustPull(t, c, evil)
	from, to := blobPath(dir, sumOf(t, evil.Digest)), blobPath(dir, sumOf(t, good.Digest))
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	if got := mustPull(t, c, good); !bytes.Equal(got.Object, images.LittleEndian) {
		t.Error("a forged cache changed what a digest stands for")
	}
}

func TestFullDisk(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	srv := images.Real(t)
	c := newTestClient(t, cachedIn(dir+"/cache"))
	small := mustPush(t, c, srv.Host+"/bpf/small:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	mustPull(t, c, small)
	before := images.Blobs(t, dir+"/cache")

	big := mustPush(t, c, srv.Host+"/bpf/big:v1", images.MustBuild(t, padded(t, 400<<10), image.BuildOptions{}))
	_, err := c.Pull(t.Context(), big)
	refused(t, err, image.ErrCache, "no space left on device")
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, image.ErrMalformed) || errors.Is(err, image.ErrUnavailable) {
		t.Errorf("got %v, want ENOSPC that is no fault of image or registry", err)
	}
	for blob, size := range images.Blobs(t, dir+"/cache") {
		if atomicfile.IsTemporary(blob) || before[blob] == 0 && size > 100<<10 {
			t.Errorf("left half-written: %s, %d bytes", blob, size)
		}
	}
	srv.Taken()
	mustPull(t, c, small)
	if got := srv.Taken(); len(got) != 0 {
		t.Errorf("what was cached before the disk was full takes requests: %v", got)
	}

	_, err = c.Copy(t.Context(), big, "oci:"+dir+"/layout:v1")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Copy to a full disk: %v, want ENOSPC", err)
	}
	for name := range images.Files(t, dir) {
		if atomicfile.IsTemporary(filepath.Base(name)) {
			t.Errorf("left half-written: %s", name)
		}
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatalf("remount: %v", err)
	}
	mustPull(t, c, big)
}

func TestCacheThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	if _, err := NewClient(Options{CacheDir: dir + "/file/cache"}); !errors.Is(err, image.ErrCache) {
		t.Errorf("a cache below a file: %v, want ErrCache", err)
	}
}

func TestWhatCannotBeReadNowStaysInTheCache(t *testing.T) {
	dir := t.TempDir()
	c := newTestClient(t, cachedIn(dir))
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	srv := images.Real(t)
	r := mustPush(t, c, srv.Host+"/bpf/kept:v1", b)
	object := mustPull(t, c, r).ObjectDigest
	before := images.Blobs(t, dir)
	images.WithoutFiles(t, func() {
		if _, err := c.Object(t.Context(), object); !errors.Is(err, image.ErrCache) || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("Object with too many open files: %v, want ErrCache", err)
		}
	})
	if diff := cmp.Diff(before, images.Blobs(t, dir)); diff != "" {
		t.Errorf("blobs (-want +got):\n%s", diff)
	}
}

func TestObjectWithoutCache(t *testing.T) {
	c := newTestClient(t)
	if _, err := c.Object(t.Context(), image.Sum(nil).String()); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("Object without a cache: %v, want ErrNotFound", err)
	}
	if _, err := c.Object(t.Context(), "sha256:short"); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Object of no digest: %v, want ErrMalformed", err)
	}
	if got, err := c.Cache().Prune(t.Context(), disk.PruneOptions{}); err != nil || got != (disk.Pruned{}) {
		t.Errorf("Prune without a cache: %v, %v", got, err)
	}
}

// childCache is the environment variable that makes the test binary a process
// which pulls into a cache that others use too.
const childCache = "SKEP_TEST_CHILD_CACHE"

func TestChildProcess(t *testing.T) {
	dir := os.Getenv(childCache)
	if dir == "" {
		t.Skip("it is run by TestProcessesShareACache")
	}
	for range 30 {
		c := newTestClient(t, cachedIn(dir))
		img := mustPull(t, c, image.Resolved{Registry: os.Getenv("SKEP_TEST_HOST"), Repository: "bpf/shared", Digest: os.Getenv("SKEP_TEST_DIGEST")})
		if !bytes.Equal(img.Object, images.LittleEndian) {
			t.Fatal("pulled something else")
		}
	}
}

func TestProcessesShareACache(t *testing.T) {
	srv := images.Real(t)
	dir := t.TempDir()
	c := newTestClient(t, cachedIn(dir))
	r := mustPush(t, c, srv.Host+"/bpf/shared:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	done, stop := context.WithCancel(t.Context())
	defer stop()
	var pruning sync.WaitGroup
	pruning.Go(func() {
		for done.Err() == nil {
			if _, err := c.Cache().Prune(t.Context(), disk.PruneOptions{MinAge: time.Nanosecond}); err != nil {
				t.Errorf("Prune: %v", err)
			}
		}
	})
	var children sync.WaitGroup
	for range 4 {
		children.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildProcess$", "-test.count=1")
			cmd.Env = append(os.Environ(), childCache+"="+dir, "SKEP_TEST_HOST="+srv.Host, "SKEP_TEST_DIGEST="+r.Digest)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
	children.Wait()
	stop()
	pruning.Wait()
	for blob := range images.Blobs(t, dir) {
		if atomicfile.IsTemporary(blob) {
			t.Errorf("left half-written: %s", blob)
		}
	}
}

func TestManyPullsAtOnce(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t, cachedIn(t.TempDir()))
	r := mustPush(t, c, srv.Host+"/bpf/many:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if img, err := c.Pull(t.Context(), r); err != nil || !bytes.Equal(img.Object, images.LittleEndian) {
				t.Errorf("Pull: %v", err)
			}
		})
	}
	group.Wait()
}

func TestPrune(t *testing.T) {
	hour := time.Now().Add(-time.Hour)
	tests := map[string]struct {
		options func(kept *Image) disk.PruneOptions
		left    int
	}{
		"nothing is kept": {
			func(*Image) disk.PruneOptions { return disk.PruneOptions{} }, 0},
		"an image is kept with all that it leads to": {
			func(kept *Image) disk.PruneOptions {
				return disk.PruneOptions{Keep: func(d string) bool { return d == kept.Digest }}
			}, 4},
		"an image and its object are kept": {
			func(kept *Image) disk.PruneOptions {
				return disk.PruneOptions{Keep: func(d string) bool { return d == kept.Digest || d == kept.ObjectDigest }}
			}, 5},
		"what was used lately is spared": {
			func(*Image) disk.PruneOptions { return disk.PruneOptions{MinAge: 2 * time.Hour} }, 9},
		"the cache is within its bound": {
			func(*Image) disk.PruneOptions { return disk.PruneOptions{MaxBytes: mib} }, 9},
		"it is, and what nobody used for long goes": {
			func(kept *Image) disk.PruneOptions {
				return disk.PruneOptions{MaxBytes: mib, MaxAge: 50 * time.Minute, Keep: func(d string) bool { return d == kept.Digest }}
			}, 4},
		"it is, and nothing was unused for so long": {
			func(*Image) disk.PruneOptions { return disk.PruneOptions{MaxBytes: mib, MaxAge: 2 * time.Hour} }, 9},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := newTestClient(t, cachedIn(dir))
			index, err := image.BuildIndex(map[string][]byte{"linux/amd64": images.LittleEndian, "linux/s390x": images.BigEndian}, image.BuildOptions{})
			if err != nil {
				t.Fatalf("BuildIndex: %v", err)
			}
			// The index leaves 5 blobs: itself, a manifest, config, layer, object.
			kept := mustPull(t, c, mustPush(t, c, "oci:"+t.TempDir()+"/one:v1", index))
			// The image leaves 4.
			mustPull(t, c, mustPush(t, c, "oci:"+t.TempDir()+"/two:v1", images.MustBuild(t, images.BigEndian, image.BuildOptions{})))
			before := images.Blobs(t, dir)
			if len(before) != 9 {
				t.Fatalf("%d blobs before, want 9", len(before))
			}
			for blob := range before {
				if err := os.Chtimes(filepath.Join(dir, "blobs", "sha256", blob), hour, hour); err != nil {
					t.Fatalf("chtimes: %v", err)
				}
			}
			got, err := c.Cache().Prune(t.Context(), test.options(kept))
			if err != nil {
				t.Fatalf("Prune: %v", err)
			}
			after := images.Blobs(t, dir)
			if len(after) != test.left || got.Blobs != len(before)-test.left {
				t.Errorf("%d blobs are left, want %d; Prune says it dropped %d", len(after), test.left, got.Blobs)
			}
			var left, all int64
			for _, size := range after {
				left += size
			}
			for _, size := range before {
				all += size
			}
			if got.Left != left || got.Bytes != all-left {
				t.Errorf("Prune says %+v; %d bytes are left of %d", got, left, all)
			}
		})
	}
}

func TestACacheThatIsFullKeepsNoMore(t *testing.T) {
	dir := t.TempDir()
	srv := images.Real(t)
	plain := newTestClient(t, cachedIn(dir))
	first := mustPush(t, plain, srv.Host+"/bpf/first:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	second := mustPush(t, plain, srv.Host+"/bpf/second:v1", images.MustBuild(t, images.BigEndian, image.BuildOptions{}))
	mustPull(t, plain, first)
	before := images.Blobs(t, dir)
	held := int64(0)
	for _, size := range before {
		held += size
	}
	// What is there counts for a client that starts anew.
	full := newTestClient(t, cachedIn(dir), func(o *Options) { o.CacheBytes = held + 10 })
	object := mustPull(t, full, second)
	if _, err := full.Object(t.Context(), object.ObjectDigest); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("a full cache kept an object: %v", err)
	}
	if _, err := full.Cache().Prune(t.Context(), disk.PruneOptions{MinAge: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	mustPull(t, full, second)
	if _, err := full.Object(t.Context(), object.ObjectDigest); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
