package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/hostile"
	"github.com/skep-dev/skep/text"
)

// TestNoFieldOfADefinitionReachesTheTerminalAsItIs: the author of a pull request writes names, files and what messages quote.
func TestNoFieldOfADefinitionReachesTheTerminalAsItIs(t *testing.T) {
	var r vetResult
	hostile.Fill(&r)
	invalid, denied, unknown := r, r, r
	denied.Error, denied.Allowed = "", false
	unknown.Reasons = nil
	results := []vetResult{r, invalid, denied, unknown}
	for _, format := range []string{"text", "json", "sarif"} {
		var out bytes.Buffer
		if err := printVet(&out, format, results); err != nil {
			t.Errorf("-o %s: %v", format, err)
		}
		hostile.Check(t, "vet -o "+format, out.String())
		if format == "text" {
			continue
		}
		var all any
		if err := json.Unmarshal(out.Bytes(), &all); err != nil || !holds(all, hostile.Text) && format == "json" {
			t.Errorf("-o %s is read as %v, %v", format, all, err)
		}
	}
	hostile.Check(t, "the last line of vet", printable(vetError(results)))
	var p schemas.Problem
	hostile.Fill(&p)
	hostile.Check(t, "the last line of render", printable(problemsError([]schemas.Problem{p, p})))
}

// printable is an error as main prints it.
func printable(err error) string { return text.Printable(err.Error()) }

// holds reports whether a value read from JSON has a text somewhere.
func holds(v any, what string) bool {
	switch v := v.(type) {
	case string:
		return v == what
	case []any:
		return slices.ContainsFunc(v, func(one any) bool { return holds(one, what) })
	case map[string]any:
		for _, one := range v {
			if holds(one, what) {
				return true
			}
		}
	}
	return false
}

func TestNoFieldOfAPolicyReachesTheTerminalAsItIs(t *testing.T) {
	var report policies.Report
	hostile.Fill(&report)
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	printReport(cmd, report)
	warn(cmd, []string{hostile.Text})
	hostile.Check(t, "policy test", out.String())
}

// TestARenderedDefinitionHoldsNoCommandForATerminal, and says the same all the same.
func TestARenderedDefinitionHoldsNoCommandForATerminal(t *testing.T) {
	body, err := json.Marshal(map[string]string{"a": hostile.Text})
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"yaml", "json"} {
		var out bytes.Buffer
		if err := printObjects(&out, format, []schemas.Object{{JSON: body}}); err != nil {
			t.Fatal(err)
		}
		hostile.Check(t, "render -o "+format, out.String())
		var all any
		if err := yaml.Unmarshal(out.Bytes(), &all); err != nil || !holds(all, hostile.Text) {
			t.Errorf("-o %s is read as %v, %v", format, all, err)
		}
	}
}
