package gate

import (
	"fmt"
	"strings"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
)

// What a denial holds at most: names in it come from objects and definitions
// that anybody may write. The bounds are those of what policies say.
const (
	maxReasons   = 64
	maxTextBytes = 1024
	maxPathBytes = 256
)

// denials gathers every reason a step finds, so that one round tells the
// author all there is to fix.
type denials struct {
	// object names the application, for the messages.
	object  string
	reasons []policies.Reason
	// missing says that the registry has no such image; nil where it was not asked, or
	// has it.
	missing error
}

// add records one reason, cut to its bounds. The message is a format that need
// not name the object.
func (r *denials) add(rule, path, fix, format string, args ...any) {
	if len(r.reasons) == maxReasons {
		r.reasons = append(r.reasons, policies.Reason{
			Rule: rule, Path: "spec", Message: "there are more reasons", Fix: "fix what is told first",
		})
	}
	if len(r.reasons) > maxReasons {
		return
	}
	r.reasons = append(r.reasons, policies.Reason{
		Rule:    rule,
		Path:    text.Cut(path, maxPathBytes),
		Message: text.Cut(fmt.Sprintf(format, args...), maxTextBytes),
		Fix:     text.Cut(fix, maxTextBytes),
	})
}

// err returns a *Denial, or nil where there is no reason.
func (r *denials) err() error {
	if len(r.reasons) == 0 {
		return nil
	}
	return &Denial{Object: r.object, Reasons: r.reasons, missing: r.missing}
}

// Denial is the error of a step that found the definition itself at fault. It
// is final for that definition: trying again changes nothing.
type Denial struct {
	// Object names the application.
	Object string
	// Reasons has at least one member.
	Reasons []policies.Reason
	// missing says that the registry has no such image.
	missing error
}

// Error names object, rule, reason and fix of every reason.
func (r *Denial) Error() string {
	lines := make([]string, 0, len(r.Reasons))
	for _, why := range r.Reasons {
		lines = append(lines, Sentence(why))
	}
	return "deny " + r.Object + ": " + strings.Join(lines, "; ")
}

// Warnings of a cluster's admission about what it stores and does not load.
const (
	// WarningDenied begins each that is a reason of a policy with admission: Warn.
	WarningDenied = "denied, and not loaded: "
	// WarningUnverified is in one about an application that could not be evaluated in time.
	WarningUnverified = "is not verified yet, and nothing is loaded until it is: "
)

// Sentence is a reason on one line: rule, path, message and fix.
func Sentence(r policies.Reason) string {
	var b strings.Builder
	b.WriteString(r.Rule)
	if r.Path != "" {
		b.WriteString(" at " + r.Path)
	}
	b.WriteString(": " + r.Message)
	if r.Fix != "" {
		b.WriteString(" (" + r.Fix + ")")
	}
	return b.String()
}
