package decide

import (
	"maps"
	"time"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
)

// Application is what a node knows of an application, from one reconcile to the next. What is
// decided for it changes copies: a map in it is replaced, and never written.
type Application struct {
	version.Known
	// Checked are the revisions whose pins were found whole, and Lacks says of
	// others what this node's kernel lacks for their object.
	Checked map[string]bool
	Lacks   map[string]string
	// Maps tell what became of the maps at the last change of revision.
	Maps []loader.MapReport

	// NotFollowed is the last attempt in vain to load what runs with the maps that other
	// applications have now.
	NotFollowed NotFollowed

	// Failures counts those in a row, and RetryAt is when it is tried again.
	Failures int
	RetryAt  time.Time
	// FailedBefore tells that a version of it could not be had, and none was whole since:
	// no application waits for it.
	FailedBefore bool
	// Rejected says, by serial, why a version could not be had; FailedActions are the
	// actions that failed. Neither is tried again before RetryAt.
	Rejected      map[int64]error
	FailedActions map[string]error
	// LeftOut says why it is left out of a place, also until RetryAt.
	LeftOut map[plan.Place]error
	// VerifierLog is what the verifier said at the last rejection.
	VerifierLog string
	// Behind: the error of Status is that of a chain of others, for which it waited.
	Behind bool
	// Status is that of the last reconcile.
	Status report.ApplicationStatus
}

// NotFollowed is a load that failed. What runs goes on with the maps that it has.
type NotFollowed struct {
	// Key names the load, and Err says why it failed. It is not tried again before RetryAt.
	Key     string
	Err     error
	RetryAt time.Time
}

// NoteWhole remembers that a revision has everything that its object needs.
func (app *Application) NoteWhole(revision string) { app.Checked = with(app.Checked, revision, true) }

// NoteLack remembers what this node's kernel lacks for a revision.
func (app *Application) NoteLack(revision, lacks string) {
	app.Lacks = with(app.Lacks, revision, lacks)
}

// with returns a copy of a map with one entry more or another. The original is shared with
// the application that was copied.
func with[K comparable, V any](m map[K]V, key K, value V) map[K]V {
	changed := make(map[K]V, len(m)+1)
	maps.Copy(changed, m)
	changed[key] = value
	return changed
}
