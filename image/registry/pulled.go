package registry

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
)

// Image is one object and where it came from.
type Image struct {
	image.Resolved
	// ManifestDigest is that of the platform's manifest; equal to Digest where
	// there is no index.
	ManifestDigest string
	// Labels of the image's config, or annotations of an artifact's manifest.
	Labels map[string]string
	// Size of the layer as stored, in bytes.
	Size int64
	// Object is the ELF file, ObjectDigest its sha256 as sha256:…, and ObjectSize how
	// many bytes it has.
	Object       []byte
	ObjectDigest string
	ObjectSize   int64
	// blobs lead from Digest to the object, as the registry has them.
	blobs []v1.Hash
	// release gives back the object's room.
	release func()
}

// Release drops the object, and gives its room to another: where Options.Objects
// bounds how many are open, whoever pulls an image releases it.
func (i *Image) Release() {
	i.Object = nil
	i.release()
}
