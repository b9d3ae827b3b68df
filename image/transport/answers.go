package transport

import (
	"context"
	"sync/atomic"
)

// answersKey is that of the note in a context.
type answersKey struct{}

// Answers returns a context for requests, and answered, which reports whether a
// registry answered any of them with more than that it cannot answer now. Where it
// answered none, the registry as a whole may be out of reach, and not one image in it.
func Answers(ctx context.Context) (noting context.Context, answered func() bool) {
	note := new(atomic.Bool)
	return context.WithValue(ctx, answersKey{}, note), note.Load
}

// noteAnswer notes that a registry answered a request.
func noteAnswer(ctx context.Context, status int) {
	if note, ok := ctx.Value(answersKey{}).(*atomic.Bool); ok && !notNow(status) {
		note.Store(true)
	}
}
