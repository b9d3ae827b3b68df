package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

// requestedAt is Flux's annotation: changing its value has a tag resolved anew.
const requestedAt = "reconcile.fluxcd.io/requestedAt"

// definition is one application of the source, with the metadata an API server
// would have given it.
type definition struct {
	app v1alpha1.Application
	// source is the file it stands in, unit what breaks as one with it.
	source, unit string
}

// place is where to look for the definition should it go: its file, or the
// folder of the package that a template elsewhere made it for.
func (d definition) place() string {
	if d.unit == d.source || d.unit == path.Dir(d.source) {
		return d.source
	}
	return d.unit
}

// definitions is what a source held at one revision.
type definitions struct {
	all      []definition
	problems []schemas.Problem
	mayHide  func(id v1alpha1.Identity, places ...string) bool
}

// load renders a tree. An error means that nothing can be said of any
// definition.
func load(ctx context.Context, t tree, sub string) (definitions, error) {
	loaded, err := schemas.Load(ctx, schemas.Options{Root: t.dir, Path: filepath.ToSlash(sub)})
	if err != nil {
		return definitions{}, err
	}
	d := definitions{problems: loaded.Problems, mayHide: loaded.MayHide}
	for _, a := range loaded.Applications {
		generation, err := generationOf(a.Application)
		if err != nil {
			return definitions{}, err
		}
		a.Application.SetGeneration(generation)
		d.all = append(d.all, definition{app: a.Application, source: a.Source.File, unit: a.Unit})
	}
	return d, nil
}

// generationOf stands for metadata.generation: it is equal for equal specs, and
// positive.
func generationOf(app v1alpha1.Application) (int64, error) {
	body, err := json.Marshal(struct {
		Spec      *v1alpha1.BpfApplicationSpec
		Requested string
	}{app.Body(), app.GetAnnotations()[requestedAt]})
	if err != nil {
		return 0, fmt.Errorf("hash spec of %s: %w", app.Identity(), err)
	}
	sum := sha256.Sum256(body)
	return int64(binary.BigEndian.Uint64(sum[:8])>>1) | 1, nil
}

// uidOf stands for metadata.uid: an application of one kind, namespace and name
// is always the same one on this host.
func uidOf(id v1alpha1.Identity) string {
	sum := sha256.Sum256([]byte(id.Kind + "\x00" + id.Namespace + "\x00" + id.Name))
	return hex.EncodeToString(sum[:16])
}
