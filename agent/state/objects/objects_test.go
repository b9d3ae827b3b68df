package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func digestOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// open returns a cache of nothing, which fetches nothing.
func open(t *testing.T) *Cache {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "objects")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return New(Options{Dir: dir})
}

func TestTheCacheBelievesNoObjectItDidNotHash(t *testing.T) {
	c := open(t)
	digest := digestOf("object")
	if got, err := c.Read(digest); !errors.Is(err, ErrFetching) || c.Has(digest) {
		t.Errorf("an empty cache has %q (%v)", got, err)
	}
	if err := c.put(digest, []byte("object")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Read(digest); string(got) != "object" || err != nil || !c.Has(digest) {
		t.Errorf("Read = %q, %v", got, err)
	}
	if err := os.WriteFile(c.path(digest), []byte("altered"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Read(digest); !errors.Is(err, ErrFetching) || c.Has(digest) {
		t.Errorf("an altered object is given out, or left: %q (%v)", got, err)
	}
	// No digest leads out of the cache.
	outside := filepath.Join(filepath.Dir(c.opts.Dir), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Read("sha256:../secret"); err == nil {
		t.Errorf("read %q from outside", got)
	}
	if path := c.path("sha256:../../etc/passwd"); filepath.Dir(path) != c.opts.Dir {
		t.Errorf("path is %s", path)
	}
}

func TestObjectsThatNoIntentNamesAreDropped(t *testing.T) {
	c := open(t)
	for _, body := range []string{"a", "b", "c"} {
		if err := c.put(digestOf(body), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	// A fetch that runs beside it.
	writing := filepath.Join(c.opts.Dir, ".new-123")
	if err := os.WriteFile(writing, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Prune(map[string]bool{digestOf("b"): true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("the file of a running fetch: %v", err)
	}
	for body, there := range map[string]bool{"a": false, "b": true, "c": false} {
		if c.Has(digestOf(body)) != there {
			t.Errorf("object %s is there: %v", body, !there)
		}
	}
}

func TestAClosedCacheFetchesNothing(t *testing.T) {
	asked := false
	c := New(Options{Dir: t.TempDir(), Timeout: time.Minute, Wake: func() { asked = true }, Fetch: func(context.Context, string) ([]byte, error) {
		asked = true
		return nil, nil
	}})
	c.Close()
	if err := c.available(digestOf("object"), "team"); !errors.Is(err, context.Canceled) {
		t.Errorf("available = %v", err)
	}
	c.Close()
	if asked {
		t.Error("it was fetched")
	}
}

// TestFetchesThatHangDelayNoOtherOwner has one owner ask for more than it may fetch at once.
func TestFetchesThatHangDelayNoOtherOwner(t *testing.T) {
	hangs, ended := make(chan bool), make(chan bool, 100)
	c := New(Options{Dir: t.TempDir(), Timeout: time.Minute, Log: slog.New(slog.DiscardHandler), Wake: func() { ended <- true },
		Fetch: func(_ context.Context, digest string) ([]byte, error) {
			for _, body := range []string{"other", "both"} {
				if digest == digestOf(body) {
					return []byte(body), nil
				}
			}
			<-hangs
			return nil, errors.New("it hung")
		}})
	ask := func(body, owner string) {
		t.Helper()
		if err := c.available(digestOf(body), owner); !errors.Is(err, ErrFetching) {
			t.Fatalf("%s: %v", body, err)
		}
	}
	for i := range 2 * perOwner {
		ask(fmt.Sprint("hung ", i), "hung")
	}
	if n := c.queue.Running(); n != perOwner {
		t.Errorf("%d fetches are under way, want %d", n, perOwner)
	}
	// What both need is fetched at the turn of the one whose fetches do not hang.
	ask("both", "hung")
	ask("both", "other")
	ask("other", "other")
	<-ended
	<-ended
	for _, body := range []string{"both", "other"} {
		if err := c.available(digestOf(body), "other"); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	close(hangs)
	c.Close()
}
