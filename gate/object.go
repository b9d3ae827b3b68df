package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/policies"
)

// Resolved is a shaped request whose image is known by digest.
type Resolved struct {
	Shaped
	image image.Resolved
}

// Resolve turns the reference into a digest: the request's, where it has one,
// else what the registry says now.
func (e *Evaluator) Resolve(ctx context.Context, s Shaped) (Resolved, error) {
	if s.req.Application == nil {
		return Resolved{}, fmt.Errorf("resolve: %w", errSkipped)
	}
	id, ref := s.req.Application.Identity(), s.req.Application.Body().Bytecode.Image
	if s.req.Digest != "" {
		pinned, err := e.collector.images(s.req).Pin(ref, s.req.Digest)
		if err != nil {
			return Resolved{}, imageDenial(id.String(), err)
		}
		return Resolved{Shaped: s, image: pinned}, nil
	}
	r, err := e.collector.images(s.req).Resolve(ctx, ref)
	if err != nil {
		return Resolved{}, imageError(id.String(), "resolve", err)
	}
	return Resolved{Shaped: s, image: r}, nil
}

// imageError tells a fault of the image, which is a denial, from a registry
// that could not be asked, which is an error.
func imageError(object, verb string, err error) error {
	if errors.Is(err, image.ErrMalformed) || errors.Is(err, image.ErrNotFound) || errors.Is(err, image.ErrNotAllowed) {
		return imageDenial(object, err)
	}
	return fmt.Errorf("%s image of %s: %w", verb, object, err)
}

// imageDenial denies an image that is not there or not what it should be.
func imageDenial(object string, err error) error {
	r, fix := &denials{object: object}, "check the reference, and that the image is an eBPF bytecode image (skep image inspect)"
	if errors.Is(err, image.ErrNotFound) {
		r.missing, fix = err, "check the tag or the digest of the reference, or push the image"
	}
	if refused := (*transport.NotAllowedError)(nil); errors.As(err, &refused) {
		fix = "to allow it, add --allowed-registry " + refused.Pattern + "; the first one that is given ends the default, --allowed-registry '*'"
	}
	r.add("resolve/image", "spec.bytecode.image", fix, "%v", err)
	return r.err()
}

// object is what is known of a request's bytecode once it was read. The bytes
// are not among it: they are many, and registries are waited for later.
type object struct {
	*registry.Image
	facts reading
	// incompatible are the variables and contents of maps that the definition sets and
	// the object lacks, or has of another type.
	incompatible []policies.Reason
}

// reading is the facts of an object, or why there are none.
type reading struct {
	Facts    bytecode.Facts
	Rejected *bytecode.Rejection
	Broken   string
}

// open reads all that is asked of an object, before another may be pulled. It is pulled
// where its facts are not known, or where values have to fit its variables and maps.
func (e *Evaluator) open(ctx context.Context, r Resolved) (*object, error) {
	images, definition := e.collector.images(r.req), r.req.Application.Body()
	read := images.Describe
	if setsValues(definition) {
		read = images.Pull
	}
	pulled, err := read(ctx, r.image)
	if err != nil {
		return nil, err
	}
	facts, known := e.known.facts.Get(e.factsKey(pulled.ObjectDigest))
	if !known && pulled.Object == nil {
		pulled.Release()
		if pulled, err = images.Pull(ctx, r.image); err != nil {
			return nil, err
		}
	}
	defer pulled.Release()
	if !known {
		facts = e.inspect(pulled)
	}
	o := &object{Image: pulled, facts: facts}
	if o.facts.known() {
		o.incompatible = incompatibleValues(pulled.Object, definition)
	}
	return o, nil
}

func (r reading) known() bool { return r.Rejected == nil && r.Broken == "" }

// inspect finds out the facts of an object and remembers them, whether it comes to facts
// or not: the same bytes come to the same again.
func (e *Evaluator) inspect(pulled *registry.Image) reading {
	var read reading
	var err error
	if read.Facts, err = bytecode.Inspect(bytes.NewReader(pulled.Object), e.inspects()); err != nil && !errors.As(err, &read.Rejected) {
		read.Broken = err.Error()
	}
	e.known.facts.Put(e.factsKey(pulled.ObjectDigest), read)
	return read
}

// factsKey is that of an object's facts.
func (e *Evaluator) factsKey(objectDigest string) string { return e.inspects().Key(objectDigest) }

func (e *Evaluator) inspects() bytecode.Options { return bytecode.Options{CPUs: e.opts.CPUs} }
