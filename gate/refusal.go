package gate

import (
	"fmt"
	"strings"

	"github.com/skep-dev/skep/policies"
)

// refusals gathers every reason a step finds, so that one round tells the
// author all there is to mend.
type refusals struct {
	// object names the application, for the messages.
	object  string
	reasons []policies.Reason
}

// add records one reason. The message is a format that need not name the
// object.
func (r *refusals) add(rule, path, remedy, format string, args ...any) {
	r.reasons = append(r.reasons, policies.Reason{
		Rule:    rule,
		Path:    path,
		Message: fmt.Sprintf(format, args...),
		Remedy:  remedy,
	})
}

// err returns a *Refusal, or nil where there is no reason.
func (r *refusals) err() error {
	if len(r.reasons) == 0 {
		return nil
	}
	return &Refusal{Object: r.object, Reasons: r.reasons}
}

// Refusal is the error of a step that found the definition itself at fault. It
// is final for that definition: trying again changes nothing.
type Refusal struct {
	// Object names the application.
	Object string
	// Reasons has at least one member.
	Reasons []policies.Reason
}

// Error names object, rule, reason and remedy of every reason.
func (r *Refusal) Error() string {
	lines := make([]string, 0, len(r.Reasons))
	for _, why := range r.Reasons {
		lines = append(lines, Sentence(why))
	}
	return "refuse " + r.Object + ": " + strings.Join(lines, "; ")
}

// Sentence is a reason on one line: rule, path, message and remedy.
func Sentence(r policies.Reason) string {
	var b strings.Builder
	b.WriteString(r.Rule)
	if r.Path != "" {
		b.WriteString(" at " + r.Path)
	}
	b.WriteString(": " + r.Message)
	if r.Remedy != "" {
		b.WriteString(" (" + r.Remedy + ")")
	}
	return b.String()
}
