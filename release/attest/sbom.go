package attest

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"
)

// Binary is a program as a software bill of materials has it.
type Binary struct {
	// Command is the binary's name.
	Command string
	// Arch is the architecture, as Go calls it.
	Arch string
	// SHA256 is the file's, in hex.
	SHA256 string
	// Build is what Go wrote into the binary.
	Build *debug.BuildInfo
}

// Image is the image of a binary for one architecture.
type Image struct {
	Binary
	// Digest is the sha256 of the image's manifest, in hex.
	Digest string
	// Files are the image's other files.
	Files []Subject
}

// BinarySBOM is the software bill of materials of a binary, as CycloneDX in JSON: the
// modules that Go linked, with the checksums of go.sum. It has no serial number, and no
// time but the one that is given, so that equal binaries have equal ones.
func BinarySBOM(b Binary, version string, at time.Time) ([]byte, error) {
	about := b.component(version)
	modules := modulesOf(b.Build)
	return encoded(bom(about, at, modules, []cyclonedx.Dependency{dependency(about, modules)}))
}

// ImageSBOM is BinarySBOM of all that is in an image.
func ImageSBOM(i Image, version string, at time.Time) ([]byte, error) {
	about := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeContainer, Name: i.Command, Version: version, Hashes: sha256Of(i.Digest),
		PackageURL: packageurl.NewPackageURL(packageurl.TypeOCI, "", i.Command, "sha256:"+i.Digest,
			packageurl.Qualifiers{{Key: "arch", Value: i.Arch}, {Key: "tag", Value: version}}, "").ToString(),
	}
	about.BOMRef = about.PackageURL
	binary, modules := i.component(version), modulesOf(i.Build)
	content := []cyclonedx.Component{binary}
	for _, f := range i.Files {
		content = append(content, cyclonedx.Component{
			BOMRef: "file:" + f.Name, Type: cyclonedx.ComponentTypeFile, Name: f.Name, Hashes: sha256Of(f.SHA256),
		})
	}
	return encoded(bom(about, at, slices.Concat(content, modules), []cyclonedx.Dependency{dependency(about, content), dependency(binary, modules)}))
}

func (b Binary) component(version string) cyclonedx.Component {
	c := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, Name: b.Command, Version: version, Hashes: sha256Of(b.SHA256),
		PackageURL: goPackage(b.Build.Main.Path, version, packageurl.Qualifiers{{Key: "goarch", Value: b.Arch}, {Key: "goos", Value: "linux"}}, "cmd/"+b.Command),
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}
	c.BOMRef = c.PackageURL
	return c
}

// modulesOf are the modules that are linked, and Go's own library.
func modulesOf(build *debug.BuildInfo) []cyclonedx.Component {
	all := []cyclonedx.Component{{
		Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: build.GoVersion, PackageURL: goLibrary(build.GoVersion),
	}}
	for _, m := range Modules(build) {
		c := cyclonedx.Component{
			Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: goPackage(m.Path, m.Version, nil, ""),
		}
		if sum, ok := treeHash(m.Sum); ok {
			c.Hashes = sha256Of(sum)
		}
		all = append(all, c)
	}
	for i := range all {
		all[i].BOMRef = all[i].PackageURL
	}
	return all
}

// Modules are the modules that are linked into a binary, those that replace others in
// their places, sorted by path. A folder that replaces a module has no name of its own, and (devel) as its
// version.
func Modules(build *debug.BuildInfo) []debug.Module {
	var all []debug.Module
	for _, m := range build.Deps {
		if m.Replace != nil && m.Replace.Version != "" && m.Replace.Version != "(devel)" {
			m = m.Replace
		}
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b debug.Module) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
	return all
}

// treeHash is the sha256 in a checksum of go.sum, in hex: it is over the files of a module,
// and not over an archive of them.
func treeHash(sum string) (string, bool) {
	b64, ok := strings.CutPrefix(sum, "h1:")
	if !ok {
		return "", false
	}
	raw, err := base64.StdEncoding.DecodeString(b64)
	return hex.EncodeToString(raw), err == nil
}

// goPackage is the package URL of a module, or of a package in it.
func goPackage(module, version string, q packageurl.Qualifiers, sub string) string {
	namespace, name := path.Split(module)
	return packageurl.NewPackageURL(packageurl.TypeGolang, strings.TrimSuffix(namespace, "/"), name, version, q, sub).ToString()
}

// goLibrary is the package URL of Go's own library, by the version of Go, as go1.26.8.
func goLibrary(version string) string {
	return packageurl.NewPackageURL(packageurl.TypeGolang, "", "stdlib", strings.TrimPrefix(version, "go"), nil, "").ToString()
}

func sha256Of(sum string) *[]cyclonedx.Hash {
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}}
}

// dependency says that one thing is made of others.
func dependency(of cyclonedx.Component, on []cyclonedx.Component) cyclonedx.Dependency {
	refs := make([]string, 0, len(on))
	for _, c := range on {
		refs = append(refs, c.BOMRef)
	}
	return cyclonedx.Dependency{Ref: of.BOMRef, Dependencies: &refs}
}

func bom(about cyclonedx.Component, at time.Time, components []cyclonedx.Component, dependencies []cyclonedx.Dependency) *cyclonedx.BOM {
	b := cyclonedx.NewBOM()
	b.Metadata = &cyclonedx.Metadata{Timestamp: at.UTC().Format(time.RFC3339), Component: &about}
	b.Components, b.Dependencies = &components, &dependencies
	return b
}

// specVersion is the version of CycloneDX that is written: readers take some years to follow.
const specVersion = cyclonedx.SpecVersion1_5

func encoded(b *cyclonedx.BOM) ([]byte, error) {
	var out bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, specVersion); err != nil {
		return nil, fmt.Errorf("encode bill of materials of %s: %w", b.Metadata.Component.Name, err)
	}
	return out.Bytes(), nil
}
