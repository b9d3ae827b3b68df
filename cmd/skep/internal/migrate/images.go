package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
)

// The bounds of reading images, which whoever writes a manifest names.
const (
	// imagesTimeout bounds what is asked of registries in all.
	imagesTimeout = 10 * time.Minute
	// maxImages bounds the images.
	maxImages = 500
)

// reader reads images, and asks a registry once for each reference.
type reader struct {
	ctx    context.Context //nolint:containedctx // it is that of one run, and convert.Options has none
	client *registry.Client
	// known are the references that were asked for.
	known map[string]answer
}

// answer is what a reference stands for, or why its image cannot be read.
type answer struct {
	resolved image.Resolved
	err      error
}

// options has images read where the command is to, until stop is called.
func (c *command) options(ctx context.Context) (o convert.Options, stop context.CancelFunc, err error) {
	if !c.readImages {
		return o, func() {}, nil
	}
	client, err := c.registries.ClientFor(c.allowed)
	if err != nil {
		return o, nil, err
	}
	ctx, stop = context.WithTimeout(ctx, c.imagesTimeout)
	r := &reader{ctx: ctx, client: client, known: map[string]answer{}}
	return convert.Options{Variables: r.variables}, stop, nil
}

// variables is convert.Options.Variables.
func (r *reader) variables(reference string, raw map[string][]byte) (map[string]apiextensionsv1.JSON, map[string]error, error) {
	one, asked := r.known[reference]
	if !asked {
		if len(r.known) == maxImages {
			return nil, nil, fmt.Errorf("more than %d images are named; convert the objects in parts", maxImages)
		}
		one.resolved, one.err = r.resolve(reference)
		r.known[reference] = one
	}
	if one.err != nil {
		return nil, nil, one.err
	}
	// A second time, the cache has it.
	pulled, err := r.client.Pull(r.ctx, one.resolved)
	if err != nil {
		one.err = fmt.Errorf("read image: %w", err)
		r.known[reference] = one
		return nil, nil, one.err
	}
	defer pulled.Release()
	return convert.Values(pulled.Object, raw)
}

// resolve asks a registry what a reference stands for.
func (r *reader) resolve(reference string) (image.Resolved, error) {
	resolved, err := r.client.Resolve(r.ctx, reference)
	switch {
	case errors.Is(err, image.ErrNotAllowed):
		return resolved, fmt.Errorf("read image: %w; list it by --allowed-registry if it may be asked", err)
	case err != nil:
		return resolved, fmt.Errorf("read image: %w", err)
	}
	return resolved, nil
}
