package access

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
)

// another is a Shared with a cache of its own, which is handed what the world's
// has, changed.
func (w *sharing) another(t *testing.T, change func(*Remembered)) *Shared {
	t.Helper()
	empty := newClient(t, cachedAt(t.TempDir()), func(o *registry.Options) { o.Attempts = 1 })
	return NewShared(empty, SharedOptions{Recall: func(ctx context.Context, r image.Resolved) (Remembered, bool) {
		kept, ok := w.shared.Remember(ctx, r, 1<<20)
		if change != nil {
			change(&kept)
		}
		return kept, ok
	}})
}

// away has the registry answer nobody.
func (w *sharing) away() { w.set(func() { w.down = true }) }

func TestWhatIsHandedOnNeedsNoRegistry(t *testing.T) {
	w := newSharing(t)
	w.set(func() { w.open = true })
	anybody := w.shared.Reader("team-a", nil)
	if err := reads(t.Context(), anybody, w.ref); err != nil {
		t.Fatal(err)
	}
	w.away()
	want, err := anybody.Pull(t.Context(), w.image)
	if err != nil {
		t.Fatal(err)
	}
	for name, reader := range map[string]func(*Shared) *Reader{
		"to be evaluated": func(s *Shared) *Reader { return s.Reader("team-b", nil) },
		"as it runs":      func(s *Shared) *Reader { return s.Reader("team-b", nil).Sealed() },
	} {
		got, err := reader(w.another(t, nil)).Pull(t.Context(), w.image)
		if err != nil || got.ObjectDigest != want.ObjectDigest || !bytes.Equal(got.Object, want.Object) || len(got.Labels) != len(want.Labels) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := w.shared.Remember(t.Context(), w.image, 100); ok {
		t.Error("more is handed on than is asked for")
	}
	for name, change := range map[string]func(*Remembered){
		"nothing":                 nil,
		"another repository's":    func(r *Remembered) { r.Repository = "bpf/other" },
		"another registry's":      func(r *Remembered) { r.Registry = "registry.invalid" },
		"another digest's":        func(r *Remembered) { r.Digest = "sha256:" + string(make([]byte, 64)) },
		"half of it":              func(r *Remembered) { r.Blobs = r.Blobs[1:] },
		"with a byte turned over": func(r *Remembered) { r.Blobs[len(r.Blobs)-1][40] ^= 1 },
	} {
		if change == nil {
			change = func(r *Remembered) { *r = Remembered{} }
		}
		if _, err := w.another(t, change).Reader("team-b", nil).Pull(t.Context(), w.image); !errors.Is(err, image.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatIsHandedOnIsNobodyElses(t *testing.T) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	other := w.another(t, nil)
	if _, err := other.Reader("team-b", nil).Pull(t.Context(), w.image); !errors.Is(err, image.ErrUnauthorized) {
		t.Errorf("who showed no right reads it: %v", err)
	}
	w.Taken()
	owner := other.Reader("team-a", nil, w.credential("owner", "owners-password"))
	if _, err := owner.Pull(t.Context(), w.image); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.Taken() {
		if strings.HasPrefix(r, http.MethodGet) && !strings.HasSuffix(r, "/v2/") {
			t.Errorf("it is fetched again: %s", r)
		}
	}
}
