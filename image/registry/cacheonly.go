package registry

import (
	"context"
	"errors"

	"github.com/skep-dev/skep/image"
)

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
	return image.OfKind(image.ErrNotAsked, errors.New("the registry was not asked"))
}
