package agent

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/intent"
)

// objectRound is what one reconcile asks for of the objects of intents.
type objectRound struct {
	cache *objects.Cache
	// fetching reports that an object is on its way.
	fetching bool
}

// available returns nil where the object of an intent is on disk, else has it fetched. It
// fails with objects.ErrFetching until then.
func (r *objectRound) available(payload intent.Payload) error {
	err := r.cache.Available(payload.ObjectDigest)
	if errors.Is(err, objects.ErrFetching) {
		r.fetching = true
		return err
	}
	if err != nil {
		return fmt.Errorf("fetch object of %s: %w", payload.Application, err)
	}
	return nil
}

// read reads an intent's object, or has it fetched, as available does.
func (r *objectRound) read(payload intent.Payload) ([]byte, error) {
	if err := r.available(payload); err != nil {
		return nil, err
	}
	body, err := r.cache.Read(payload.ObjectDigest)
	if !errors.Is(err, objects.ErrFetching) {
		return body, err
	}
	// It was torn, and may have been fetched again by now.
	if err := r.available(payload); err != nil {
		return nil, err
	}
	return r.cache.Read(payload.ObjectDigest)
}

// prepare reads and parses the intent's object. What it returns may be as large as
// the sections that the object declares: it is not kept.
func (r *objectRound) prepare(o intent.Opened) (*kernel.Prepared, error) {
	object, err := r.read(o.Payload())
	if err != nil {
		return nil, err
	}
	return kernel.Prepare(o, object)
}
