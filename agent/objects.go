package agent

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/intent"
)

// available returns nil where the object of an intent is on disk, else has it fetched. It
// fails with objects.ErrFetching until then.
func (rec *reconcile) available(payload intent.Payload) error {
	err := rec.objects.Available(payload.ObjectDigest)
	if errors.Is(err, objects.ErrFetching) {
		rec.fetching = true
		return err
	}
	if err != nil {
		return fmt.Errorf("fetch object of %s: %w", payload.Application, err)
	}
	return nil
}

// object reads an intent's object, or has it fetched, as available does.
func (rec *reconcile) object(payload intent.Payload) ([]byte, error) {
	if err := rec.available(payload); err != nil {
		return nil, err
	}
	body, err := rec.objects.Read(payload.ObjectDigest)
	if !errors.Is(err, objects.ErrFetching) {
		return body, err
	}
	// It was torn, and may have been fetched again by now.
	if err := rec.available(payload); err != nil {
		return nil, err
	}
	return rec.objects.Read(payload.ObjectDigest)
}

// prepare reads and parses the intent's object. What it returns may be as large as
// the sections that the object declares: it is not kept.
func (rec *reconcile) prepare(o intent.Opened) (*kernel.Prepared, error) {
	object, err := rec.object(o.Payload())
	if err != nil {
		return nil, err
	}
	return kernel.Prepare(o, object)
}
