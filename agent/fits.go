package agent

import (
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
