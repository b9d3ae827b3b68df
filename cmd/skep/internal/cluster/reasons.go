package cluster

import (
	"regexp"
	"strings"

	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// sentence begins a reason in the message of Allowed: rule and path, as gate.Sentence writes them.
var sentence = regexp.MustCompile(`(?:^|; )([\w.-]+(?:/[\w.-]+)+)(?: at (\S+))?: `)

// reasons reads the reasons of a denial out of the message of Allowed. None if it has another form.
func reasons(message string) (all []policies.Reason) {
	message, _, _ = strings.Cut(message, lifecycle.AuditMark)
	starts := sentence.FindAllStringSubmatchIndex(message, -1)
	if len(starts) == 0 || starts[0][0] != 0 {
		return nil
	}
	for i, at := range starts {
		end := len(message)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		r := policies.Reason{Rule: message[at[2]:at[3]], Message: message[at[1]:end]}
		if at[4] >= 0 {
			r.Path = message[at[4]:at[5]]
		}
		// The fix is in the last parentheses, which may contain others.
		if open := lastGroup(r.Message); open > 0 {
			r.Message, r.Fix = r.Message[:open-1], strings.TrimSuffix(r.Message[open+1:], ")")
		}
		all = append(all, r)
	}
	return all
}

// lastGroup is where the parentheses open that the text ends with, after a space; 0 if it does not end with any.
func lastGroup(s string) int {
	if !strings.HasSuffix(s, ")") {
		return 0
	}
	depth := 0
	for i := len(s) - 1; i > 0; i-- {
		switch s[i] {
		case ')':
			depth++
		case '(':
			depth--
		}
		if depth == 0 {
			if s[i-1] == ' ' {
				return i
			}
			return 0
		}
	}
	return 0
}
