// Package dist makes a release of one commit in a folder: binaries, images, bills of
// materials, provenance, checksums and signatures; and pushes it to a registry.
//
// It owns what a release consists of and what its files are called. How binaries are
// linked and what is in images is package build's business; what else is released is
// handed in. Two releases of one commit and version are equal, but for signatures.
package dist

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/release/build"
	"github.com/skep-dev/skep/signing/sign"
)

// Options say what is released, and where it goes.
type Options struct {
	// Version is the release's, as v1.2.3 or v1.2.3-rc.1.
	Version string
	// Checkout is the root of the git working tree. What is released is its commit: a file
	// that differs from it is an error.
	Checkout string
	// Dir is the folder of the release, such as dist/release. It is replaced as a whole, and
	// only by a release that is complete. It is new, empty, or has a release.
	Dir string
	// Folder is the registry and folder that images are named below, such as
	// ghcr.io/skep-dev.
	Folder string
	// Push has all of it uploaded to Folder. It needs a Key.
	Push bool
	// Key signs. Without one nothing is signed.
	Key *sign.PrivateKey
	// Builder is the URI of who builds, for the provenance.
	Builder string
	// Authorities is the module that the certificate authorities of images are from, for the
	// provenance: see build.AuthoritiesModule.
	Authorities debug.Module
	// Time is the time of all that is made; zero for the commit's.
	Time time.Time
	// Architectures are those of the binaries and images, as Go calls them; nil for amd64
	// and arm64.
	Architectures []string
	// Build links the binaries; nil for build.Binaries.
	Build func(context.Context, build.Link) error
	// More makes what else is released; nil for nothing.
	More func(context.Context, Made) ([]Artifact, []File, error)
	// Out is told what was made.
	Out io.Writer
}

// Made is what is known when the images of a release are made.
type Made struct {
	build.Stamp
	// Source is a folder with the files of the commit.
	Source string
	// Folder is that of Options.
	Folder string
	// Images are those that the chart names, as REPOSITORY@sha256:… below Folder, by what
	// its values call them, such as controller.
	Images map[string]string
}

// Artifact is an image or another OCI artifact of a release.
type Artifact struct {
	// Repository is below the folder, such as skep-agent or charts/skep.
	Repository string
	// Tag is the version as readers of this kind of artifact ask for it.
	Tag string
	// Image is the artifact; nil where Index is.
	Image v1.Image
	// Index is an image for several architectures.
	Index v1.ImageIndex
	// SBOMs are bills of materials, as CycloneDX in JSON, by the digest of the image that
	// each is of.
	SBOMs map[v1.Hash][]byte
}

// File is one of a release.
type File struct {
	// Name is that in the release's folder.
	Name string
	// Content is all of it.
	Content []byte
}

// release is one that is being made.
type release struct {
	Options
	stamp build.Stamp
	// source has the files of the commit, bin the binaries, each below its architecture.
	source, bin string
	// stage becomes Dir, and what was Dir becomes before.
	stage, before string
	artifacts     []Artifact
	// inputs are what Go wrote into the binaries.
	inputs inputs
}

// Make makes a release, and pushes it if that is asked for.
func Make(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.Build == nil {
		o.Build = build.Binaries
	}
	if len(o.Architectures) == 0 {
		o.Architectures = []string{"amd64", "arm64"}
	}
	o.Architectures = slices.Compact(slices.Sorted(slices.Values(o.Architectures)))
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o750); err != nil {
		return err
	}
	// Beside the release: what is staged is renamed.
	work, err := os.MkdirTemp(filepath.Dir(o.Dir), ".release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	r := &release{Options: o, bin: filepath.Join(work, "bin"), stage: filepath.Join(work, "stage"), before: filepath.Join(work, "before")}
	steps := []func(context.Context) error{r.readCommit(work), r.buildBinaries, r.makeImages, r.addMore, r.attest, r.sign, r.replace}
	if o.Push {
		steps = append(steps, r.push)
	}
	for _, step := range append(steps, r.say) {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for options by which no release can be made: it would come after minutes
// of building.
func (o Options) check() error {
	if err := build.CheckVersion(o.Version); err != nil {
		return err
	}
	if _, err := name.NewRepository(o.Folder+"/"+filesRepository, name.StrictValidation); err != nil {
		return fmt.Errorf("read registry and folder: %s; write them as registry.example.com/team", image.Scrub(err.Error()))
	}
	if u, err := url.Parse(o.Builder); err != nil || !u.IsAbs() {
		return fmt.Errorf("read builder %q: it is no URI; write it as https://ci.example.com/release", image.Scrub(o.Builder))
	}
	if o.Push && o.Key == nil {
		return errors.New("push release: nobody could verify one that is not signed; sign it with KEY=cosign.key, " +
			"or push images for a trial by make images PUSH=registry/folder")
	}
	return replaceable(o.Dir)
}

// addMore adds what else is released.
func (r *release) addMore(ctx context.Context) error {
	if r.More == nil {
		return nil
	}
	made := Made{Stamp: r.stamp, Source: r.source, Folder: r.Folder, Images: map[string]string{}}
	for i, c := range build.Components() {
		digest, err := r.artifacts[i].digest()
		if err != nil {
			return err
		}
		if c.Value != "" {
			made.Images[c.Value] = c.Command + "@" + digest.String()
		}
	}
	artifacts, files, err := r.More(ctx, made)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := r.write(f.Name, f.Content); err != nil {
			return err
		}
	}
	return r.addArtifacts(artifacts)
}

// replaceable returns an error for a folder that has something else than a release.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, SumsFile))
	}
	if err != nil {
		return fmt.Errorf("replace folder %s: it has no release; name another folder, or remove it: %w", dir, err)
	}
	return nil
}

// replace has what was staged take the place of the release before, which comes back where that
// fails.
func (r *release) replace(context.Context) error {
	if err := os.Rename(r.Dir, r.before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move the release before: %w", err)
	}
	if err := os.Rename(r.stage, r.Dir); err != nil {
		return errors.Join(err, os.Rename(r.before, r.Dir))
	}
	return nil
}

// say tells what was made.
func (r *release) say(context.Context) error {
	var said strings.Builder
	fmt.Fprintf(&said, "%s is in %s\n", r.Version, r.Dir)
	for _, a := range r.artifacts {
		digest, err := a.digest()
		if err != nil {
			return err
		}
		fmt.Fprintf(&said, "  %s/%s:%s@%s\n", r.Folder, a.Repository, a.Tag, digest)
	}
	if !r.Push {
		said.WriteString("Nothing was pushed: to push it, write KEY=cosign.key PUSH=registry/folder.\n")
	}
	if r.Key == nil {
		said.WriteString("\n*** NOTHING IS SIGNED: nobody can verify who made this release. Sign it with KEY=cosign.key. ***\n")
	}
	_, err := io.WriteString(r.Out, said.String())
	return err
}

// write writes a file of the release, which everybody may read.
func (r *release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.stage, name), content, 0o644) //nolint:gosec // it is published
}
