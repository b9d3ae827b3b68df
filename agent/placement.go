package agent

import (
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// unfitError says what of an application's needs this node's profile lacks. It
// is an ebpf.ErrNotSupported, as the kernel's own refusal would be, and nothing
// is tried again: the profile stays as it is while the agent runs.
type unfitError struct{ lacks string }

// Error implements error.
func (e *unfitError) Error() string { return e.lacks }

// Unwrap makes it an ebpf.ErrNotSupported.
func (e *unfitError) Unwrap() error { return ebpf.ErrNotSupported }

// fits reports whether this node's kernel can hold the intent, as far as the intent
// says and its object was found to: else the error is an *unfitError.
func (p *pass) fits(app *application, o intent.Opened) error {
	if p.opts.Profile == nil {
		return nil
	}
	lacks := placement.Of(o.Payload(), nil).Missing(*p.opts.Profile)
	if lacks == "" {
		lacks = app.lacks[o.Revision()]
	}
	if lacks != "" {
		return &unfitError{lacks}
	}
	return nil
}

// describeUnfit logs once that a version is not for this node's kernel.
func (p *pass) describeUnfit(app *application, err *unfitError) {
	if !strings.Contains(app.status.Error, err.lacks) {
		p.opts.Log.Warn("this node cannot hold it", "application", app.Newest.Payload().Application.String(), "error", err.lacks)
	}
}
