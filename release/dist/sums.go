package dist

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skep-dev/skep/release/attest"
)

// Files of a release that are about all of it.
const (
	// SumsFile has the checksums of all other files but signatures, as sha256sum reads it.
	SumsFile = "SHA256SUMS"
	// ImagesFile names all images and artifacts by digest.
	ImagesFile = "images.txt"
	// ProvenanceFile says how all of it was made.
	ProvenanceFile = "provenance.json"
)

// attest writes what is said of the whole release: the names of images, provenance and
// checksums.
func (r *release) attest(context.Context) error {
	var images strings.Builder
	var subjects []attest.Subject
	for _, a := range r.artifacts {
		digests, err := a.digests()
		if err != nil {
			return err
		}
		for _, d := range digests {
			subjects = append(subjects, attest.Subject{Name: r.Folder + "/" + a.Repository, SHA256: d.Hex})
		}
		fmt.Fprintf(&images, "%s/%s:%s@%s\n", r.Folder, a.Repository, a.Tag, digests[0])
	}
	if err := r.write(ImagesFile, []byte(images.String())); err != nil {
		return err
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	sums, err := r.sums(files)
	if err != nil {
		return err
	}
	provenance, err := attest.Provenance(r.provenanceOf(), append(sums, subjects...))
	if err != nil {
		return err
	}
	if err := r.write(ProvenanceFile, provenance); err != nil {
		return err
	}
	if sums, err = r.sums(append(files, ProvenanceFile)); err != nil {
		return err
	}
	var text strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&text, "%s  %s\n", s.SHA256, s.Name)
	}
	return r.write(SumsFile, []byte(text.String()))
}

// files are those that are staged, sorted by name; layouts are folders.
func (r *release) files() ([]string, error) {
	entries, err := os.ReadDir(r.stage)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// sums are the checksums of staged files, sorted by name.
func (r *release) sums(names []string) ([]attest.Subject, error) {
	var all []attest.Subject
	for _, name := range slices.Sorted(slices.Values(names)) {
		sum, err := sumOf(filepath.Join(r.stage, name))
		if err != nil {
			return nil, err
		}
		all = append(all, attest.Subject{Name: name, SHA256: sum})
	}
	return all, nil
}

// sumOf is the sha256 of a file, in hex.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
