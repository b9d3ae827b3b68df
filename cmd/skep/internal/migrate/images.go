package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/recent"
)

// The bounds of reading images, which whoever writes a manifest names.
const (
	// imagesTimeout bounds what is asked of registries in all.
	imagesTimeout = 10 * time.Minute
	// maxImages bounds the images.
	maxImages = 500
	// maxObjects and maxObjectBytes bound the objects that are remembered: those used last.
	maxObjects, maxObjectBytes = 100, 64 << 20
)

// reader reads images. It asks a registry once what each reference stands for, and for an object
// again only where those that are remembered do not have it.
type reader struct {
	ctx    context.Context //nolint:containedctx // it is that of one run, and convert.Options has none
	client *registry.Client
	// known are the references that were asked for.
	known map[string]answer
	// objects are remembered by reference.
	objects *recent.Cache[[]byte]
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
	return convert.Options{Variables: newReader(ctx, client).variables}, stop, nil
}

func newReader(ctx context.Context, client *registry.Client) *reader {
	objects := recent.Options[[]byte]{Entries: maxObjects, Bytes: maxObjectBytes, Size: func(object []byte) int { return len(object) }}
	return &reader{ctx: ctx, client: client, known: map[string]answer{}, objects: recent.New(objects)}
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
	object, err := r.object(one.resolved)
	if err != nil {
		one.err = err
		r.known[reference] = one
		return nil, nil, err
	}
	return values.Decode(object, raw)
}

// object reads the object of an image.
func (r *reader) object(resolved image.Resolved) ([]byte, error) {
	if object, remembered := r.objects.Get(resolved.Reference); remembered {
		return object, nil
	}
	pulled, err := r.client.Pull(r.ctx, resolved)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer pulled.Release()
	r.objects.Put(resolved.Reference, pulled.Object)
	return pulled.Object, nil
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
