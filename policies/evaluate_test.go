package policies

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/skep-dev/skep/confined"
	"github.com/skep-dev/skep/text"
)

// one compiles one policy with the given Rego after its package clause.
func one(t *testing.T, rego string) *executable {
	t.Helper()
	box, err := newSandbox()
	if err != nil {
		t.Fatal(err)
	}
	p, shown, err := box.compile(t.Context(), program{Policy: "a", File: "a.rego", Rego: "package skep.policy\n\n" + rego + "\n", Parameters: []byte("{}")})
	if err != nil || len(shown.Errors) > 0 {
		t.Fatal(err, shown.Errors)
	}
	return p
}

// TestAnEvaluationStopsAtItsTime: what took its time of a processor is too slow, and where the clock alone ran, the machine is busy.
func TestAnEvaluationStopsAtItsTime(t *testing.T) {
	c := one(t, `deny contains "x" if count(numbers.range(1, 1000000000000)) == 1`)
	for want, within := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"did not finish in time": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return confined.Spend(ctx, time.Millisecond)
		},
		"this machine is busy": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Millisecond)
		},
	} {
		ctx, cancel := within(t.Context())
		v := c.evaluate(ctx, ast.NewObject())
		if cancel(); !v.Late || !v.Failed || !strings.Contains(v.Denied[0].Message, want) {
			t.Errorf("%s: %+v", want, v)
		}
	}
}

func TestAnEvaluationThatPanicsDenies(t *testing.T) {
	c := one(t, `deny contains "x"`)
	c.parameters = nil // the evaluator walks into it
	v := c.evaluate(t.Context(), nil)
	if !v.Failed || v.Late || !strings.Contains(v.Denied[0].Message, "made the evaluator give up") {
		t.Errorf("%+v", v)
	}
}

func TestFailuresSayWhereAndQuoteNothing(t *testing.T) {
	c := one(t, `deny contains "x"`)
	at := &ast.Location{File: "a.rego", Row: 7}
	for code, want := range map[string]string{
		topdown.ConflictErr:  "policy a gives two values for one thing at a.rego:7",
		topdown.TypeErr:      "policy a uses a value of the wrong type at a.rego:7",
		topdown.BuiltinErr:   "policy a calls a function with a value it does not take at a.rego:7",
		topdown.WithMergeErr: "policy a replaces a part of the input that cannot be replaced at a.rego:7",
		topdown.InternalErr:  "policy a could not be evaluated at a.rego:7",
	} {
		v := c.failsWith(&topdown.Error{Code: code, Message: "the secret is hunter2", Location: at})
		if got := v.Denied[0].Message; !strings.HasPrefix(got, want+",") || strings.Contains(got, "hunter2") || v.Denied[0].Fix == "" {
			t.Errorf("%s: %s", code, got)
		}
	}
	if got := c.failsWith(&topdown.Error{Code: topdown.TypeErr}).Denied[0].Message; !strings.Contains(got, "at a place it does not tell") {
		t.Errorf("without a place: %s", got)
	}
}

func TestCut(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		n    int
		want string
	}{
		"what fits stays":                      {"abcdef", 6, "abcdef"},
		"what does not is marked":              {"abcdefgh", 6, "abc…"},
		"no character is cut in two":           {"aéééé", 7, "aé…"},
		"bytes that are no text are replaced":  {"a\xffb", 9, "a\uFFFDb"},
		"nothing stays nothing":                {"", 4, ""},
		"a character as long as the rest goes": {"😀😀", 6, "…"},
	} {
		t.Run(name, func(t *testing.T) {
			got := text.Cut(test.text, test.n)
			if got != test.want || !utf8.ValidString(got) || len(got) > max(test.n, len(test.want)) {
				t.Errorf("text.Cut(%q, %d) = %q, want %q", test.text, test.n, got, test.want)
			}
		})
	}
}

func TestTooDeep(t *testing.T) {
	deep, fits := strings.Repeat("[", maxNesting+1), strings.Repeat("[", maxNesting)
	for name, test := range map[string]struct {
		source string
		want   int
	}{
		"what fits":                       {"\n" + fits + strings.Repeat("]", maxNesting) + fits, 0},
		"one too many":                    {"\n\n" + deep, 3},
		"brackets of all kinds":           {strings.Repeat("[({", 30), 1},
		"brackets in a string":            {`"\"` + deep + `" [`, 0},
		"brackets in a raw string":        {"`\\\n" + deep + "` [", 0},
		"brackets in a comment":           {"# \"" + deep + "\n[", 0},
		"brackets after a comment":        {"# \"\n" + deep, 2},
		"brackets after a string's end":   {`"a" ` + deep, 1},
		"a string that does not end ends": {"\"\n" + deep, 2},
		"a backslash at the very end":     {`"\`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tooDeep(test.source); got != test.want {
				t.Errorf("line %d, want %d", got, test.want)
			}
		})
	}
}
