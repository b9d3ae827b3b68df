package registry

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// soon is a context that ends while a test waits for it.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestNoMoreObjectsAreOpenThanAllowed(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t, cachedIn(t.TempDir()), func(o *Options) { o.Objects = 2 })
	r := mustPush(t, c, srv.Host+"/bpf/one:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	first, second := mustPull(t, c, r), mustPull(t, c, r)
	for name, pull := range map[string]func(context.Context, image.Resolved) (*Image, error){
		"by the client": c.Pull, "for a tenant": c.For("team-a").Pull,
	} {
		_, err := pull(soon(t), r)
		refused(t, err, image.ErrUnavailable, "wait for room")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's end", name, err)
		}
	}
	first.Release()
	first.Release()
	third := mustPull(t, c, r)
	if _, err := c.Pull(soon(t), r); err == nil {
		t.Error("an image that was released twice made room for two")
	}
	if first.Object != nil || !bytes.Equal(third.Object, images.LittleEndian) {
		t.Errorf("%d bytes are held of what was released, %d of what was not", len(first.Object), len(third.Object))
	}
	second.Release()
	third.Release()

	// What comes to no image takes no room, whatever became of it.
	bad := handmade(types.OCILayer, []byte("no archive"))
	worse := images.Serve(t, fake(bad))
	for range 4 {
		_, err := c.Pull(t.Context(), image.Resolved{Registry: worse.Host, Repository: "bpf/bad", Digest: bad.Digest()})
		refused(t, err, image.ErrMalformed, "read archive")
	}
	mustPull(t, c, r).Release()
	for range 4 {
		if _, err := c.Blobs(t.Context(), r, mib); err != nil {
			t.Error(err)
		}
	}
}

// slowLayers is a registry that sends the first byte of each layer, and the rest
// when it is let.
func slowLayers(t *testing.T, b *image.Built) (srv *images.Server, asked chan struct{}, let func()) {
	t.Helper()
	asked = make(chan struct{}, 1)
	rest := make(chan struct{})
	f := fake(b)
	f.first = func(w http.ResponseWriter, r *http.Request) bool {
		data := f.content[filepath.Base(r.URL.Path)]
		if !strings.Contains(r.URL.Path, "/blobs/") || len(data) <= smallLayer {
			return false
		}
		asked <- struct{}{}
		_, _ = w.Write(data[:1])
		w.(http.Flusher).Flush()
		select {
		case <-rest:
			_, _ = w.Write(data[1:])
		case <-r.Context().Done():
		}
		return true
	}
	return images.Serve(t, f), asked, func() { close(rest) }
}

func TestALayerThatComesSlowlyHoldsUpNoOther(t *testing.T) {
	large := images.MustBuild(t, padded(t, 3*mib), image.BuildOptions{})
	slow, asked, let := slowLayers(t, large)
	quick := images.Real(t)
	c := newTestClient(t, cachedIn(t.TempDir()), func(o *Options) { o.Objects, o.LayersBytes = 1, 3*mib })
	small := mustPush(t, c, quick.Host+"/bpf/small:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	known := mustPush(t, c, quick.Host+"/bpf/known:v1", images.MustBuild(t, padded(t, 2*mib), image.BuildOptions{}))
	mustPull(t, c, known).Release()

	pulled := make(chan error)
	go func() {
		img, err := c.Pull(t.Context(), image.Resolved{Registry: slow.Host, Repository: "bpf/slow", Digest: large.Digest()})
		if err == nil {
			img.Release()
		}
		pulled <- err
	}()
	<-asked
	// What is small, and what is known, comes meanwhile; what is neither waits.
	mustPull(t, c, small).Release()
	mustPull(t, c, known).Release()
	other := mustPush(t, c, quick.Host+"/bpf/other:v1", images.MustBuild(t, append(padded(t, 2*mib), 1), image.BuildOptions{}))
	_, err := c.Pull(soon(t), other)
	refused(t, err, image.ErrUnavailable, "wait for room")
	let()
	if err := <-pulled; err != nil {
		t.Fatal(err)
	}
	mustPull(t, c, other).Release()
}

func TestALayerThatIsNoneIsReadOnce(t *testing.T) {
	bomb := handmade(types.OCILayer, zeros(t, hugeEntry(t, "a.o", 1<<27), 1<<27))
	srv := images.Serve(t, fake(bomb))
	c := newTestClient(t)
	layers := func() (n int) {
		_, err := c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/bomb", Digest: bomb.Digest()})
		refused(t, err, image.ErrMalformed, "more than the limit")
		for _, request := range srv.Taken() {
			if strings.Contains(request, "/blobs/") {
				n++
			}
		}
		return n
	}
	if layers() == 0 || layers() != 0 {
		t.Error("its blobs are to be read once, and are not again")
	}
}

func TestALayerThatIsGoneFromTheCacheHoldsUpNoOther(t *testing.T) {
	large := images.MustBuild(t, padded(t, 3*mib), image.BuildOptions{})
	slow, asked, let := slowLayers(t, large)
	quick := images.Real(t)
	dir := t.TempDir()
	c := newTestClient(t, cachedIn(dir), func(o *Options) { o.Objects, o.Silence, o.Timeout = 1, time.Minute, 2*time.Minute })
	small := mustPush(t, c, quick.Host+"/bpf/small:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	mustPull(t, c, small).Release()
	r := mustPush(t, c, quick.Host+"/bpf/large:v1", large)
	mustPull(t, c, r).Release()
	// The disk keeps its length and nothing else of it.
	damaged := 0
	for name, size := range images.Files(t, filepath.Join(dir, "blobs", "sha256")) {
		if size > smallLayer {
			damaged++
			if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", name), make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if damaged == 0 {
		t.Fatal("no layer is in the cache")
	}

	pulled := make(chan error)
	go func() {
		r.Registry = slow.Host
		img, err := c.Pull(t.Context(), r)
		if err == nil {
			img.Release()
		}
		pulled <- err
	}()
	<-asked
	mustPull(t, c, small).Release()
	let()
	if err := <-pulled; err != nil {
		t.Fatal(err)
	}
}

func TestAPanicGivesItsRoomBack(t *testing.T) {
	b := handmade(types.OCILayer, archived(t, file{name: "a.o", data: images.LittleEndian}))
	srv := images.Serve(t, fake(b))
	c := newTestClient(t, func(o *Options) { o.Objects = 1 })
	r := image.Resolved{Registry: srv.Host, Repository: "bpf/one", Digest: b.Digest()}
	limit := c.options.ObjectBytes
	// No option is negative, so this is no way to have the reader panic but here.
	c.options.ObjectBytes = -4 * mib
	func() {
		defer func() {
			if recover() == nil {
				t.Error("nothing panicked")
			}
		}()
		_, err := c.Pull(t.Context(), r)
		t.Errorf("pulled: %v", err)
	}()
	c.options.ObjectBytes = limit
	mustPull(t, c, r).Release()
}

func TestNoRegistryAndNoPartyTakesAllRoomForLayers(t *testing.T) {
	large := images.MustBuild(t, padded(t, 3*mib), image.BuildOptions{})
	slow, asked, let := slowLayers(t, large)
	quick := images.Real(t)
	c := newTestClient(t, cachedIn(t.TempDir()), func(o *Options) {
		o.LayersBytes, o.Silence, o.Timeout = 9*mib, time.Minute, 2*time.Minute
	})
	pull := func(tenant string, r image.Resolved) <-chan error {
		done := make(chan error, 1)
		go func() {
			pulled, err := c.For(tenant).Pull(t.Context(), r)
			if err == nil {
				pulled.Release()
			}
			done <- err
		}()
		return done
	}
	// Each of the others is another image, since what is known is not waited for.
	push := func(name string, more byte) image.Resolved {
		return mustPush(t, c, quick.Host+"/bpf/"+name+":v1", images.MustBuild(t, append(padded(t, 3*mib), more), image.BuildOptions{}))
	}
	mine, other := push("mine", 1), push("other", 2)
	at := image.Resolved{Registry: slow.Host, Repository: "bpf/slow", Digest: large.Digest()}
	waiting := []<-chan error{pull("team-a", at)}
	<-asked
	waiting = append(waiting, pull("team-a", mine), pull("team-b", at))
	patience, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	for users := c.budget.shares.Users(); users["tenant team-a"] < 2 || users["registry "+slow.Host] < 2; users = c.budget.shares.Users() {
		if runtime.Gosched(); patience.Err() != nil {
			t.Fatal("nobody waits for a share")
		}
	}
	// The first has a third of the room, the others wait for it, and hold none.
	if err := <-pull("team-c", other); err != nil {
		t.Error(err)
	}
	let()
	for _, done := range waiting {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if users := c.budget.shares.Users(); len(users) != 0 {
		t.Errorf("shares are kept that nobody uses: %v", users)
	}
}

func TestSharesOfTheRoomForLayers(t *testing.T) {
	r := newBudget(Options{LayersBytes: 9 * mib})
	take := func(tenant, registry string) func() {
		t.Helper()
		release, err := r.forLayer(t.Context(), 3*mib, tenant, registry)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	wait := func(tenant, registry string) {
		t.Helper()
		_, err := r.forLayer(soon(t), 2*mib, tenant, registry)
		refused(t, err, image.ErrUnavailable, "wait for room")
	}
	a := take("team-a", "one.example.com")
	wait("team-a", "two.example.com")
	wait("team-b", "one.example.com")
	b, c := take("team-b", "two.example.com"), take("", "three.example.com")
	wait("team-c", "four.example.com")
	b()
	b()
	take("team-b", "two.example.com")()
	c()
	a()
	if users := r.shares.Users(); len(users) != 0 {
		t.Errorf("shares are kept that nobody uses: %v", users)
	}
}
