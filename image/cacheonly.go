package image

import (
	"context"
	"errors"
)

// ErrNotAsked: the context is one of CacheOnly, and only a registry knows the
// answer.
var ErrNotAsked = errors.New("registry not asked")

// cacheOnly is the key of a context value.
type cacheOnly struct{}

// CacheOnly returns a context under which no registry is asked. What is neither
// in the cache nor in a layout on disk is ErrNotAsked.
func CacheOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, cacheOnly{}, true)
}

// mayAsk returns an error where the context forbids to ask a registry.
func mayAsk(ctx context.Context) error {
	if ctx.Value(cacheOnly{}) == nil {
		return nil
	}
	return &kindError{kind: ErrNotAsked, err: errors.New("the registry was not asked")}
}

// RegistryOf returns the registry of a reference, as Resolved.Registry has it;
// empty for a layout on disk and for a reference that is malformed.
func RegistryOf(reference string) string {
	r, err := Named(reference)
	if err != nil {
		return ""
	}
	return r.Registry
}
