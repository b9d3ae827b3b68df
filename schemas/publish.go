package schemas

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelang.org/go/mod/modregistry"
	"cuelang.org/go/mod/module"
	"cuelang.org/go/mod/modzip"
	"golang.org/x/mod/semver"
)

// Published is the CUE module as a CUE registry has it.
type Published struct {
	// Repository is the module's below a registry's folder, and Version its tag.
	Repository string
	Version    string
	// Manifest is the OCI manifest, and Blobs what it names, by digest as sha256:….
	Manifest []byte
	Blobs    map[string][]byte
}

// Publish makes the module of a release, as v0.2.0, as cue mod publish would push it: it
// pushes to a registry in memory. Its version is ModuleVersion's. The same release of the
// same schema gives the same bytes.
func Publish(ctx context.Context, release string) (Published, error) {
	p, err := publish(ctx, release)
	if err != nil {
		return Published{}, fmt.Errorf("publish %s: %w", ModulePath, err)
	}
	return p, nil
}

func publish(ctx context.Context, release string) (Published, error) {
	wanted, err := ModuleVersion(release)
	if err != nil {
		return Published{}, err
	}
	version, err := module.NewVersion(ModulePath, wanted)
	if err != nil {
		return Published{}, err
	}
	archive, err := moduleArchive(version)
	if err != nil {
		return Published{}, err
	}
	registry := ocimem.New()
	if err := modregistry.NewClient(registry).PutModule(ctx, version, bytes.NewReader(archive), int64(len(archive))); err != nil {
		return Published{}, err
	}
	p := Published{Repository: version.BasePath(), Version: version.Version(), Blobs: map[string][]byte{}}
	reader, err := registry.GetTag(ctx, p.Repository, p.Version)
	if p.Manifest, err = content(reader, err); err != nil {
		return Published{}, err
	}
	var manifest ociregistry.Manifest
	if err := json.Unmarshal(p.Manifest, &manifest); err != nil {
		return Published{}, err
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		reader, err := registry.GetBlob(ctx, p.Repository, d.Digest)
		if p.Blobs[string(d.Digest)], err = content(reader, err); err != nil {
			return Published{}, err
		}
	}
	return p, nil
}

// content reads what a registry answers.
func content(r ociregistry.BlobReader, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// ModuleVersion returns the version that the CUE module has in a release. The module's
// path says v1, so a release before v1.0.0 is a pre-release of that: v0.2.0 has
// v1.0.0-0.2.0, and v0.2.0-rc.1 has v1.0.0-0.2.0.rc.1, which CUE takes for a later version
// than v1.0.0-0.2.0. A release of v1 has its own version. A later major version is an
// error: the module needs another path first.
func ModuleVersion(release string) (string, error) {
	if release == "" || semver.Canonical(release) != release {
		return "", fmt.Errorf("read version %q: write it as vX.Y.Z, such as v0.2.0; CUE takes no build metadata", release)
	}
	switch semver.Major(release) {
	case "v0":
		return "v1.0.0-" + strings.Replace(strings.TrimPrefix(release, "v"), "-", ".", 1), nil
	case "v1":
		return release, nil
	}
	return "", fmt.Errorf("read version %s: the CUE module is %s; give it the path of that major version first", release, ModulePath)
}

// moduleArchive is the module as CUE packs it.
func moduleArchive(version module.Version) ([]byte, error) {
	sources, err := moduleSources()
	if err != nil {
		return nil, err
	}
	files := append(slices.Collect(maps.Keys(sources)), "cue.mod/module.cue")
	var out bytes.Buffer
	err = modzip.Create(&out, version, files, embedded{}) //nolint:staticcheck // deprecated, and nothing else packs what is in memory
	return out.Bytes(), err
}

// embedded opens the module's files for modzip.
type embedded struct{}

// Path implements modzip.FileIO.
func (embedded) Path(file string) string { return file }

// Lstat implements modzip.FileIO.
func (embedded) Lstat(file string) (fs.FileInfo, error) {
	return fs.Stat(moduleFiles, "module/"+file)
}

// Open implements modzip.FileIO.
func (embedded) Open(file string) (io.ReadCloser, error) { return moduleFiles.Open("module/" + file) }
