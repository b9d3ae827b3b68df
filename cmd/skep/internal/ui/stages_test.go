package ui

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/test/harness/golden"
)

// TestStages compares the way of applications: a case has what is known of one, and its steps.
func TestStages(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		var p progress
		if err := json.Unmarshal(a.Files[0].Data, &p); err != nil {
			t.Fatal(err)
		}
		var steps strings.Builder
		for _, s := range p.stages() {
			fmt.Fprintf(&steps, "%-9s %-7s %s\n", s.Name, s.State, s.Title)
			for _, line := range s.Lines {
				fmt.Fprintf(&steps, "          %s\n", line)
			}
		}
		return []txtar.File{{Name: "stages", Data: []byte(steps.String())}}
	})
}
