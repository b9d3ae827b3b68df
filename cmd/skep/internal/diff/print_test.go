package diff

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// changes makes a report of so many objects, each with a diff of so many lines.
func changes(objects, lines int) *Report {
	r := &Report{Against: "a test"}
	for i := range objects {
		id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("a%d", i)}
		r.Changes = append(r.Changes, Change{
			Action: Changed, Identity: id, Answer: Denied, Reasons: []string{"because"}, Diff: strings.Repeat("+ä line of a diff\n", lines),
		})
	}
	return r
}

// printed is what Print writes.
func printed(t *testing.T, r *Report, format string) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.Print(&out, format); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestACommentFitsOnGitHub(t *testing.T) {
	for name, c := range map[string]struct {
		report *Report
		want   []string
	}{
		"nothing":          {changes(0, 0), []string{"0 added, 0 changed"}},
		"one long diff":    {changes(1, 100_000), []string{"more lines do not fit here"}},
		"many short diffs": {changes(3_000, 3), []string{"| | and ", "these diffs do not fit here; run `skep diff`"}},
		"many long diffs":  {changes(300, 300), []string{"more lines do not fit here", "these diffs do not fit here"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := printed(t, c.report, "markdown")
			if len(out) > maxComment || !utf8.ValidString(out) {
				t.Errorf("it has %d bytes, valid UTF-8: %t", len(out), utf8.ValidString(out))
			}
			if !strings.HasPrefix(out, Marker+"\n") {
				t.Errorf("it begins with %.40q", out)
			}
			if open, shut := strings.Count(out, "<details"), strings.Count(out, "</details>"); open != shut || strings.Count(out, "```") != 2*open {
				t.Errorf("%d folds are opened and %d closed, with %d fences", open, shut, strings.Count(out, "```"))
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q", want)
				}
			}
		})
	}
	// What fits is whole: nothing is left out for nothing.
	if out := printed(t, changes(20, 20), "markdown"); strings.Contains(out, "fit here") || strings.Count(out, "+ä line") != 400 {
		t.Errorf("of 20 diffs it says:\n%.2000s", out)
	}
}

// TestNothingInACommentIsMarkdown has annotations and reasons that would be some.
func TestNothingInACommentIsMarkdown(t *testing.T) {
	r := changes(1, 0)
	r.Changes[0].Reasons = []string{"ask @admins\n</details> <img src=x> ````"}
	r.Changes[0].Warnings = []string{"@everybody"}
	r.Changes[0].Diff = "+    note: '``` @others\x1b[31m'\n"
	out := printed(t, r, "markdown")
	_, fenced, found := strings.Cut(out, "\n`````diff\n")
	fenced, after, closed := strings.Cut(fenced, "\n`````\n")
	if !found || !closed || strings.Contains(after, "@") {
		t.Fatalf("there is no fence of five:\n%s", out)
	}
	for _, word := range []string{"@admins", "@everybody", "@others", "<img"} {
		if !strings.Contains(fenced, word) || strings.Count(out, word) != 1 {
			t.Errorf("%s is outside of the fence:\n%s", word, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("an escape is in %q", out)
	}
	if out := printed(t, r, "text"); strings.Contains(out, "\x1b") || !strings.Contains(out, "  warning: @everybody\n") {
		t.Errorf("text is %q", out)
	}
}

// TestNoAuthorHidesWhatOthersChange has one add many objects, or one that is long in each way.
func TestNoAuthorHidesWhatOthersChange(t *testing.T) {
	for name, loud := range map[string]*Report{
		"many":              changes(5_000, 3),
		"a long diff":       changes(1, 100_000),
		"a long line":       {Changes: []Change{{Action: Added, Answer: Denied, Diff: "+" + strings.Repeat("x", maxComment) + "\n+the end\n"}}},
		"rows of backticks": {Changes: slices.Repeat([]Change{{Action: Added, Answer: Denied, Diff: "+" + strings.Repeat("`", 1_000) + "\n"}}, 200)},
		"a row of backtick": {Changes: []Change{{Action: Added, Answer: Denied, Diff: "+" + strings.Repeat("`", maxComment) + "\n+the end\n"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, quiet := range []Change{
				{Action: Removed, Identity: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfPolicy, Name: "quiet"}},
				{Action: Changed, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfSigner, Name: "quiet"}},
				{Action: Changed, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "z", Name: "quiet"}},
			} {
				quiet.Diff = "-what is quiet\n"
				r := &Report{Changes: append(slices.Clone(loud.Changes), quiet)}
				out := printed(t, r, "markdown")
				row := fmt.Sprintf("| %s | %s %#q |", quiet.Action, quiet.Kind, quiet.Identity)
				if !strings.Contains(out, row) || !strings.Contains(out, quiet.Diff) || len(out) > maxComment {
					t.Errorf("%s is hidden in %d bytes", quiet, len(out))
				}
				if strings.Contains(loud.Changes[0].Diff, "the end") && !strings.Contains(out, "+the end\n") {
					t.Error("one line hides the next")
				}
				if len(loud.Changes) > 1_000 && !strings.Contains(out, " more (rejected), first `BpfApplication n") {
					t.Error("it does not name what is left out")
				}
			}
		})
	}
}

func TestWhatStopsAReaderIsFirst(t *testing.T) {
	r := &Report{}
	for i, c := range []Change{
		{Action: Added, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}},
		{Action: Added, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfSigner}},
		{Action: Removed, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}},
		{Action: Added, Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}, Answer: Denied},
	} {
		c.Name = fmt.Sprintf("o%d", i)
		r.Changes = append(r.Changes, c)
	}
	out, last := printed(t, r, "markdown"), -1
	for _, name := range []string{"`o3`", "`o2`", "`o1`", "`o0`"} {
		at := strings.Index(out, name)
		if at <= last {
			t.Errorf("%s is not in its place:\n%s", name, out)
		}
		last = at
	}
}

func TestARejectedChangeIsAnError(t *testing.T) {
	for answer, want := range map[Answer]string{
		Allowed: "", Unverified: "", "": "",
		Denied: "denied", Invalid: "invalid", Unknown: "could not be determined",
	} {
		r := changes(1, 1)
		r.Changes[0].Answer = answer
		err := r.Error()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "/a0: "+want+"; the reasons are above") {
			t.Errorf("%q: %v", answer, err)
		}
	}
	if err := changes(1_000, 1).Error(); len(err.Error()) > 2*maxNamed {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}
