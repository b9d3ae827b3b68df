package objects

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/intent"
)

// Round is what one reconcile asks for.
type Round struct {
	Cache *Cache
	// Fetching reports that an object is on its way.
	Fetching bool
	// found are the digests of the objects that were on disk: many chains ask for one.
	found map[string]bool
}

// Begin begins the requests of one reconcile.
func (c *Cache) Begin() *Round { return &Round{Cache: c, found: map[string]bool{}} }

// Available returns nil where the object of an intent is on disk, else has it fetched. It
// fails with ErrFetching until then.
func (r *Round) Available(payload intent.Payload) error {
	if r.found[payload.ObjectDigest] {
		return nil
	}
	err := r.Cache.available(payload.ObjectDigest, queue.OwnerOf(payload.UID, payload.Application))
	if errors.Is(err, ErrFetching) {
		r.Fetching = true
		return err
	}
	if err != nil {
		return fmt.Errorf("fetch object of %s: %w", payload.Application, err)
	}
	r.found[payload.ObjectDigest] = true
	return nil
}

// Read reads an intent's object, or has it fetched, as Available does.
func (r *Round) Read(payload intent.Payload) ([]byte, error) {
	if err := r.Available(payload); err != nil {
		return nil, err
	}
	body, err := r.Cache.Read(payload.ObjectDigest)
	if !errors.Is(err, ErrFetching) {
		return body, err
	}
	// It was torn, and may have been fetched again by now.
	delete(r.found, payload.ObjectDigest)
	if err := r.Available(payload); err != nil {
		return nil, err
	}
	return r.Cache.Read(payload.ObjectDigest)
}
