package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/imagestore"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// image waits for the BpfImage of a digest to be described.
func (c *cluster) image(digest string) *v1alpha1.BpfImage {
	c.t.Helper()
	o := &v1alpha1.BpfImage{ObjectMeta: metav1.ObjectMeta{Name: strings.Replace(digest, ":", "-", 1)}}
	c.until("the image to be described", func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.Spec.Repository == "" || len(o.Spec.Memory) == 0 {
			return fmt.Errorf("it says %+v", o.Spec)
		}
		return nil
	})
	return o
}

func TestWhatWasLearnedOutlivesARestartAndTheRegistry(t *testing.T) {
	c := newCluster(t)
	empty := func(o *controller.Options) { o.Cache = t.TempDir() }
	stop := c.control(empty)
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	image := c.image(app.Status.Digest)
	if got := fmt.Sprint(image.Spec.Signers, image.Spec.Programs, image.Spec.Helpers); got != "[team-a] [tracepoint_count] [bpf_get_current_pid_tgid "+
		"bpf_map_lookup_elem]" {
		t.Errorf("the image says %s", got)
	}
	stop()
	c.Down.Store(true)
	c.control(empty)
	second := application("second", c.Registry+"/bpf/app@"+app.Status.Digest)
	c.create(second)
	c.condition(second, v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed")
	c.condition(second, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	if p := c.opened(second); p == nil || p.ImageDigest != app.Status.Digest {
		t.Errorf("sealed %+v", p)
	}
}

func TestImagesThatNothingUsesAreSwept(t *testing.T) {
	c := newCluster(t)
	stop := c.control()
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	used := c.image(app.Status.Digest)
	unused := &v1alpha1.BpfImage{ObjectMeta: metav1.ObjectMeta{Name: "sha256-" + strings.Repeat("0", 64)}}
	c.create(unused)
	stop()
	now := time.Now()
	sweeper := imagestore.Sweeper{Client: c.Client, Now: func() time.Time { return now }}
	there := func(o *v1alpha1.BpfImage) bool {
		return c.Get(t.Context(), client.ObjectKeyFromObject(o), o) == nil
	}
	if err := sweeper.Sweep(t.Context()); err != nil || !there(unused) {
		t.Errorf("an image was swept at once, %v", err)
	}
	now = now.Add(25 * time.Hour)
	if err := sweeper.Sweep(t.Context()); err != nil || there(unused) || !there(used) {
		t.Errorf("unused is there: %v, used is there: %v, %v", there(unused), there(used), err)
	}
}

func TestBytecodeThatNothingNeedsLeavesTheDisk(t *testing.T) {
	c := newCluster(t)
	cache := t.TempDir()
	stop := c.control(func(o *controller.Options) { o.Cache = cache })
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	live := c.opened(app)
	c.image(app.Status.Digest)
	stop()
	folder := filepath.Join(cache, "bytecode")
	registries := supply.Client(t, registry.Options{CacheDir: folder})
	// Another image was pulled once, and is named by nothing.
	ref, digest := c.Push("unused:v1", programs.Object("xdp_count"))
	unused, err := registries.Pin(ref, digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registries.Pull(t.Context(), unused); err != nil {
		t.Fatal(err)
	}
	there := func(digest string) bool {
		_, err := os.Lstat(filepath.Join(folder, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")))
		return err == nil
	}
	age := func(by time.Duration) {
		t.Helper()
		err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return os.Chtimes(name, time.Now().Add(-by), time.Now().Add(-by))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ring := sealing.NewRing(c.keys())
	pruner := imagestore.Pruner{Reader: c.Client, Open: ring.OpenIntent, Cache: registries.Cache(), MaxBytes: 1 << 30}
	age(23 * time.Hour)
	if err := pruner.Prune(t.Context()); err != nil || !there(digest) {
		t.Errorf("an image went within a day, %v", err)
	}
	age(25 * time.Hour)
	if err := pruner.Prune(t.Context()); err != nil || there(digest) || !there(live.ImageDigest) || !there(live.ObjectDigest) {
		t.Errorf("unused is there: %v, the live image: %v, its object: %v, %v", there(digest), there(live.ImageDigest), there(live.ObjectDigest), err)
	}
	// Neither a status nor an intent names it any more.
	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: live.UID}}); err != nil {
		t.Fatal(err)
	}
	if err := pruner.Prune(t.Context()); err != nil || there(live.ImageDigest) || there(live.ObjectDigest) {
		t.Errorf("what was deleted is there: %v, %v, %v", there(live.ImageDigest), there(live.ObjectDigest), err)
	}
}

// keys are those that the cluster's controllers seal with.
func (c *cluster) keys() sealing.Keys {
	c.t.Helper()
	sealer, err := intent.ParseKey(c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	if err != nil {
		c.t.Fatal(err)
	}
	return sealing.Keys{Sealer: sealer, Trust: trust}
}
