package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestAChoiceOfSymbolsIsReadAsItWasWritten(t *testing.T) {
	type parts struct {
		Names, Exclude []string
		Limit          int
	}
	limit := func(n int32) *int32 { return &n }
	for text, s := range map[string]v1alpha1.Symbols{
		"SSL_* SSL_read !SSL_CTX_* !x <=7": {Names: []string{"SSL_*", "SSL_read"}, Exclude: []string{"SSL_CTX_*", "x"}, Limit: limit(7)},
		"f":                                {Names: []string{"f"}},
		"main.(*T).Do ?":                   {Names: []string{"main.(*T).Do", "?"}, Limit: limit(v1alpha1.DefaultFunctions)},
	} {
		chosen := ChooseSymbols(&s)
		if string(chosen) != text {
			t.Errorf("%+v is %q, want %q", s, chosen, text)
		}
		want := parts{s.Names, s.Exclude, v1alpha1.DefaultFunctions}
		if s.Limit != nil {
			want.Limit = int(*s.Limit)
		}
		var got parts
		got.Names, got.Exclude, got.Limit = chosen.Parts()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	if ChooseSymbols(nil) != "" {
		t.Error("no choice is one")
	}
	if _, _, limit := Symbols("f <=x").Parts(); limit != 0 {
		t.Errorf("a limit that is no number is %d", limit)
	}
}
