package nodemode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"path/filepath"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/schemas"
)

// definition is one application of the source.
type definition struct {
	app v1alpha1.Application
	// generation is gate.Generation of it.
	generation int64
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
	// misplaced are schemas.Definitions.Misplaced.
	misplaced []string
	mayHide   func(id v1alpha1.Identity, places ...string) bool
	emptied   func(place string) (schemas.Problem, bool)
}

// load renders a tree. An error means that nothing can be said of any
// definition.
func load(ctx context.Context, t source.Tree, sub string) (definitions, error) {
	loaded, err := schemas.Load(ctx, schemas.Options{Root: t.Dir, Path: filepath.ToSlash(sub)})
	if err != nil {
		return definitions{}, err
	}
	d := definitions{problems: loaded.Problems, misplaced: loaded.Misplaced(), mayHide: loaded.MayHide, emptied: loaded.Emptied}
	for _, a := range loaded.Applications {
		generation, err := gate.Generation(a.Application)
		if err != nil {
			return definitions{}, err
		}
		d.all = append(d.all, definition{app: a.Application, generation: generation, source: a.Source.File, unit: a.Unit})
	}
	return d, nil
}

// uidOf stands for metadata.uid: an application of one kind, namespace and name
// is always the same one on this host.
func uidOf(id v1alpha1.Identity) string {
	sum := sha256.Sum256([]byte(id.Kind + "\x00" + id.Namespace + "\x00" + id.Name))
	return hex.EncodeToString(sum[:16])
}
