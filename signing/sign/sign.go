// Package sign signs images, statements about them, and files with a key, in cosign's
// formats, and makes keys.
//
// It shows no private key, and stores none.
package sign

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	intoto "github.com/in-toto/attestation/go/v1"
	rekor "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing/collect"
)

// Options say how a signature is made. The zero value is what cosign sign
// does with a key and without a log.
type Options struct {
	// Annotations go into the signed payload.
	Annotations map[string]string
	// Bundle writes a sigstore bundle as an OCI referrer instead of a layer of
	// the tag sha256-….sig. bpfman and cosign before 2.6 do not read bundles.
	Bundle bool
	// Identity is the repository that the payload claims, as registry/repository, for an
	// image that is signed where it is not going to stay; empty for the image's own. A
	// bundle claims none.
	Identity string
	// Now is the creation date a bundle's manifest is given. Zero means the
	// present. Nothing relies on it.
	Now time.Time
}

// Image signs r.Digest with a key and writes the signature beside the image, in
// its registry or layout, without any transparency log. What others signed
// stays. Signing twice with one key and the same annotations changes nothing.
//
// Two writers that add to the tag sha256-….sig at once can lose one of the
// signatures, as with cosign: the registry has no means against it.
func Image(ctx context.Context, target collect.Source, r image.Resolved, key *PrivateKey, options Options) error {
	digest, err := v1.NewHash(r.Digest)
	if err != nil || digest.Algorithm != "sha256" {
		return fmt.Errorf("sign %s: digest %q is not sha256:…: resolve the reference first", r.Reference, r.Digest)
	}
	to, err := target.Attachments(r)
	if err != nil {
		return fmt.Errorf("sign %s: %w", r.Reference, err)
	}
	write := signLegacy
	if options.Bundle {
		write = signBundle
	}
	if err := write(ctx, to, r, digest, key, options); err != nil {
		return fmt.Errorf("sign %s: %w", r.Reference, err)
	}
	return nil
}

// signLegacy adds a layer to the manifest of the tag sha256-….sig.
func signLegacy(ctx context.Context, to *registry.Attachments, r image.Resolved, digest v1.Hash, key *PrivateKey, options Options) error {
	content, err := simplePayload(r, digest, options)
	if err != nil {
		return err
	}
	m, err := readSignatures(ctx, to, collect.SignatureTag(digest))
	if err != nil {
		return err
	}
	d := describe(content, ctypes.SimpleSigningMediaType)
	for _, l := range m.Layers {
		if l.Digest == d.Digest && key.made(l.Annotations[static.SignatureAnnotationKey], content) {
			return nil
		}
	}
	raw, err := key.signer.SignMessage(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("sign payload: %w", err)
	}
	d.Annotations = map[string]string{static.SignatureAnnotationKey: base64.StdEncoding.EncodeToString(raw)}
	return addLayer(ctx, to, m, d, content, collect.SignatureTag(digest))
}

// addLayer adds a layer to the manifest that a tag names.
func addLayer(ctx context.Context, to *registry.Attachments, m *v1.Manifest, layer v1.Descriptor, content []byte, tag string) error {
	if len(m.Layers) >= collect.MaxLayers {
		return fmt.Errorf("it has %d signatures already, and no more than %d are read: delete the tag %s and sign again", len(m.Layers), collect.MaxLayers, tag)
	}
	m.Layers = append(m.Layers, layer)
	if err := to.PutBlob(ctx, layer, content); err != nil {
		return err
	}
	config, err := json.Marshal(configOf(m.Layers))
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	configType := m.Config.MediaType
	if configType == "" {
		configType = types.OCIConfigJSON
	}
	m.Config = describe(config, configType)
	return put(ctx, to, m, config, tag)
}

// simplePayload is cosign's. The identity it claims is the repository, and
// nobody checks it; for a layout it is a placeholder, since the folder is
// nobody's business.
func simplePayload(r image.Resolved, digest v1.Hash, options Options) ([]byte, error) {
	repository := r.Registry + "/" + r.Repository
	switch {
	case options.Identity != "":
		repository = options.Identity
	case r.Registry == "":
		repository = "localhost/layout"
	}
	d, err := name.NewDigest(repository + "@" + digest.String())
	if err != nil {
		return nil, fmt.Errorf("name the image: %w", err)
	}
	p := payload.Cosign{Image: d}
	if len(options.Annotations) > 0 {
		p.Annotations = anyOf(options.Annotations)
	}
	b, err := p.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode payload: %w", err)
	}
	return b, nil
}

func anyOf(in map[string]string) map[string]any {
	out := make(map[string]any, len(in))
	for k, v := range in {
		out[k] = v
	}
	return out
}

// readSignatures returns the manifest that holds the signatures, or the attestations, of a
// tag so far.
func readSignatures(ctx context.Context, to *registry.Attachments, tag string) (*v1.Manifest, error) {
	raw, err := to.Tagged(ctx, tag)
	if errors.Is(err, image.ErrNotFound) {
		return &v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}, nil
	}
	if err != nil {
		return nil, err
	}
	var m v1.Manifest
	err = json.Unmarshal(raw, &m)
	if m.MediaType == "" {
		m.MediaType = types.OCIManifestSchema1
	}
	if err != nil || !m.MediaType.IsImage() {
		return nil, fmt.Errorf("the tag %s holds something other than signatures: delete it and sign again", tag)
	}
	return &m, nil
}

// made reports whether the key made a signature, given in base64, of content.
func (k *PrivateKey) made(b64 string, content []byte) bool {
	raw, err := base64.StdEncoding.DecodeString(b64)
	return err == nil && k.signer.VerifySignature(bytes.NewReader(raw), bytes.NewReader(content)) == nil
}

// configOf is the config of an image with these layers, none of them packed.
func configOf(layers []v1.Descriptor) *v1.ConfigFile {
	c := &v1.ConfigFile{RootFS: v1.RootFS{Type: "layers"}}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest)
		c.History = append(c.History, v1.History{})
	}
	return c
}

// signBundle writes a sigstore bundle, v0.3, with an in-toto statement of
// cosign's own predicate type, as a referrer.
func signBundle(ctx context.Context, to *registry.Attachments, _ image.Resolved, digest v1.Hash, key *PrivateKey, options Options) error {
	content, err := makeBundle(digest, key, options.Annotations)
	if err != nil {
		return err
	}
	mediaType, err := bundle.MediaTypeString("0.3")
	if err != nil {
		return fmt.Errorf("name media type: %w", err)
	}
	subject, err := to.Manifest(ctx, digest)
	if err != nil {
		return err
	}
	now := options.Now
	if now.IsZero() {
		now = time.Now()
	}
	config := []byte("{}")
	m := &v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  mediaType,
		Config:        describe(config, "application/vnd.oci.empty.v1+json"),
		Layers:        []v1.Descriptor{describe(content, types.MediaType(mediaType))},
		Subject:       &v1.Descriptor{MediaType: mediaTypeOf(subject), Size: int64(len(subject)), Digest: digest},
		Annotations: map[string]string{
			"org.opencontainers.image.created":  now.UTC().Format(time.RFC3339),
			"dev.sigstore.bundle.content":       "dsse-envelope",
			"dev.sigstore.bundle.predicateType": ctypes.CosignSignPredicateType,
		},
	}
	if err := to.PutBlob(ctx, m.Layers[0], content); err != nil {
		return err
	}
	return put(ctx, to, m, config, "")
}

// mediaTypeOf is what a manifest says of itself; OCI's where it says nothing.
func mediaTypeOf(manifest []byte) types.MediaType {
	var m struct {
		MediaType types.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil || m.MediaType == "" {
		return types.OCIManifestSchema1
	}
	return m.MediaType
}

// makeBundle signs a statement about the digest.
func makeBundle(digest v1.Hash, key *PrivateKey, annotations map[string]string) ([]byte, error) {
	subject := &intoto.ResourceDescriptor{Digest: map[string]string{digest.Algorithm: digest.Hex}}
	if len(annotations) > 0 {
		var err error
		if subject.Annotations, err = structpb.NewStruct(anyOf(annotations)); err != nil {
			return nil, fmt.Errorf("encode annotations: %w", err)
		}
	}
	content, err := protojson.Marshal(&intoto.Statement{
		Type:          intoto.StatementTypeUri,
		Subject:       []*intoto.ResourceDescriptor{subject},
		PredicateType: ctypes.CosignSignPredicateType,
		Predicate:     &structpb.Struct{},
	})
	if err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	return sealBundle(key, content)
}

// sealBundle signs a statement and packs it as cosign does.
func sealBundle(key *PrivateKey, content []byte) ([]byte, error) {
	envelope, err := Envelope(key, content)
	if err != nil {
		return nil, err
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(key.public)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	b, err := rekor.MakeNewBundle(key.public, nil, content, envelope, public, nil)
	if err != nil {
		return nil, fmt.Errorf("pack bundle: %w", err)
	}
	return b, nil
}

// put writes a config and the manifest that names it.
func put(ctx context.Context, to *registry.Attachments, m *v1.Manifest, config []byte, tag string) error {
	if err := to.PutBlob(ctx, m.Config, config); err != nil {
		return err
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	d := describe(raw, m.MediaType)
	d.ArtifactType = m.ArtifactType
	return to.PutManifest(ctx, d, raw, tag)
}

func describe(content []byte, mediaType types.MediaType) v1.Descriptor {
	sum := sha256.Sum256(content)
	return v1.Descriptor{
		MediaType: mediaType, Size: int64(len(content)),
		Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum)},
	}
}
