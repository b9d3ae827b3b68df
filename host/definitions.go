package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

// requestedAt is Flux's annotation: changing its value has a tag resolved anew.
const requestedAt = "reconcile.fluxcd.io/requestedAt"

// definition is one application of the source, with the metadata an API server
// would have given it.
type definition struct {
	app    v1alpha1.Application
	source string
}

// definitions is what a source held at one revision.
type definitions struct {
	all      []definition
	problems []schemas.Problem
	mayHide  func(v1alpha1.Identity) bool
}

// load renders a tree. An error means that nothing can be said of any
// definition.
func load(ctx context.Context, t tree, path string) (definitions, error) {
	loaded, err := schemas.Load(ctx, schemas.Options{Root: t.dir, Path: filepath.ToSlash(path)})
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
		d.all = append(d.all, definition{app: a.Application, source: a.Source.File})
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
