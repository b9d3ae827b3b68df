package dist

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/release/attest"
	"github.com/skep-dev/skep/signing/sign"
)

// client reaches layouts and registries. Binaries are larger than what Skep takes of
// others.
func client() (*registry.Client, error) {
	return registry.NewClient(registry.Options{LayerBytes: 512 << 20, Timeout: pushTimeout})
}

// sign signs the staged release, if there is a key.
func (r *release) sign(ctx context.Context) error {
	if r.Key == nil {
		return nil
	}
	provenance, err := os.ReadFile(filepath.Join(r.stage, ProvenanceFile))
	if err != nil {
		return err
	}
	if err := r.signFiles(provenance); err != nil {
		return err
	}
	c, err := client()
	if err != nil {
		return err
	}
	for _, a := range r.artifacts {
		if err := r.signArtifact(ctx, c, a, provenance); err != nil {
			return err
		}
	}
	return nil
}

// signFiles writes the signature of each file beside it, and signed statements: the
// provenance, and the bill of materials of each binary.
func (r *release) signFiles(provenance []byte) error {
	names, err := r.files()
	if err != nil {
		return err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(r.stage, name))
		if err != nil {
			return err
		}
		signature, err := sign.Blob(r.Key, content)
		if err == nil {
			err = r.write(name+signatureEnding, signature)
		}
		if binary, found := strings.CutSuffix(name, sbomEnding); err == nil && found && !strings.HasSuffix(binary, ".image") {
			err = r.attestBinary(binary, content)
		}
		if err != nil {
			return fmt.Errorf("sign %s: %w", name, err)
		}
	}
	return r.writeEnvelope(ProvenanceFile, provenance)
}

// attestBinary signs the bill of materials of a binary as a statement.
func (r *release) attestBinary(binary string, sbom []byte) error {
	sum, err := sumOf(filepath.Join(r.stage, binary))
	if err != nil {
		return err
	}
	statement, err := attest.Statement(attest.PredicateSBOM, sbom, []attest.Subject{{Name: binary, SHA256: sum}})
	if err != nil {
		return err
	}
	return r.writeEnvelope(binary+sbomEnding, statement)
}

// writeEnvelope signs a statement into a file beside that of the same content.
func (r *release) writeEnvelope(name string, statement []byte) error {
	envelope, err := sign.Envelope(r.Key, statement)
	if err != nil {
		return err
	}
	return r.write(name+attestationEnding, envelope)
}

// signArtifact signs an artifact and the images of its index, each with the provenance and
// the bills of materials that are about it. A client that asks for the tag gets the index, which
// has the bills of all its images.
func (r *release) signArtifact(ctx context.Context, c *registry.Client, a Artifact, provenance []byte) error {
	digests, err := a.digests()
	if err != nil {
		return err
	}
	repository := r.Folder + "/" + a.Repository
	for _, digest := range digests {
		at := image.Resolved{Reference: a.Repository, Repository: r.layoutOf(a), Digest: digest.String()}
		if err := sign.Image(ctx, c, at, r.Key, sign.Options{Identity: repository}); err != nil {
			return err
		}
		if err := sign.Attest(ctx, c, at, r.Key, provenance); err != nil {
			return err
		}
		for _, of := range digests {
			if digest != digests[0] && digest != of || a.SBOMs[of] == nil {
				continue
			}
			if err := r.attestSBOM(ctx, c, at, a.SBOMs[of], []v1.Hash{digests[0], of}); err != nil {
				return err
			}
		}
	}
	return nil
}

// attestSBOM signs the bill of materials of an image beside one of the digests that it is
// found by.
func (r *release) attestSBOM(ctx context.Context, c *registry.Client, at image.Resolved, sbom []byte, of []v1.Hash) error {
	var subjects []attest.Subject
	for _, d := range of {
		subjects = append(subjects, attest.Subject{Name: r.Folder + "/" + at.Reference, SHA256: d.Hex})
	}
	statement, err := attest.Statement(attest.PredicateSBOM, sbom, subjects)
	if err != nil {
		return err
	}
	return sign.Attest(ctx, c, at, r.Key, statement)
}
