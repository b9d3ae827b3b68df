package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// zeros is a gzip stream of that many zero bytes.
func zeros(t testing.TB, header []byte, n int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatalf("gzip: %v", err)
	}
	if _, err := w.Write(header); err != nil {
		t.Fatalf("gzip: %v", err)
	}
	chunk := make([]byte, mib)
	for ; n > 0; n -= int64(len(chunk)) {
		if _, err := w.Write(chunk[:min(n, int64(len(chunk)))]); err != nil {
			t.Fatalf("gzip: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("gzip: %v", err)
	}
	return out.Bytes()
}

// hugeEntry is a tar header that announces more than follows.
func hugeEntry(t testing.TB, name string, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		t.Fatalf("write header: %v", err)
	}
	return out.Bytes()
}

// sparse is an archive whose entry claims 8 GiB in a few bytes, in the form of
// pax 0.1. The writer rejects such keys, so they are put in afterwards.
func sparse(t testing.TB) []byte {
	t.Helper()
	plain := archived(t, file{name: "x.o", data: images.LittleEndian, pax: map[string]string{
		"XYZ.sparse.numblocks": "1", "XYZ.sparse.map": "0,704", "XYZ.sparse.size": "8589934592",
	}})
	return bytes.ReplaceAll(plain, []byte("XYZ.sparse."), []byte("GNU.sparse."))
}

func manyEntries(t testing.TB, n int) []byte {
	t.Helper()
	list := make([]file, n)
	for i := range list {
		list[i].name = fmt.Sprintf("d%d/", i)
		list[i].kind = tar.TypeDir
	}
	return archived(t, list...)
}

// badLayer is a layer no image may have, with what is said of it.
type badLayer struct {
	layer []byte
	want  string
}

// bombs are layers that expand a thousandfold, to about so many bytes.
func bombs(t testing.TB, size int64) map[string]badLayer {
	t.Helper()
	return map[string]badLayer{
		"a gzip bomb after the object": {zeros(t, archived(t, file{name: "a.o", data: images.LittleEndian}), size), "expands beyond the limit"},
		"a gzip bomb in the object":    {zeros(t, hugeEntry(t, "a.o", size), size), "more than the limit"},
		"a gzip bomb in another file":  {zeros(t, hugeEntry(t, "a.txt", size), size), "more than the limit"},
	}
}

// refusedLayers are further ones, and small.
func refusedLayers(t testing.TB) map[string]badLayer {
	t.Helper()
	x86 := append([]byte(nil), images.LittleEndian...)
	x86[18] = 62
	layer := func(entries ...file) []byte { return gzipped(t, archived(t, entries...)) }
	object := file{name: "a.o", data: images.LittleEndian}
	good := layer(object)
	second := archived(t, file{name: "b.o", data: images.BigEndian})
	return map[string]badLayer{
		"an entry that claims 8 EiB": {gzipped(t, hugeEntry(t, "a.o", 1<<62)), "more than the limit"},
		"a sparse file":              {gzipped(t, sparse(t)), "sparse file"},
		"a symbolic link":            {layer(object, file{name: "b.o", kind: tar.TypeSymlink}), `"b.o" is a symbolic link`},
		"a hard link":                {layer(object, file{name: "b.o", kind: tar.TypeLink}), `"b.o" is a hard link`},
		"a device":                   {layer(object, file{name: "null", kind: tar.TypeChar}), `"null" is a device`},
		"a pipe":                     {layer(object, file{name: "p", kind: tar.TypeFifo}), `"p" is a pipe`},
		"an entry of unknown type":   {layer(object, file{name: "u", kind: 'Q'}), `"u" is of unknown type`},
		"two objects":                {layer(object, file{name: "b.o", data: images.BigEndian}), `"a.o", "b.o"`},
		"two objects of one name":    {layer(object, object), `2 ELF files`},
		"an object in a folder":      {layer(file{name: "lib/a.o", data: images.LittleEndian}), `"lib/a.o" lies in a folder`},
		"an object that pretends to lie elsewhere": {layer(file{name: "../../lib/a.o", data: images.LittleEndian}), `"lib/a.o" lies in a folder`},
		"no object":                                    {layer(file{name: "README", data: []byte("text")}), `"README"`},
		"a text that is called an object":              {layer(file{name: "a.o", data: []byte("text")}), `none of its files is ELF ("a.o")`},
		"no file":                                      {layer(), "holds no file"},
		"an object for another CPU":                    {layer(file{name: "a.o", data: x86}), "machine 62"},
		"an object cut short":                          {layer(file{name: "a.o", data: images.LittleEndian[:10]}), "cut short"},
		"more folders than any image needs":            {gzipped(t, manyEntries(t, 1025)), "more than 1024 entries"},
		"an archive cut short":                         {gzipped(t, archived(t, object)[:700]), "unexpected EOF"},
		"a second archive after the first":             {gzipped(t, append(archived(t, object), second...)), "follows the end of the archive"},
		"gzip cut short":                               {good[:len(good)-20], "unexpected EOF"},
		"gzip with a wrong checksum":                   {append(append([]byte(nil), good[:len(good)-8]...), 0, 0, 0, 0, 0, 0, 0, 0), "checksum"},
		"gzip that is none":                            {[]byte("\x1f\x8bnonsense"), "gzip"},
		"zstd that is none":                            {[]byte("\x28\xb5\x2f\xfdnonsense"), "read archive"},
		"no archive":                                   {[]byte(strings.Repeat("no archive", 100)), "read archive"},
		"nothing":                                      {nil, "holds no file"},
		"the object itself, where an archive must be":  {images.LittleEndian, "read archive"},
		"a name that would redraw the user's terminal": {layer(object, file{name: "\x1b[2Jb.o", data: images.LittleEndian}), `\x1b[2J`},
	}
}

func TestRefusedLayers(t *testing.T) {
	layers := refusedLayers(t)
	maps.Copy(layers, bombs(t, 1<<27))
	for name, test := range layers {
		t.Run(name, func(t *testing.T) {
			srv := images.Serve(t, fake(handmade(types.OCILayer, test.layer)))
			c := newTestClient(t, func(o *Options) { o.ObjectBytes = 32 * mib })
			_, err := c.Pull(t.Context(), image.Resolved{
				Registry: srv.Host, Repository: "bpf/bad", Digest: handmade(types.OCILayer, test.layer).Digest(),
			})
			refused(t, err, image.ErrMalformed, test.want)
			if strings.Contains(err.Error(), "\x1b") {
				t.Errorf("the refusal holds control characters: %q", err)
			}
		})
	}
}

func TestBombsTakeLittleMemory(t *testing.T) {
	bomb := handmade(types.OCILayer, zeros(t, archived(t, file{name: "a.o", data: images.LittleEndian}), 1<<28))
	srv := images.Serve(t, fake(bomb))
	c := newTestClient(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/bomb", Digest: bomb.Digest()})
	runtime.ReadMemStats(&after)
	refused(t, err, image.ErrMalformed, "expands beyond the limit")
	// Reading the bomb's own megabyte grows a few buffers; expanding it none.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32*mib {
		t.Errorf("refusing the bomb allocated %d MiB", grown/mib)
	}
}

// rejected checks kind and words of an error.
func refused(t *testing.T, err, kind error, words string) {
	t.Helper()
	if err == nil {
		t.Fatalf("it was accepted, want %v with %q", kind, words)
	}
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
	}
	if !strings.Contains(err.Error(), words) {
		t.Errorf("got %q, want it to say %q", err, words)
	}
}

func TestRefusedManifests(t *testing.T) {
	good := gzipped(t, archived(t, file{name: "a.o", data: images.LittleEndian}))
	img := func(change func(*v1.Manifest)) *image.Built { return handmade(types.OCILayer, good, change) }
	raw := func(text string) *image.Built {
		b := &image.Built{Blobs: map[v1.Hash][]byte{}}
		b.Root = b.Add(types.OCIManifestSchema1, []byte(text))
		return b
	}
	platform := func(b *image.Built, p v1.Platform) *image.Built { b.Root.Platform = &p; return b }
	amd64 := v1.Platform{OS: "linux", Architecture: "amd64"}
	many := make([]*image.Built, 257)
	for i := range many {
		many[i] = img(func(*v1.Manifest) {})
	}
	labels := []byte(`{"config":{"Labels":{"io.ebpf.maps":"{}","abc":"` + strings.Repeat("x", 1<<16-14) + `"}}}`)
	config := handmade(types.OCILayer, good)
	config.Blobs[image.Sum([]byte("not json"))] = []byte("not json")
	tests := map[string]struct {
		image *image.Built
		want  string
	}{
		"a layer of 2 GiB":       {img(func(m *v1.Manifest) { m.Layers[0].Size = 2 << 30 }), "2147483648 bytes are more than the limit"},
		"a layer of less than 0": {img(func(m *v1.Manifest) { m.Layers[0].Size = -1 }), "is negative"},
		"a config of 2 GiB":      {img(func(m *v1.Manifest) { m.Config.Size = 2 << 30 }), "more than the limit"},
		"no layer":               {img(func(m *v1.Manifest) { m.Layers = nil }), "0 layers"},
		"two layers":             {img(func(m *v1.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }), "2 layers"},
		"a layer elsewhere":      {img(func(m *v1.Manifest) { m.Layers[0].URLs = []string{"https://example.com"} }), "outside the registry"},
		"a foreign layer":        {img(func(m *v1.Manifest) { m.Layers[0].MediaType = types.DockerForeignLayer }), "outside the registry"},
		"a layer of octets":      {img(func(m *v1.Manifest) { m.Layers[0].MediaType = "application/octet-stream" }), `media type "application/octet-stream"`},
		"a layer by sha512": {img(func(m *v1.Manifest) {
			m.Layers[0].Digest = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("a", 128)}
		}), "only sha256"},
		"an artifact that is no object": {img(func(m *v1.Manifest) { m.Config.MediaType = types.OCIEmptyJSON }), "must be the object itself"},
		"a helm chart": {
			img(func(m *v1.Manifest) { m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json" }), "must be the object itself",
		},
		"a manifest of Docker's first schema": {raw(`{"schemaVersion":1,"fsLayers":[]}`), "schemaVersion 1"},
		"a manifest and index in one":         {raw(`{"schemaVersion":2,"config":{},"layers":[],"manifests":[]}`), "not both"},
		"neither manifest nor index":          {raw(`{"schemaVersion":2}`), "either"},
		"an index that calls itself a manifest": {
			raw(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","manifests":[]}`), "does not fit its content"},
		"a manifest that calls itself an index": {
			raw(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","config":{},"layers":[]}`), "does not fit its content"},
		"a manifest that calls itself a web page": {raw(`{"schemaVersion":2,"mediaType":"text/html","config":{},"layers":[]}`), "does not fit its content"},
		"no JSON":          {raw("<html>"), "parse manifest"},
		"JSON in JSON":     {raw(strings.Repeat("[", 8000)), "parse manifest"},
		"a digest of none": {raw(`{"schemaVersion":2,"config":{"digest":"sha256:zz"},"layers":[]}`), "parse manifest"},
		"an index within an index": {
			indexOver(platform(indexOver(img(func(*v1.Manifest) {})), amd64)), "no index within an index"},
		"an index that says it is a manifest, within an index": {
			indexOver(platform(func() *image.Built {
				b := indexOver(img(func(*v1.Manifest) {}))
				b.Root.MediaType = types.OCIManifestSchema1
				return b
			}(), amd64)), "is an index again"},
		"an index with an entry of 2 GiB": {
			indexOver(platform(func() *image.Built {
				b := img(func(*v1.Manifest) {})
				b.Root.Size = 2 << 30
				return b
			}(), amd64)), "more than the limit"},
		"an index without the platform": {
			indexOver(platform(img(func(*v1.Manifest) {}), v1.Platform{OS: "linux", Architecture: "s390x"}),
				platform(img(func(*v1.Manifest) {}), v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"})),
			"nothing for linux/amd64, only linux/arm64/v8, linux/s390x"},
		"an index of a million nothings": {func() *image.Built {
			b := &image.Built{Blobs: map[v1.Hash][]byte{}}
			b.Root = b.Add(types.OCIImageIndex, []byte(`{"schemaVersion":2,"manifests":[{}`+strings.Repeat(",{}", 1_000_000)+`]}`))
			return b
		}(), "2000004 values, more than the limit"},
		"an index of nothing":           {indexOver(), "entries without a platform"},
		"an index with too many images": {indexOver(many...), "257 entries"},
		"labels that nobody reads": {func() *image.Built {
			b := img(func(m *v1.Manifest) { m.Config.Digest, m.Config.Size = image.Sum(labels), int64(len(labels)) })
			b.Blobs[image.Sum(labels)] = labels
			return b
		}(), "its labels have 65539 bytes together"},
		"annotations that nobody reads": {img(func(m *v1.Manifest) {
			m.Config.MediaType, m.Annotations = types.OCIEmptyJSON, map[string]string{"note": strings.Repeat("x", 1<<16)}
		}), "its labels have 65540 bytes together"},
		"a config that is not JSON": {func() *image.Built {
			b := img(func(m *v1.Manifest) { m.Config.Digest, m.Config.Size = image.Sum([]byte("not json")), 8 })
			b.Blobs[image.Sum([]byte("not json"))] = []byte("not json")
			return b
		}(), "parse config"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv := images.Serve(t, fake(test.image))
			c := newTestClient(t, cachedIn(t.TempDir()))
			r := image.Resolved{Registry: srv.Host, Repository: "bpf/bad", Digest: test.image.Digest()}
			_, err := c.Pull(t.Context(), r)
			refused(t, err, image.ErrMalformed, test.want)
			asked := len(srv.Taken())
			_, again := c.Pull(t.Context(), r)
			refused(t, again, image.ErrMalformed, test.want)
			if got := len(srv.Taken()); got != 0 && got >= asked {
				t.Errorf("the second refusal took %d requests, the first %d", got, asked)
			}
		})
	}
}

// TestRegistriesThatMisbehave holds what a registry does wrong to the kind of
// error that says so. None may be ErrMalformed, which is remembered.
func TestRegistriesThatMisbehave(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	doc, err := image.ParseDocument(b.Root.Digest, b.Blobs[b.Root.Digest])
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	layer := doc.Image.Layers[0].Digest.String()
	status := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	at := func(part string, do func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, part) {
				return false
			}
			do(w, r)
			return true
		}
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	tests := map[string]struct {
		first func(http.ResponseWriter, *http.Request) bool
		kind  error
		want  string
	}{
		"500":                       {status(500, "oops"), image.ErrUnavailable, "status 500"},
		"503":                       {status(503, ""), image.ErrUnavailable, "status 503"},
		"429":                       {status(429, `{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}`), image.ErrUnavailable, "slow down"},
		"418":                       {status(418, ""), image.ErrUnavailable, "status 418"},
		"404":                       {status(404, ""), image.ErrNotFound, "status 404"},
		"401":                       {status(401, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`), image.ErrUnauthorized, "who are you"},
		"403":                       {status(403, ""), image.ErrUnauthorized, "status 403"},
		"a web page for everything": {status(200, "<html>Sign in to the hotel's network</html>"), image.ErrUnavailable, "does not match requested digest"},
		"nothing for everything":    {status(200, ""), image.ErrUnavailable, "does not match requested digest"},
		"another manifest": {
			at("/manifests/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"schemaVersion":2}`) }), image.ErrUnavailable, "does not match",
		},
		"a manifest that never ends": {at("/manifests/", endless), image.ErrUnavailable, "longer than the limit"},
		"a layer that never ends":    {at(layer, endless), image.ErrUnavailable, ""},
		"another layer of equal length": {
			at(layer, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, doc.Image.Layers[0].Size)) }), image.ErrUnavailable, "",
		},
		"a layer that is too short":       {at(layer, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }), image.ErrUnavailable, ""},
		"silence at the first word":       {func(w http.ResponseWriter, r *http.Request) bool { hang(w, r); return true }, image.ErrUnavailable, "stopped sending"},
		"silence at the manifest":         {at("/manifests/", hang), image.ErrUnavailable, "stopped sending for 1s"},
		"silence in the middle of layers": {at(layer, silentAfterOneByte), image.ErrUnavailable, "stopped sending"},
		"a connection that breaks":        {at("/manifests/", hangUp), image.ErrUnavailable, "EOF"},
		"a redirect in a circle": {
			at("/manifests/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, 307) }), image.ErrUnavailable, "11th in a row",
		},
		"a redirect to plain HTTP": {
			at("/blobs/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://blobs.example.com/x", 307) }), image.ErrUnavailable,
			"plain HTTP to blobs.example.com",
		},
		"a redirect to a cloud's secrets": {at("/blobs/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://169.254.169.254/latest/meta-data", 307)
		}), image.ErrUnavailable, "169.254.169.254"},
		"an error text of a megabyte":             {status(400, `{"errors":[{"code":"X","message":"`+strings.Repeat("a", 50000)+`"}]}`), image.ErrUnavailable, "…"},
		"an error text that redraws the terminal": {status(400, `{"errors":[{"code":"X","message":"\u001b[2Jhello\u0007"}]}`), image.ErrUnavailable, "[2Jhello"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := fake(b)
			f.first = test.first
			srv := images.Serve(t, f)
			c := newTestClient(t, func(o *Options) { o.Silence, o.CacheDir = time.Second, t.TempDir() })
			_, err := c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/x", Digest: b.Digest()})
			refused(t, err, test.kind, test.want)
			if errors.Is(err, image.ErrMalformed) {
				t.Errorf("what was not verified counts as malformed: %v", err)
			}
			if len(err.Error()) > 2*512 || strings.ContainsAny(err.Error(), "\x1b\x07") {
				t.Errorf("the error is %d bytes: %.200q", len(err.Error()), err)
			}
		})
	}
}

// endless answers for as long as somebody listens.
func endless(w http.ResponseWriter, r *http.Request) {
	chunk := bytes.Repeat([]byte(" "), 1<<16)
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func silentAfterOneByte(w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("x"))
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

func TestResolveOfBadAnswers(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	head := func(digest string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodHead {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			w.Header().Set("Content-Length", "10")
			w.Header().Set("Docker-Content-Digest", digest)
			return true
		}
	}
	tests := map[string]struct {
		first func(http.ResponseWriter, *http.Request) bool
		kind  error
	}{
		"a digest by sha512": {head("sha512:" + strings.Repeat("a", 128)), image.ErrUnavailable},
		"no such tag": {func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/v1") {
				w.WriteHeader(404)
				return true
			}
			return false
		}, image.ErrNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := fake(b)
			f.first = test.first
			srv := images.Serve(t, f)
			_, err := newTestClient(t).Resolve(t.Context(), srv.Host+"/bpf/x:v1")
			refused(t, err, test.kind, "")
		})
	}
}

func TestNobodyListens(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	host := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	_, err = newTestClient(t).Resolve(t.Context(), host+"/bpf/x:v1")
	refused(t, err, image.ErrUnavailable, "connection refused")
}

func TestTheCallersTimeIsKept(t *testing.T) {
	srv := images.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	tests := map[string]struct {
		client *Client
		end    func(context.Context) (context.Context, context.CancelFunc)
		cause  error
	}{
		"a deadline": {newTestClient(t), func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 50*time.Millisecond)
		}, context.DeadlineExceeded},
		"a caller who gives up": {newTestClient(t), func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(50*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
		"the client's own limit": {newTestClient(t, func(o *Options) { o.Timeout = 50 * time.Millisecond }),
			func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }, context.DeadlineExceeded},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := test.end(t.Context())
			defer cancel()
			begun := time.Now()
			_, err := test.client.Resolve(ctx, srv.Host+"/bpf/x:v1")
			refused(t, err, image.ErrUnavailable, "")
			if !errors.Is(err, test.cause) {
				t.Errorf("got %v, want %v", err, test.cause)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestNoSecretInErrors looks at every error in the chain, not at the first
// words only.
func TestNoSecretInErrors(t *testing.T) {
	const secret = "SECRETSECRET"
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	nobody := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	store := images.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><AWSAccessKeyId>"+secret+"</AWSAccessKeyId></Error>")
	}))
	tests := map[string]string{
		"a presigned URL to a host that is down":   "http://" + nobody + "/blob?X-Amz-Signature=" + secret,
		"a presigned URL with a user":              "http://" + secret + ":" + secret + "@" + nobody + "/blob?sig=" + secret,
		"a presigned URL that the store refuses":   store.URL + "/blob?X-Amz-Credential=" + secret,
		"a presigned URL that may not be followed": "http://blobs.example.com/x?X-Amz-Signature=" + secret,
		"a presigned URL that cannot be followed":  "gopher://blobs.example.com/x?X-Amz-Signature=" + secret,
		"a presigned URL that is broken":           "http://blobs.example.com/a b\"c%zz?sig=" + secret,
	}
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	for name, target := range tests {
		for _, part := range []string{"/blobs/", "/manifests/"} {
			t.Run(name+" at "+part, func(t *testing.T) {
				f := fake(b)
				f.first = func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.Contains(r.URL.Path, part) {
						return false
					}
					w.Header().Set("Location", target)
					w.WriteHeader(http.StatusTemporaryRedirect)
					return true
				}
				srv := images.Serve(t, f)
				c := newTestClient(t)
				_, pull := c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/x", Digest: b.Digest()})
				if pull == nil {
					t.Fatal("Pull went well")
				}
				noSecret(t, pull, secret)
				if part == "/manifests/" {
					_, resolve := c.Resolve(t.Context(), srv.Host+"/bpf/x:v1")
					noSecret(t, resolve, secret)
				}
			})
		}
	}
}

func noSecret(t *testing.T, err error, secret string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
		if strings.Contains(text, secret) || strings.Contains(text, "?") {
			t.Errorf("the error tells a secret: %s", text)
		}
	}
	var request *url.Error
	if errors.As(err, &request) {
		t.Errorf("the error leads to the request's URL: %v", request)
	}
	switch wrapped := err.(type) { //nolint:errorlint // Every link of the chain is looked at by itself.
	case interface{ Unwrap() []error }:
		for _, inner := range wrapped.Unwrap() {
			noSecret(t, inner, secret)
		}
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			noSecret(t, inner, secret)
		}
	}
}
