package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
)

// Bounds on what one answer says. The API server cuts a warning beyond 256
// characters and all of them beyond 4096, and drops those with control
// characters whole. An answer has two lists of warnings and one more at most.
const (
	maxWarningRunes = 256
	maxWarnings     = 6
	maxReasons      = 16
)

// unchangeable are the words by which Flux (fluxcd/pkg/ssa/errors) tells that a field cannot change.
var unchangeable = regexp.MustCompile(`(is\s)immutable|immutable(\sfield)`)

// changeable is what a denial says, without words by which a Kustomization with force: true would delete
// the object that runs: they may come from anybody's Rego, or from names in the definition.
func changeable(message string) string {
	return unchangeable.ReplaceAllString(message, "${1}unchangeable${2}")
}

// sentences are reasons as text, the first few of them.
func sentences(reasons []policies.Reason, most int) []string {
	lines := make([]string, 0, min(len(reasons), most)+1)
	for i, r := range reasons {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more", len(reasons)-i))
			break
		}
		lines = append(lines, text.Line(gate.Sentence(r)))
	}
	return lines
}

// How many bytes the two annotations of audited have at most: together far less than the
// 100 KiB at which an audit backend that truncates drops an event.
const (
	maxAuditedRules   = 8 << 10
	maxAuditedReasons = 4 << 10
)

// audited are the annotations of what policies in mode Audit would deny. Every rule is named
// before any message, those of the cluster first, so that neither a definition nor a policy
// of its namespace crowds one out, or says another's name.
func audited(reasons []policies.Reason) map[string]string {
	rules := policies.Rules(reasons)
	slices.SortStableFunc(rules, func(a, b string) int {
		return cmp.Compare(min(strings.Count(a, "/"), 2), min(strings.Count(b, "/"), 2))
	})
	return map[string]string{
		annotationDenials: array(rules, maxAuditedRules),
		annotationReasons: text.Cut(strings.Join(sentences(reasons, maxReasons), "; "), maxAuditedReasons),
	}
}

// array is a JSON array of at most so many bytes: of the first elements that fit, and of how
// many more there are.
func array(all []string, bytes int) string {
	const rest = 32
	room := bytes - rest
	var kept []string
	for i, one := range all {
		encoded, err := json.Marshal(one)
		if room -= len(encoded) + 1; err != nil || room < 0 {
			kept = append(kept, strconv.Quote(fmt.Sprintf("and %d more", len(all)-i)))
			break
		}
		kept = append(kept, string(encoded))
	}
	return "[" + strings.Join(kept, ",") + "]"
}

// warnings are lines as the API server hands them on.
func warnings(prefix string, lines []string) []string {
	cut := make([]string, 0, len(lines))
	for _, line := range lines {
		cut = append(cut, text.CutRunes(text.Line(prefix+line), maxWarningRunes))
	}
	return cut
}
