package admission

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/skep-dev/skep/policies"
)

func TestAnswersAreBounded(t *testing.T) {
	reasons := slices.Repeat([]policies.Reason{{Rule: "p/r", Message: strings.Repeat("é", 300) + "\n\x1b[31m", Fix: "fix it"}}, 20)
	lines := sentences(reasons, maxWarnings)
	if len(lines) != maxWarnings+1 || lines[maxWarnings] != "and 14 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	if strings.ContainsAny(lines[0], "\n\x1b") || !strings.HasSuffix(lines[0], "(fix it)") {
		t.Errorf("not printable, or cut: %q", lines[0])
	}
	total := 0
	for _, w := range slices.Concat(warnings("denied: ", lines), warnings("", lines), warnings("", lines[:1])) {
		n := utf8.RuneCountInString(w)
		total += n
		if n > maxWarningRunes {
			t.Errorf("a warning of %d characters", n)
		}
	}
	if total > 4096 {
		t.Errorf("%d characters of warnings: the API server drops the last", total)
	}
}

// TestNobodyCrowdsAnAuditedRuleOut has a definition, and a policy of its namespace, give many
// reasons with long messages that name another rule.
// TestADenialNeverSaysThatAFieldIsImmutable compares with what fluxcd/pkg/ssa/errors looks for.
func TestADenialNeverSaysThatAFieldIsImmutable(t *testing.T) {
	flux := regexp.MustCompile(`is\simmutable|immutable\sfield`)
	for said, want := range map[string]string{
		"the image is immutable":                  "the image is unchangeable",
		"an immutable field, which is immutable":  "an unchangeable field, which is unchangeable",
		"is immutable field is immutable field":   "is unchangeable field is unchangeable field",
		"this\nimmutable\nfield":                  "this unchangeable field",
		"immutable infrastructure, not immutable": "immutable infrastructure, not immutable",
	} {
		got := deny("BpfApplication a/b", said).message
		if flux.MatchString(got) || !strings.HasSuffix(got, ": "+want) {
			t.Errorf("%q becomes %q, want %q", said, got, want)
		}
	}
}

func TestNobodyCrowdsAnAuditedRuleOut(t *testing.T) {
	reasons := []policies.Reason{{Rule: "try/signers", Message: "nobody known signed it"}}
	for i := range 400 {
		reasons = append(reasons,
			policies.Reason{Rule: "a/interfaces", Path: strconv.Itoa(i), Message: strings.Repeat("<", 1024) + `", "try/none"`},
			policies.Reason{Rule: fmt.Sprintf(`a/own/x", "try/none %d`, i), Message: strings.Repeat("\x1b", 1024)})
	}
	slices.SortFunc(reasons, func(a, b policies.Reason) int { return strings.Compare(a.Rule, b.Rule) })
	got := audited(reasons)
	var rules []string
	if err := json.Unmarshal([]byte(got[annotationDenials]), &rules); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rules[:2], []string{"a/interfaces", "try/signers"}) || slices.Contains(rules, "try/none") {
		t.Errorf("the rules of the cluster are %q", rules[:2])
	}
	if last := rules[len(rules)-1]; last != fmt.Sprintf("and %d more", 402-len(rules)+1) {
		t.Errorf("%d rules, the last is %q", len(rules), last)
	}
	if a, b := len(got[annotationDenials]), len(got[annotationReasons]); a > maxAuditedRules || a < maxAuditedRules*3/4 || b > maxAuditedReasons {
		t.Errorf("%d and %d bytes", a, b)
	}
}
