package admission

import (
	"context"
	"net/http"
	"time"

	"github.com/skep-dev/skep/limit"
)

// The bounds of what is looked at at once, in bytes of reviews. In memory one takes
// two to three times as many, and up to 33 times where the recorder decodes it:
// nothing else bounds what an author writes, up to 3 MiB, as often as the API server
// lets them. Large ones do not have the small ones wait, which nearly all are, and of
// those more are let in than an API server lets one user have on the way: whoever has
// hundreds wait for a registry that hangs holds up nobody else.
const (
	smallReview  = 64 << 10
	smallReviews = 16 << 20
	largeReviews = 8 << 20
	// leastReview is what the smallest counts as: one takes 25 KiB in memory.
	leastReview = 4 << 10
)

// queue has reviews wait for each other before they are read.
type queue struct {
	// patience is how long one waits.
	patience time.Duration
	reviews  limit.PerName
}

// before hands on requests when there is room for them, and denies who waits too
// long for that.
func (q *queue) before(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, err := q.enter(r.Context(), r.ContentLength)
		if err != nil {
			http.Error(w, "too much is looked at now; try again", http.StatusTooManyRequests)
			return
		}
		defer leave()
		h.ServeHTTP(w, r)
	})
}

// enter waits for room for a review of so many bytes; one that does not say how
// many may have all.
func (q *queue) enter(ctx context.Context, bytes int64) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, q.patience)
	defer cancel()
	switch {
	case bytes < 0:
		return q.reviews.Acquire(ctx, "large", largeReviews, largeReviews)
	case bytes > smallReview:
		return q.reviews.Acquire(ctx, "large", bytes, largeReviews)
	}
	return q.reviews.Acquire(ctx, "small", max(bytes, leastReview), smallReviews)
}
