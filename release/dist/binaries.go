package dist

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/skep-dev/skep/release/attest"
	"github.com/skep-dev/skep/release/build"
)

// plugin is what kubectl asks for its plug-in to be called.
const plugin = "kubectl-skep"

// The endings of what belongs to a file. Statements and signatures are cosign's.
const (
	sbomEnding        = ".cdx.json"
	signatureEnding   = ".sig"
	attestationEnding = ".att"
)

// inputs are what Go linked into the binaries of a release, and what else is in images.
type inputs struct {
	goVersion string
	// modules are by path and version.
	modules map[string]debug.Module
}

// add adds what is linked into a binary.
func (i *inputs) add(b *debug.BuildInfo) {
	i.goVersion = b.GoVersion
	i.addModules(attest.Modules(b)...)
}

func (i *inputs) addModules(all ...debug.Module) {
	if i.modules == nil {
		i.modules = map[string]debug.Module{}
	}
	for _, m := range all {
		i.modules[m.Path+"@"+m.Version] = m
	}
}

// fileOf is what a binary for an architecture is called in a release.
func fileOf(command, arch string) string { return command + "-linux-" + arch }

// buildBinaries builds the binaries, and puts each into the release with its bill of
// materials.
func (r *release) buildBinaries(ctx context.Context) error {
	if err := os.Mkdir(r.stage, 0o750); err != nil {
		return err
	}
	for _, arch := range r.Architectures {
		to := filepath.Join(r.bin, arch)
		if err := os.MkdirAll(to, 0o750); err != nil {
			return err
		}
		if err := r.Build(ctx, build.Link{Module: r.source, To: to, Arch: arch, Stamp: &r.stamp}); err != nil {
			return err
		}
		for _, c := range build.Components() {
			if err := r.addBinary(c.Command, arch); err != nil {
				return err
			}
		}
		// The same file: it takes no room of its own.
		if err := os.Link(filepath.Join(r.stage, fileOf("skep", arch)), filepath.Join(r.stage, fileOf(plugin, arch))); err != nil {
			return err
		}
	}
	return nil
}

// addBinary puts one binary into the release.
func (r *release) addBinary(command, arch string) error {
	built := filepath.Join(r.bin, arch, command)
	about, err := r.describe(command, arch)
	if err != nil {
		return err
	}
	r.inputs.add(about.Build)
	sbom, err := attest.BinarySBOM(about, r.Version, r.stamp.Time)
	if err != nil {
		return err
	}
	name := fileOf(command, arch)
	if err := r.write(name+sbomEnding, sbom); err != nil {
		return err
	}
	if err := os.Link(built, filepath.Join(r.stage, name)); err != nil {
		return err
	}
	return os.Chmod(built, 0o755) //nolint:gosec // everybody may run it
}

// describe reads what a binary says of itself.
func (r *release) describe(command, arch string) (attest.Binary, error) {
	path := filepath.Join(r.bin, arch, command)
	sum, err := sumOf(path)
	if err != nil {
		return attest.Binary{}, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return attest.Binary{}, fmt.Errorf("read what is linked into %s: %w", command, err)
	}
	if err := (build.Link{Arch: arch, Stamp: &r.stamp}).Check(info); err != nil {
		return attest.Binary{}, fmt.Errorf("check how %s was built: %w", command, err)
	}
	return attest.Binary{Command: command, Arch: arch, SHA256: sum, Build: info}, nil
}

// provenanceOf is how all of a release was made.
func (r *release) provenanceOf() attest.Build {
	link := build.Link{Stamp: &r.stamp}
	b := attest.Build{
		Builder: r.Builder, Source: build.Source, Revision: r.stamp.Revision, Version: r.Version, Folder: r.Folder, Time: r.stamp.Time,
		Flags: link.Flags(), Go: r.inputs.goVersion,
		// The architecture is each platform's.
		Environment: slices.DeleteFunc(link.Environment(), func(v string) bool { return strings.HasPrefix(v, "GOARCH=") }),
	}
	for _, arch := range r.Architectures {
		b.Platforms = append(b.Platforms, "linux/"+arch)
	}
	for _, m := range r.inputs.modules {
		b.Modules = append(b.Modules, m)
	}
	slices.SortFunc(b.Modules, func(x, y debug.Module) int { return strings.Compare(x.Path+"@"+x.Version, y.Path+"@"+y.Version) })
	return b
}
