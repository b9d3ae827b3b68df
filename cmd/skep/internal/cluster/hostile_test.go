package cluster

import (
	"bytes"
	"io"
	"strings"
	"testing"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/nodes"
	"github.com/skep-dev/skep/test/harness/hostile"
)

func TestNoFieldOfWhatAClusterAnswersReachesTheTerminalAsItIs(t *testing.T) {
	var (
		n view.NodeView
		e Explanation
		s Status
	)
	for _, v := range []any{&n, &e, &s} {
		hostile.Fill(v)
	}
	// The lines of a log stand as the kernel wrote them, under a heading of their own.
	e.Views[0].Applications[0].VerifierLog = "\x1b[2J\u202e"
	sequence := n.Interfaces[0]
	xdp := sequence
	xdp.Hook = "xdp"
	chains := []view.Interface{sequence, xdp}
	for name, show := range map[string]func(w io.Writer) error{
		"status":         func(w io.Writer) error { return PrintStatus(w, "wide", s) },
		"status -o json": func(w io.Writer) error { return PrintStatus(w, "json", s) },
		"status -o yaml": func(w io.Writer) error { return PrintStatus(w, "yaml", s) },
		"explain":        func(w io.Writer) error { return PrintExplanation(w, "text", e) },
		"chain":          func(w io.Writer) error { return nodes.PrintChains(w, w, "text", n, chains) },
		"chain -o json":  func(w io.Writer) error { return nodes.PrintChains(w, w, "json", n, chains) },
		"inventory":      func(w io.Writer) error { return nodes.PrintPrograms(w, true, n.Programs, n.Interfaces) },
		"history":        func(w io.Writer) error { return nodes.PrintHistory(w, true, e.Status.History) },
	} {
		var out bytes.Buffer
		if err := show(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		hostile.Check(t, name, out.String())
		if lines := strings.Count(out.String(), "\n"); (name == "inventory" || name == "history") && lines != 2 {
			t.Errorf("%s: a row is %d lines:\n%s", name, lines-1, out.String())
		}
	}
}
