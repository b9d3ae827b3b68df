package bytecode

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/corpus"
)

func TestTablesOfFunctionsAreDeniedWithTheReason(t *testing.T) {
	object, err := corpus.Objects.ReadFile("testdata/struct_ops.o")
	if err != nil {
		t.Fatal(err)
	}
	r := refusal(t, object)
	if r.Rule != "bytecode/struct-ops" || !strings.Contains(r.Object, ".struct_ops") || !strings.Contains(r.Reason, "table of functions") ||
		!strings.HasPrefix(r.Fix, "use bpftool-struct_ops(8)") {
		t.Errorf("refused by %s: %s: %s; %s", r.Rule, r.Object, r.Reason, r.Fix)
	}
}
