package admission

import (
	"context"
	"net/http"
	"time"
)

// answerTime is what the way of an answer back to the API server is given of the time
// that this waits; where that is short, half of it is.
const answerTime = time.Second

// inTime has a handler answer before the API server stops waiting, which says for how
// long it waits in the request's query.
func inTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		waits, err := time.ParseDuration(r.URL.Query().Get("timeout"))
		if err != nil || waits <= 0 {
			h.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), max(waits-answerTime, waits/2))
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}
