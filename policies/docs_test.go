package policies_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// guide is the policy guide.
func guide(t *testing.T) string {
	t.Helper()
	body, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestTheGuidesExamplesWork(t *testing.T) {
	files := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```[a-z]+\n(.*?)```").FindAllStringSubmatch(guide(t), -1) {
		files[m[1]] = m[2]
	}
	if len(files) != 3 {
		t.Fatalf("the guide has %d examples", len(files))
	}
	report, err := engine.Test(t.Context(), folder(files))
	if err != nil || !report.Passed() || len(report.Results) != 4 {
		t.Errorf("its tests: %+v, %v", report, err)
	}
	list, err := policies.Load(folder(files))
	if err != nil {
		t.Fatal(err)
	}
	d := decide(t, compile(t, list...), input(func(in *policies.Input) { in.Bytecode.MemoryBytes = 1 << 20 }))
	if got := ids(d.Denied) + ", " + ids(d.Audited); got != "team-hours/friday, team-a/small-maps/deny" || !d.TimeDependent {
		t.Errorf("its policies decide %s", got)
	}
}

// TestTheGuidesPoliciesCompile takes every policy of the guide as it stands there.
func TestTheGuidesPoliciesCompile(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```rego\n(package skep\\.policy\n.*?)```").FindAllStringSubmatch(guide(t), -1)
	if len(blocks) < 3 {
		t.Fatalf("the guide has %d policies", len(blocks))
	}
	for _, m := range blocks {
		p := policies.Policy{Name: "a", Spec: v1alpha1.BpfPolicySpec{Rego: m[1]}}
		if _, err := engine.Compile(t.Context(), []policies.Policy{p}, policies.Options{}); err != nil {
			t.Errorf("%v\n%s", err, m[1])
		}
	}
}

func TestTheGuidesRefusalIsReal(t *testing.T) {
	m := regexp.MustCompile("(?s)<!-- decision -->\n```json\n(.*?)```").FindStringSubmatch(guide(t))
	if m == nil {
		t.Fatal("the guide shows no refusal")
	}
	var want []policies.Reason
	if err := json.Unmarshal([]byte(m[1]), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, decide(t, compile(t), input(unsigned)).Denied); diff != "" {
		t.Error(diff)
	}
}

// TestTheGuideKnowsEveryRule compares the guide with the names that the shipped
// Rego uses: rules, parameters and the functions over evidence.
func TestTheGuideKnowsEveryRule(t *testing.T) {
	text := guide(t)
	found := 0
	for file, source := range policies.Source() {
		for _, pattern := range []string{
			`(?m)^(?:deny|warn) contains lib\.reason\("([a-z-]+)"`,
			`(?m)^known_parameters contains "(\w+)"`,
			`(?m)^#   (\w+)  `,
		} {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(source, -1) {
				found++
				if !strings.Contains(text, "\n| `"+m[1]+"` |") {
					t.Errorf("%s: the guide has no row for %s", file, m[1])
				}
			}
		}
	}
	for file, source := range policies.Library() {
		pkg, ok := strings.CutPrefix(strings.TrimSuffix(file, ".rego"), "library/evidence/")
		for _, m := range regexp.MustCompile(`(?m)^# (?:Whether|The highest)[^\n]*\n(?:#[^\n]*\n)*(\w+\([^)]*\))`).FindAllStringSubmatch(source, -1) {
			if !ok {
				continue
			}
			found++
			if !strings.Contains(text, "\n| `"+pkg+"."+m[1]+"` |") {
				t.Errorf("%s: the guide has no row for %s", file, m[1])
			}
		}
	}
	if found < 31 {
		t.Errorf("only %d names were found in the library", found)
	}
}
