package views

import (
	"fmt"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/skep-dev/skep/text"
)

// warnings are about nodes that did not answer, by reason; kubectl prints them.
type warnings struct {
	reasons []string
	nodes   map[string][]string
	// cut says that the list ends before its end, to a client that set no limit.
	cut string
}

// The bounds of warnings: how many reasons, of how many bytes, and how many nodes of one are named.
const (
	maxReasons = 4
	maxReason  = 300
	maxNamed   = 5
)

// add adds a node.
func (w *warnings) add(node string, err error) {
	reason := text.Cut(text.Line(err.Error()), maxReason)
	if w.nodes == nil {
		w.nodes = map[string][]string{}
	}
	if w.nodes[reason] == nil {
		if len(w.reasons) == maxReasons {
			reason = w.reasons[maxReasons-1]
		} else {
			w.reasons = append(w.reasons, reason)
		}
	}
	w.nodes[reason] = append(w.nodes[reason], node)
}

// sentences are the warnings as text.
func (w *warnings) sentences() (all []string) {
	for _, reason := range w.reasons {
		nodes, more, what := w.nodes[reason], "", "node"
		if n := len(nodes) - maxNamed; n > 0 {
			nodes, more = nodes[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		if len(nodes) > 1 {
			what = "nodes"
		}
		all = append(all, fmt.Sprintf("%s %s%s: %s", what, strings.Join(nodes, ", "), more, reason))
	}
	if w.cut != "" {
		all = append(all, w.cut)
	}
	return all
}

// headers are the values of the header Warning.
func (w *warnings) headers() (headers []string) {
	for _, one := range w.sentences() {
		// What no header may hold is not said.
		if header, err := utilnet.NewWarningHeader(299, "skep", one); err == nil {
			headers = append(headers, header)
		}
	}
	return headers
}
