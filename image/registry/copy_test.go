package registry

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// listening waits for the line in which docker-registry says where it listens.
func listening(t *testing.T, logs io.Reader) string {
	t.Helper()
	at := regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		if found := at.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, logs) }()
			return found[1]
		}
	}
	t.Fatal("docker-registry ended without saying where it listens")
	return ""
}

func sumOf(t *testing.T, digest string) v1.Hash {
	t.Helper()
	h, err := image.ParseDigest(digest)
	if err != nil {
		t.Fatalf("parse digest: %v", err)
	}
	return h
}

// attach pushes something whose subject is the image.
func attach(t *testing.T, c *Client, r image.Resolved) *image.Built {
	t.Helper()
	b := handmade("application/vnd.dev.sigstore.bundle.v0.3+json", []byte("bundle"), func(m *v1.Manifest) {
		m.ArtifactType = "application/vnd.dev.sigstore.bundle.v0.3+json"
		m.Subject = &v1.Descriptor{MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: sumOf(t, r.Digest), Size: 1}
	})
	dst, err := c.sink(r)
	if err != nil {
		t.Fatalf("sink: %v", err)
	}
	if err := (transfer{b, dst, &c.options}).image(t.Context(), b.Root.Digest, "", true); err != nil {
		t.Fatalf("push referrer: %v", err)
	}
	return b
}

func TestCopyKeepsSignatures(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t)
	r := mustPush(t, c, srv.Host+"/bpf/signed:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	tag := strings.Replace(r.Digest, ":", "-", 1) + ".sig"
	signature := handmade("application/vnd.dev.cosign.simplesigning.v1+json", []byte("payload"))
	mustPush(t, c, srv.Host+"/bpf/signed:"+tag, signature)
	attach(t, c, r)

	copied, err := c.Copy(t.Context(), r, "oci:"+t.TempDir()+"/copy")
	if err != nil {
		t.Fatalf("Copy: %v", err)
	}
	if got := mustPull(t, c, copied); got.Digest != r.Digest {
		t.Errorf("the copy has digest %s, want %s", got.Digest, r.Digest)
	}
	again, err := c.Resolve(t.Context(), copied.Reference)
	if err != nil || again.Digest != r.Digest {
		t.Errorf("the only image beside its signatures resolves to %s, %v", again.Digest, err)
	}
	data, err := c.layout(copied.Repository).Tagged(t.Context(), tag)
	if err != nil || image.Sum(data) != signature.Root.Digest {
		t.Errorf("the copy's %s is %s, %v", tag, image.Sum(data), err)
	}
	path, err := c.Layout(copied)
	if err != nil {
		t.Fatalf("Layout: %v", err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatalf("read layout: %v", err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 3 {
		t.Errorf("the copy lists %d manifests, %v; want image, signature and referrer", len(m.Manifests), err)
	}
}

func TestOtherToolsReadOurLayouts(t *testing.T) {
	c := newTestClient(t)
	dir := t.TempDir() + "/layout"
	b, err := image.BuildIndex(map[string][]byte{"linux/amd64": images.LittleEndian, "linux/arm64": images.LittleEndian, "linux/s390x": images.BigEndian},
		image.BuildOptions{})
	if err != nil {
		t.Fatalf("BuildIndex: %v", err)
	}
	mustPush(t, c, "oci:"+dir+":multi", b)
	mustPush(t, c, "oci:"+dir+":single", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("ImageIndexFromPath: %v", err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("go-containerregistry finds fault with the layout: %v", err)
	}
	if got := images.Files(t, dir)["oci-layout"]; got == 0 {
		t.Error("the layout has no oci-layout file")
	}
}

func TestPushAndCopyRefuse(t *testing.T) {
	c := newTestClient(t)
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	if _, err := c.Push(t.Context(), "oci:"+t.TempDir()+"@"+image.Sum(nil).String(), b); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Push to another digest: %v, want ErrMalformed", err)
	}
	if _, err := c.Copy(t.Context(), image.Resolved{Reference: "x"}, "oci:"+t.TempDir()); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Copy of what is not resolved: %v, want ErrMalformed", err)
	}
	nested := indexOver(indexOver(b))
	if _, err := c.Push(t.Context(), "oci:"+t.TempDir()+"/l:v1", nested); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Push of an index in an index: %v, want ErrMalformed", err)
	}
	tight := newTestClient(t, func(o *Options) { o.LayerBytes = 10 })
	if _, err := tight.Push(t.Context(), "oci:"+t.TempDir()+"/l:v1", b); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Push of a layer beyond the limit: %v, want ErrMalformed", err)
	}
	if _, err := c.Push(t.Context(), "oci:/proc/nowhere/x:v1", b); err == nil {
		t.Error("Push to where nothing can be written went well")
	}
}

func TestLayoutReferences(t *testing.T) {
	c := newTestClient(t)
	dir := t.TempDir() + "/layout"
	one := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	two := images.MustBuild(t, images.BigEndian, image.BuildOptions{})
	mustPush(t, c, "oci:"+dir+":one", one)
	resolve := func(ref string) (string, error) {
		r, err := c.Resolve(t.Context(), ref)
		return r.Digest, err
	}
	if got, err := resolve("oci:" + dir); err != nil || got != one.Digest() {
		t.Errorf("the only image: %s, %v", got, err)
	}
	mustPush(t, c, "oci:"+dir+":also-one", one)
	if got, err := resolve("oci:" + dir); err != nil || got != one.Digest() {
		t.Errorf("the only image under two tags: %s, %v", got, err)
	}
	mustPush(t, c, "oci:"+dir+":two", two)
	if _, err := resolve("oci:" + dir); !errors.Is(err, image.ErrMalformed) || !strings.Contains(err.Error(), "also-one, one, two") {
		t.Errorf("two images and no tag: %v, want ErrMalformed with the tags", err)
	}
	if _, err := resolve("oci:" + dir + ":three"); !errors.Is(err, image.ErrNotFound) || !strings.Contains(err.Error(), "two") {
		t.Errorf("a tag that is not there: %v, want ErrNotFound with the tags", err)
	}
	mustPush(t, c, "oci:"+dir+":one", two)
	if got, err := resolve("oci:" + dir + ":one"); err != nil || got != two.Digest() {
		t.Errorf("a tag that moved: %s, %v", got, err)
	}
	if got, err := resolve("oci:" + dir + "@" + one.Digest()); err != nil || got != one.Digest() {
		t.Errorf("a digest: %s, %v", got, err)
	}
	if _, err := resolve("oci:" + t.TempDir() + "/nothing:v1"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("a folder that is not there: %v, want ErrNotFound", err)
	}
	if _, err := c.Layout(image.Resolved{Registry: "example.com"}); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("Layout of a registry's image: %v", err)
	}
}

func TestDamagedLayouts(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	blob := blobPath
	layer := func() v1.Hash {
		doc, err := image.ParseDocument(b.Root.Digest, b.Blobs[b.Root.Digest])
		if err != nil {
			t.Fatalf("parse: %v", err)
		}
		return doc.Image.Layers[0].Digest
	}()
	write := func(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }
	tests := map[string]struct {
		damage func(dir string) error
		want   error
	}{
		"index.json is not JSON":      {func(d string) error { return write(d+"/index.json", []byte("{")) }, image.ErrMalformed},
		"index.json lists no image":   {func(d string) error { return write(d+"/index.json", []byte(`{"schemaVersion":2}`)) }, image.ErrNotFound},
		"index.json has a bad digest": {func(d string) error { return write(d+"/index.json", []byte(`{"manifests":[{"digest":"x"}]}`)) }, image.ErrMalformed},
		"index.json is gone":          {func(d string) error { return os.Remove(d + "/index.json") }, image.ErrNotFound},
		"the manifest is another":     {func(d string) error { return write(blob(d, b.Root.Digest), []byte("{}")) }, image.ErrUnavailable},
		"the manifest is gone":        {func(d string) error { return os.Remove(blob(d, b.Root.Digest)) }, image.ErrNotFound},
		"the manifest is a folder": {func(d string) error {
			return swap(blob(d, b.Root.Digest), func(p string) error { return os.Mkdir(p, 0o700) })
		}, image.ErrUnavailable},
		"the layer is altered":   {func(d string) error { return flip(blob(d, layer)) }, image.ErrUnavailable},
		"the layer is cut short": {func(d string) error { return os.Truncate(blob(d, layer), 10) }, image.ErrUnavailable},
		"the layer is a link to /etc": {func(d string) error {
			return swap(blob(d, layer), func(p string) error { return os.Symlink("/etc/hostname", p) })
		}, image.ErrUnavailable},
		"the layer is larger than all": {func(d string) error { return os.Truncate(blob(d, layer), 1<<40) }, image.ErrUnavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t)
			dir := t.TempDir() + "/layout"
			mustPush(t, c, "oci:"+dir+":v1", b)
			if err := test.damage(dir); err != nil {
				t.Fatalf("damage: %v", err)
			}
			r, err := c.Resolve(t.Context(), "oci:"+dir+":v1")
			if err == nil {
				_, err = c.Pull(t.Context(), r)
			}
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// swap puts something else in a file's place.
func swap(path string, with func(string) error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return with(path)
}

func TestLayoutMendsABlobThatWasLeftHalfWritten(t *testing.T) {
	c := newTestClient(t)
	dir := t.TempDir() + "/layout"
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	mustPush(t, c, "oci:"+dir+":v1", b)
	before := images.Files(t, dir)
	for name := range before {
		if strings.HasPrefix(name, "blobs/") {
			if err := os.Truncate(filepath.Join(dir, name), 1); err != nil {
				t.Fatalf("truncate: %v", err)
			}
		}
	}
	mustPush(t, c, "oci:"+dir+":v1", b)
	if diff := cmp.Diff(before, images.Files(t, dir)); diff != "" {
		t.Errorf("files after pushing again (-before +after):\n%s", diff)
	}
}
