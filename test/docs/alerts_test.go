package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// runbook is the page with a heading for each alert.
const runbook = "docs/operations/alerts.md"

// TestEveryAlertHasItsHeading: the link of an alert leads to what to do.
func TestEveryAlertHasItsHeading(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "charts/skep/files/rules/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the rules are %v, %v", files, err)
	}
	var alerts []string
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules struct {
			Groups []struct {
				Rules []struct {
					Alert               string
					Labels, Annotations map[string]string
				}
			}
		}
		if err := yaml.Unmarshal(body, &rules); err != nil {
			t.Fatal(err)
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				alerts = append(alerts, r.Alert)
				if want := "https://github.com/skep-dev/skep/blob/main/" + runbook + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
					t.Errorf("%s: runbook_url is %q, want %s", r.Alert, r.Annotations["runbook_url"], want)
				}
				if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
					t.Errorf("%s has no summary, no description or no severity", r.Alert)
				}
			}
		}
	}
	var headings []string
	for _, found := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(read(t, runbook), -1) {
		headings = append(headings, found[1])
	}
	slices.Sort(alerts)
	slices.Sort(headings)
	if !slices.Equal(alerts, headings) {
		t.Errorf("the alerts are\n%v\nand the headings of %s\n%v", alerts, runbook, headings)
	}
}
