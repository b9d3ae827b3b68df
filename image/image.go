// Package image is the format of images that hold eBPF objects: bpfman's bytecode image
// format, multi-arch indexes of it, and OCI artifacts with one object; and it packs the
// manifests that name them, as Flux has it. It parses references, builds images, and reads
// objects out of what others built.
//
// It owns the bounds of everything that is decoded and the kinds of error. It asks no
// registry, reads no file, verifies no signature, and reads no ELF beyond what the
// object's architecture takes.
package image

import "github.com/google/go-containerregistry/pkg/name"

// The labels of bpfman's bytecode image format: JSON objects that map program
// names to types and map names to types. They are claims, not facts.
const (
	LabelPrograms = "io.ebpf.programs"
	LabelMaps     = "io.ebpf.maps"
)

// LayoutPrefix marks a reference to an OCI layout on disk: oci:DIR[:TAG].
const LayoutPrefix = "oci:"

// Resolved is a reference and the digest its tag stood for when it was
// resolved. Everything that follows goes by the digest.
type Resolved struct {
	// Reference is as written in the definition.
	Reference string
	// Registry is the host; empty for an OCI layout on disk.
	Registry string
	// Repository is the path within the registry, or the layout's directory.
	Repository string
	// Tag is empty where the reference names a digest.
	Tag string
	// Digest is what the tag stood for, as sha256:…: the index's where there is
	// one. It is what signatures are about.
	Digest string
	// Insecure tells that Options.InsecureRegistries lists the registry.
	Insecure bool
}

// ByDigest returns the registry reference repository@digest; an error for an
// OCI layout, which has none.
func (r Resolved) ByDigest() (name.Digest, error) {
	if r.Registry == "" {
		return name.Digest{}, Malformed("name %s by digest: it is in a layout on disk, not in a registry", r.Reference)
	}
	return name.NewDigest(r.Registry+"/"+r.Repository+"@"+r.Digest, nameOptions(r.Insecure)...)
}
