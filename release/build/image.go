package build

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// AuthoritiesFile is where Go looks for certificate authorities first on Linux.
const AuthoritiesFile = "etc/ssl/certs/ca-certificates.crt"

// Source is the repository that everything is made from.
const Source = "https://github.com/skep-dev/skep"

// Content is what images are made of, besides what a component says.
type Content struct {
	// Binaries is the folder of the binaries.
	Binaries string
	// Arch is the architecture that they are of, as Go calls it.
	Arch string
	// Authorities are certificate authorities, as PEM.
	Authorities []byte
	// Stamp is set for a release: version, commit and time are in the image then.
	Stamp *Stamp
}

// MachineAuthorities are the certificate authorities of this machine: a cluster behind a
// registry of one's own needs these.
func MachineAuthorities() ([]byte, error) {
	authorities, err := os.ReadFile("/" + AuthoritiesFile)
	if err != nil {
		return nil, fmt.Errorf("find certificate authorities for the image (Debian: apt-get install ca-certificates): %w", err)
	}
	return authorities, nil
}

// MozillaAuthorities are the certificate authorities that Mozilla trusts, by the Go module
// that go.mod pins, so that they are the same wherever a release is made. Authorities that
// Mozilla trusts for older certificates alone are left out: PEM cannot say that.
func MozillaAuthorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}

// authoritiesModule has the authorities of Mozilla.
const authoritiesModule = "golang.org/x/crypto/x509roots/fallback"

// AuthoritiesModule is the module that MozillaAuthorities are from, as it is linked into this
// command.
func AuthoritiesModule() (debug.Module, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return debug.Module{}, fmt.Errorf("find version of %s: Go wrote nothing into this command", authoritiesModule)
	}
	for _, m := range info.Deps {
		if m.Path == authoritiesModule {
			return *m, nil
		}
	}
	return debug.Module{}, fmt.Errorf("find version of %s: it is not linked into this command", authoritiesModule)
}

// Image makes the image of a component, which depends on nothing but what is given.
func Image(c Component, of Content) (v1.Image, error) {
	image, err := imageOf(c, of)
	if err != nil {
		return nil, fmt.Errorf("make image of %s: %w", c.Command, err)
	}
	return image, nil
}

func imageOf(c Component, of Content) (v1.Image, error) {
	var files []file
	for _, command := range c.Commands() {
		binary, err := os.ReadFile(filepath.Join(of.Binaries, command))
		if err != nil {
			return nil, err
		}
		files = append(files, file{command, binary, 0o755})
	}
	if c.Authorities {
		files = append(files, file{AuthoritiesFile, of.Authorities, 0o644})
	}
	content, err := archive(files, of.Stamp)
	if err != nil {
		return nil, err
	}
	if c.MaxBytes > 0 && of.Stamp != nil && int64(len(content)) > c.MaxBytes {
		return nil, fmt.Errorf("it has %.1f MB for linux/%s, and a release takes no more than %d MB: find what the binary links since the last release",
			float64(len(content))/megabyte, of.Arch, c.MaxBytes/megabyte)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	return configured(image, c, of)
}

// configured says how an image is run, and what it is.
func configured(image v1.Image, c Component, of Content) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", of.Arch
	config.Config = v1.Config{User: c.User, Entrypoint: []string{"/" + c.Command}, Labels: labels()}
	if s := of.Stamp; s != nil {
		config.Created = v1.Time{Time: s.Time.UTC()}
		maps.Copy(config.Config.Labels, s.Annotations(c.Title))
	}
	if image, err = mutate.ConfigFile(image, config); err != nil || of.Stamp == nil {
		return image, err
	}
	annotated, ok := mutate.Annotations(image, config.Config.Labels).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate: it is %T", annotated)
	}
	return annotated, nil
}

// Index joins the images of a component for several architectures.
func Index(c Component, s Stamp, images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("make index of %s: %w", c.Command, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	about := labels()
	maps.Copy(about, s.Annotations(c.Title))
	annotated, ok := mutate.Annotations(index, about).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("make index of %s: it is %T", c.Command, annotated)
	}
	return annotated, nil
}

// labels are those of every image.
func labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.source":   Source,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// Annotations are what a release says of what it is made of, by the names of the OCI image
// specification.
func (s Stamp) Annotations(title string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    title,
		"org.opencontainers.image.version":  s.Version,
		"org.opencontainers.image.revision": s.Revision,
		"org.opencontainers.image.created":  s.Time.UTC().Format(time.RFC3339),
		"org.opencontainers.image.url":      Source,
	}
}

// file is one of an image's.
type file struct {
	path    string
	content []byte
	mode    int64
}

// archive is the files as a layer, each behind the folders it lies in. Times are the
// stamp's; without one there are none.
func archive(files []file, s *Stamp) ([]byte, error) {
	var when time.Time
	if s != nil {
		when = s.Time
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		for i, r := range f.path {
			if r != '/' {
				continue
			}
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: f.path[:i+1], Mode: 0o755, ModTime: when}); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content)), ModTime: when}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
