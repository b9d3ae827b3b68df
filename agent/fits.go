package agent

import (
	"strings"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// fits reports whether this node's kernel can hold the intent, as far as the intent
// says and its object was found to: else the error is an *build.UnfitError.
func (rec *reconcile) fits(app *application, o intent.Opened) error {
	if rec.opts.Profile == nil {
		return nil
	}
	lacks := placement.Of(o.Payload(), nil).Missing(*rec.opts.Profile)
	if lacks == "" {
		lacks = app.lacks[o.Revision()]
	}
	if lacks != "" {
		return &build.UnfitError{Lacks: lacks}
	}
	return nil
}

// describeUnfit logs once that a version is not for this node's kernel.
func (rec *reconcile) describeUnfit(app *application, err *build.UnfitError) {
	if !strings.Contains(app.status.Error, err.Lacks) {
		rec.opts.Log.Warn("this node cannot hold it", "application", app.Newest.Payload().Application.String(), "error", err.Lacks)
	}
}
