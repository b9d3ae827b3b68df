package registry

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestRoundTrip(t *testing.T) {
	labels := map[string]string{image.LabelPrograms: `{"pass":"xdp"}`, image.LabelMaps: `{}`}
	index := func(t *testing.T) *image.Built {
		b, err := image.BuildIndex(map[string][]byte{"linux/amd64": images.LittleEndian, "linux/s390x": images.BigEndian}, image.BuildOptions{Labels: labels})
		if err != nil {
			t.Fatalf("BuildIndex: %v", err)
		}
		return b
	}
	tests := map[string]struct {
		build    func(t *testing.T) *image.Built
		platform string
		want     []byte
		indexed  bool
	}{
		"an image of one platform": {
			build: func(t *testing.T) *image.Built {
				return images.MustBuild(t, images.LittleEndian, image.BuildOptions{Labels: labels})
			}, want: images.LittleEndian,
		},
		"an artifact": {
			build: func(t *testing.T) *image.Built {
				return images.MustBuild(t, images.LittleEndian, image.BuildOptions{Labels: labels, Artifact: true})
			}, want: images.LittleEndian,
		},
		"an index, seen from a little-endian machine": {build: index, platform: "amd64", want: images.LittleEndian, indexed: true},
		"an index, seen from a big-endian machine":    {build: index, platform: "s390x", want: images.BigEndian, indexed: true},
	}
	srv := images.Real(t)
	for name, test := range tests {
		for _, where := range []string{"registry", "layout"} {
			t.Run(name+" in a "+where, func(t *testing.T) {
				c := newTestClient(t, func(o *Options) {
					if test.platform != "" {
						o.Platform.Architecture = test.platform
					}
				})
				ref := srv.Host + "/bpf/" + strings.ToLower(filepath.Base(t.TempDir())) + ":v1"
				if where == "layout" {
					ref = "oci:" + t.TempDir() + "/layout:v1"
				}
				b := test.build(t)
				pushed := mustPush(t, c, ref, b)
				r, err := c.Resolve(t.Context(), ref)
				if err != nil {
					t.Fatalf("Resolve: %v", err)
				}
				if diff := cmp.Diff(pushed, r); diff != "" {
					t.Errorf("Push and Resolve differ (-push +resolve):\n%s", diff)
				}
				if r.Digest != b.Digest() {
					t.Errorf("digest %s, want %s", r.Digest, b.Digest())
				}
				got := mustPull(t, c, r)
				if !bytes.Equal(got.Object, test.want) {
					t.Errorf("the object that came out is not the one that went in")
				}
				if got.ObjectDigest != image.Sum(test.want).String() {
					t.Errorf("object digest %s, want %s", got.ObjectDigest, image.Sum(test.want))
				}
				if test.indexed == (got.ManifestDigest == got.Digest) {
					t.Errorf("manifest digest %s with digest %s", got.ManifestDigest, got.Digest)
				}
				for key, want := range labels {
					if got.Labels[key] != want {
						t.Errorf("label %s is %q, want %q", key, got.Labels[key], want)
					}
				}
				if got.Size <= 0 {
					t.Errorf("size %d", got.Size)
				}
			})
		}
	}
}

func TestRequestsThatARegistryGets(t *testing.T) {
	srv := images.Real(t)
	writer := newTestClient(t)
	single := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	mustPush(t, writer, srv.Host+"/bpf/count:v1", single)
	srv.Taken()

	dir := t.TempDir()
	c := newTestClient(t, cachedIn(dir))
	steps := []struct {
		does string
		do   func(t *testing.T) image.Resolved
		want int
	}{
		{"resolve a tag: ping and HEAD", func(t *testing.T) image.Resolved {
			r, err := c.Resolve(t.Context(), srv.Host+"/bpf/count:v1")
			if err != nil {
				t.Fatalf("Resolve: %v", err)
			}
			return r
		}, 2},
		{"pull: manifest, config, layer", func(t *testing.T) image.Resolved {
			r := image.Resolved{Registry: srv.Host, Repository: "bpf/count", Digest: single.Digest()}
			mustPull(t, c, r)
			return r
		}, 3},
		{"pull again: nothing", func(t *testing.T) image.Resolved {
			r := image.Resolved{Registry: srv.Host, Repository: "bpf/count", Digest: single.Digest()}
			mustPull(t, c, r)
			return r
		}, 0},
		{"resolve a digest and pull with another process's cache: nothing", func(t *testing.T) image.Resolved {
			other := newTestClient(t, cachedIn(dir))
			r, err := other.Resolve(t.Context(), srv.Host+"/bpf/count@"+single.Digest())
			if err != nil {
				t.Fatalf("Resolve: %v", err)
			}
			mustPull(t, other, r)
			return r
		}, 0},
	}
	for _, step := range steps {
		r := step.do(t)
		if r.Digest != single.Digest() {
			t.Errorf("%s: digest %s, want %s", step.does, r.Digest, single.Digest())
		}
		if got := srv.Taken(); len(got) != step.want {
			t.Errorf("%s: %d requests, want %d: %v", step.does, len(got), step.want, got)
		}
	}
}

func TestCachedImageOutlivesItsRegistry(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t, cachedIn(t.TempDir()))
	b, err := image.BuildIndex(map[string][]byte{"linux/amd64": images.LittleEndian, "linux/arm64": images.LittleEndian}, image.BuildOptions{})
	if err != nil {
		t.Fatalf("BuildIndex: %v", err)
	}
	r := mustPush(t, c, srv.Host+"/bpf/gone:v1", b)
	first := mustPull(t, c, r)
	srv.Close()
	if diff := cmp.Diff(first, mustPull(t, c, r), cmpopts.IgnoreUnexported(Image{})); diff != "" {
		t.Errorf("the image differs without its registry (-with +without):\n%s", diff)
	}
	object, err := c.Object(t.Context(), first.ObjectDigest)
	if err != nil || !bytes.Equal(object, images.LittleEndian) {
		t.Errorf("Object: %d bytes, %v", len(object), err)
	}
	if _, err := c.Resolve(t.Context(), r.Reference); !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("Resolve of a tag without the registry: %v, want ErrUnavailable", err)
	}
}

func TestImagesOfOtherBuilders(t *testing.T) {
	plain := archived(t, file{name: "./", kind: '5'}, file{name: "./prog.bpf.o", data: images.LittleEndian})
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatalf("zstd: %v", err)
	}
	empty := func(artifactType string) func(*v1.Manifest) {
		return func(m *v1.Manifest) { m.Config.MediaType, m.ArtifactType = types.OCIEmptyJSON, artifactType }
	}
	tests := map[string]*image.Built{
		"docker's gzip layer":              handmade(types.DockerLayer, gzipped(t, plain)),
		"an uncompressed layer":            handmade(types.OCIUncompressedLayer, plain),
		"a zstd layer":                     handmade(types.OCILayerZStd, encoder.EncodeAll(plain, nil)),
		"a layer that is not what it says": handmade(types.OCILayer, encoder.EncodeAll(plain, nil)),
		"docker's media types throughout": handmade(types.DockerLayer, gzipped(t, plain), func(m *v1.Manifest) {
			m.MediaType, m.Config.MediaType = types.DockerManifestSchema2, types.DockerConfigJSON
		}),
		"other files beside the object": handmade(types.OCILayer, gzipped(t, archived(t,
			file{name: "etc/", kind: '5'}, file{name: "etc/motd", data: []byte("hi")}, file{name: "README", data: []byte("read me")},
			file{name: "empty"}, file{name: "/prog.o", data: images.LittleEndian}))),
		"an artifact of octets": handmade("application/octet-stream", images.LittleEndian, empty("application/vnd.example.bpf")),
		"an artifact whose pusher named no type": handmade(types.OCIUncompressedLayer, images.LittleEndian,
			empty("application/vnd.unknown.artifact.v1")),
		"an index with one entry for no platform": indexOver(handmade(types.OCILayer, gzipped(t, plain))),
		"an index that also holds an attestation": func() *image.Built {
			img, attestation := handmade(types.OCILayer, gzipped(t, plain)), handmade("application/vnd.in-toto+json", []byte("{}"))
			img.Root.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"}
			attestation.Root.Platform = &v1.Platform{OS: "unknown", Architecture: "unknown"}
			return indexOver(attestation, img)
		}(),
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			srv := images.Serve(t, fake(b))
			c := newTestClient(t)
			r, err := c.Resolve(t.Context(), srv.Host+"/bpf/other:v1")
			if err != nil {
				t.Fatalf("Resolve: %v", err)
			}
			if got := mustPull(t, c, r); !bytes.Equal(got.Object, images.LittleEndian) {
				t.Errorf("pulled %d bytes, want the object", len(got.Object))
			}
		})
	}
}

func TestResolveFallsBackToGet(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	tests := map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"the registry does not do HEAD": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return true
			}
			return false
		},
		"its HEAD has no digest": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				w.Header().Set("Content-Length", "10")
				return true
			}
			return false
		},
	}
	for name, first := range tests {
		t.Run(name, func(t *testing.T) {
			f := fake(b)
			f.first = first
			srv := images.Serve(t, f)
			r, err := newTestClient(t).Resolve(t.Context(), srv.Host+"/bpf/get:v1")
			if err != nil {
				t.Fatalf("Resolve: %v", err)
			}
			if r.Digest != b.Digest() {
				t.Errorf("digest %s, want %s", r.Digest, b.Digest())
			}
			want := []string{"GET /v2/", "HEAD /v2/bpf/get/manifests/v1", "GET /v2/bpf/get/manifests/v1"}
			if diff := cmp.Diff(want, srv.Taken()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDebianRegistry uses the distribution project's registry as Debian ships
// it: apt-get install docker-registry.
func TestDebianRegistry(t *testing.T) {
	host := startDebianRegistry(t, need.Program(t, "docker-registry", "docker-registry"))
	c := newTestClient(t, cachedIn(t.TempDir()))
	for name, options := range map[string]image.BuildOptions{"image": {}, "artifact": {Artifact: true}} {
		t.Run(name, func(t *testing.T) {
			b := images.MustBuild(t, images.LittleEndian, options)
			mustPush(t, c, host+"/bpf/"+name+":v1", b)
			r, err := c.Resolve(t.Context(), host+"/bpf/"+name+":v1")
			if err != nil {
				t.Fatalf("Resolve: %v", err)
			}
			if got := mustPull(t, c, r); got.Digest != b.Digest() || !bytes.Equal(got.Object, images.LittleEndian) {
				t.Errorf("pulled %s, want %s", got.Digest, b.Digest())
			}
			attach(t, c, r)
			copied, err := c.Copy(t.Context(), r, "oci:"+t.TempDir()+"/copy:v1")
			if err != nil {
				t.Fatalf("Copy: %v", err)
			}
			if found, _, err := c.layout(copied.Repository).Referrers(t.Context(), sumOf(t, r.Digest)); err != nil || len(found) != 1 {
				t.Errorf("the copy has referrers %v, %v; want one", found, err)
			}
		})
	}
	if _, err := c.Resolve(t.Context(), host+"/bpf/image:v2"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("Resolve of a tag that is not there: %v, want ErrNotFound", err)
	}
}

func startDebianRegistry(t *testing.T, binary string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	content := "version: 0.1\nlog: {level: info, formatter: text}\nstorage: {filesystem: {rootdirectory: " + dir + "/data}}\nhttp: {addr: '127.0.0.1:0'}\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatalf("write config: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "serve", config)
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatalf("pipe: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start docker-registry: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return listening(t, logs)
}

func TestPullWithAndWithoutReferrersAPI(t *testing.T) {
	for name, supported := range map[string]bool{"with the referrers API": true, "without it": false} {
		t.Run(name, func(t *testing.T) {
			srv := images.Real(t, registry.WithReferrersSupport(supported))
			c := newTestClient(t)
			r := mustPush(t, c, srv.Host+"/bpf/signed:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
			attached := attach(t, c, r)
			copied, err := c.Copy(t.Context(), r, "oci:"+t.TempDir()+"/copy:v1")
			if err != nil {
				t.Fatalf("Copy: %v", err)
			}
			found, _, err := c.layout(copied.Repository).Referrers(t.Context(), sumOf(t, r.Digest))
			if err != nil {
				t.Fatalf("referrers: %v", err)
			}
			if !slices.ContainsFunc(found, func(d v1.Descriptor) bool { return d.Digest == attached.Root.Digest }) {
				t.Errorf("the copy has referrers %v, not %s", found, attached.Digest())
			}
			back, err := c.Copy(t.Context(), copied, srv.Host+"/bpf/back:v1")
			if err != nil {
				t.Fatalf("Copy back: %v", err)
			}
			src, err := c.registry(back)
			if err != nil {
				t.Fatalf("registry: %v", err)
			}
			if found, _, err = src.Referrers(t.Context(), sumOf(t, r.Digest)); err != nil || len(found) != 1 || found[0].Digest != attached.Root.Digest {
				t.Errorf("the copy of the copy has referrers %v, %v", found, err)
			}
		})
	}
}
