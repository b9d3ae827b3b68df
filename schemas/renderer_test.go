package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"

	"github.com/skep-dev/skep/confined"
)

func TestDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want []string
	}{
		"one document":                         {"a: 1\n", []string{"a: 1\n"}},
		"a marker at the beginning":            {"---\na: 1\n", []string{"\na: 1\n"}},
		"documents keep their lines":           {"a: 1\n---\nb: 2\n", []string{"a: 1\n", "\n\nb: 2\n"}},
		"a document on the marker's line":      {"--- {a: 1}\n--- b\n", []string{"    {a: 1}\n", "\n    b\n"}},
		"a comment on the marker's line":       {"--- # x\na: 1\n", []string{"\na: 1\n"}},
		"an end marker":                        {"a: 1\n...\n---\nb: 2\n", []string{"a: 1\n", "\n\n\nb: 2\n"}},
		"dashes in a scalar":                   {"a: |\n  ---\n  x\n", []string{"a: |\n  ---\n  x\n"}},
		"dashes that go on":                    {"a: 1\n----\n", []string{"a: 1\n----\n"}},
		"Windows line ends":                    {"a: 1\r\n---\r\nb: 2\r\n", []string{"a: 1\r\n", "\n\nb: 2\r\n"}},
		"no line end after the last":           {"---\na: 1", []string{"\na: 1"}},
		"nothing":                              {"", nil},
		"nothing between markers":              {"---\n---\n\n---\n", nil},
		"a marker that ends the file":          {"a: 1\n---", []string{"a: 1\n"}},
		"two markers and a blank first letter": {" ---\n", []string{" ---\n"}},
	} {
		var got []string
		for _, d := range documents("a.yaml", []byte(c.data)) {
			got = append(got, string(d))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := documents("a.json", []byte("---\n---\n")); len(got) != 1 {
		t.Errorf("JSON: %q", got)
	}
}

func TestExactVariables(t *testing.T) {
	for name, c := range map[string][2]string{
		"small ones stay": {
			`{"spec":{"variables":{"a":1,"b":-9007199254740992,"c":1.5,"d":1e3}}}`, `{"spec":{"variables":{"a":1,"b":-9007199254740992,"c":1.5,"d":1e3}}}`,
		},
		"large ones become strings": {
			`{"spec":{"variables":{"a":9007199254740993,"b":[-18446744073709551616,{"c":9223372036854775807}]}}}`,
			`{"spec":{"variables":{"a":"9007199254740993","b":["-18446744073709551616",{"c":"9223372036854775807"}]}}}`,
		},
		"nothing else is touched": {
			`{"spec":{"other":18446744073709551615,"variables":{}},"x":"<"}`, `{"spec":{"other":18446744073709551615,"variables":{}},"x":"<"}`,
		},
		"there may be none": {`{"spec":{"a":18446744073709551615}}`, `{"spec":{"a":18446744073709551615}}`},
	} {
		got, err := exactVariables([]byte(c[0]))
		if err != nil || string(got) != c[1] {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c[1])
		}
	}
	for _, bad := range []string{``, `[]`, `{"spec":3}`, `{"spec":{"variables":}}`} {
		if got, err := exactVariables([]byte(bad)); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
}

// errAny stands for an error whose kind does not matter.
var errAny = errors.New("any")

func TestReadOutcomeKeepsWhatEnded(t *testing.T) {
	object := `{"object":{"Identity":{"kind":"BpfSigner","name":"%s"},"JSON":{}}}` + "\n"
	begin, end := `{"begin":%d}`+"\n", `{"end":%d}`+"\n"
	one := func(n int, name string) string {
		return fmt.Sprintf(begin, n) + fmt.Sprintf(object, name) + fmt.Sprintf(end, n)
	}
	for name, c := range map[string]struct {
		said string
		done int
		bad  error
	}{
		"all":                           {one(0, "a") + one(1, "b"), 2, nil},
		"a unit that was cut off":       {one(0, "a") + fmt.Sprintf(begin, 1) + fmt.Sprintf(object, "b"), 1, nil},
		"a line that was cut off":       {one(0, "a") + fmt.Sprintf(begin, 1) + `{"obj`, 1, io.ErrUnexpectedEOF},
		"more than is allowed":          {one(0, "a") + fmt.Sprintf(begin, 1) + fmt.Sprintf(object, strings.Repeat("x", maxOutput)), 1, errOutput},
		"more than is allowed, at end":  {one(0, "a") + strings.Repeat(" ", maxOutput), 1, errOutput},
		"nothing":                       {"", 0, nil},
		"a unit that was not asked for": {one(0, "a") + one(7, "b"), 1, errAny},
		"more units than were given":    {one(0, "a") + one(1, "b") + one(2, "c"), 2, errAny},
		"a unit before the first":       {one(-3, "a"), 0, errAny},
	} {
		got, err := readOutcome(strings.NewReader(c.said), make([]unit, 2))
		if errors.Is(c.bad, errAny) && err != nil {
			err = errAny
		}
		if !errors.Is(err, c.bad) || got.done != c.done || len(got.objects) != c.done || got.begun != (c.said != "") {
			t.Errorf("%s: %d done, %d objects, %v", name, got.done, len(got.objects), err)
		}
	}
}

func TestDeathIsTold(t *testing.T) {
	said := func(text string) confined.Death { return confined.Death{Said: text} }
	ended := func(text string) confined.Death { return confined.Death{Err: errors.New(text)} }
	for name, c := range map[string]struct {
		death death
		says  string
	}{
		"memory, told by the child":   {death{Death: said("out of memory\n")}, "more than 64 MiB of memory"},
		"memory, told by the runtime": {death{Death: said("fatal error: runtime: cannot allocate memory\n")}, "more than 64 MiB of memory"},
		"the stack":                   {death{Death: said("runtime: goroutine stack exceeds 1000000000-byte limit\n")}, "nested too deeply"},
		"the processor":               {death{Death: said("out of time\n")}, "longer than 3s of processor time"},
		"the output":                  {death{output: errOutput, Death: ended("signal: killed")}, "more than 16 MiB"},
		"something else":              {death{Death: ended("signal: segmentation fault")}, "broke the renderer: signal: segmentation fault"},
	} {
		broke, fix := c.death.words(64<<20, 3*time.Second)
		if !strings.Contains(broke, c.says) || fix == "" {
			t.Errorf("%s: %q, %q", name, broke, fix)
		}
	}
}

func TestRendererIsNotStartedByARenderer(t *testing.T) {
	t.Setenv("SKEP_CONFINED_ROLE", "some-role")
	if _, err := Load(t.Context(), Options{Root: t.TempDir()}); err != nil {
		t.Errorf("nothing has to be rendered: %v", err)
	}
	if _, err := renderIn(t.Context(), job{}, time.Second); err == nil || !strings.Contains(err.Error(), "MaybeRenderChild") {
		t.Errorf("error: %v", err)
	}
}

func TestServeRefusesWhatIsNoJob(t *testing.T) {
	if err := serve(&confined.Child{In: strings.NewReader("x"), Out: io.Discard}); err == nil || !strings.Contains(err.Error(), "read the job") {
		t.Errorf("error: %v", err)
	}
}

// FuzzLoad feeds the renderer's parsers in this process: whatever a data file
// holds, it ends, breaks nothing, places every problem in the file and renders
// only JSON that decodes into its type. CUE is parsed and loaded, and not
// evaluated: that may take for ever, which is what the child is for.
func FuzzLoad(f *testing.F) {
	for _, folder := range []string{"accepted", "refused"} {
		for _, ar := range archives(f, folder) {
			for _, file := range ar.Files {
				if strings.HasSuffix(file.Name, ".cue") || strings.HasSuffix(file.Name, "a.yaml") {
					f.Add(string(file.Data), strings.HasSuffix(file.Name, ".cue"))
				}
			}
		}
	}
	for _, seed := range []string{
		"a: &a [x]\nb: *a\n", "? {a: b}\n: c", "--- !!binary aGVsbG8=\n", "a: !!float 1e999", "{\"apiVersion\":\"skep.dev/\",\"apiVersion\":1}",
		"apiVersion: skep.dev/v1alpha1\nkind: {}", "\xff\xfe", "---\n---\n...",
	} {
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, data string, isCUE bool) {
		if len(data) > 4<<10 {
			t.Skip("longer than a seed needs to be")
		}
		if isCUE {
			fuzzCUE(t, data)
			return
		}
		for _, name := range []string{"a.yaml", "a.json"} {
			out := renderBytes(t, name, []byte(data))
			good, _ := rejectTwins(out.objects)
			for _, o := range good {
				if err := new(Definitions).add(o); err != nil {
					t.Errorf("%s does not decode: %v", o.JSON, err)
				}
				if !json.Valid(o.JSON) {
					t.Errorf("%s is no JSON", o.JSON)
				}
			}
			for _, p := range out.problems {
				if p.Source.File != name || p.Message == "" || p.Fix == "" {
					t.Errorf("the problem is not told: %+v", p)
				}
			}
		}
	})
}

// renderBytes renders one data file in this process.
func renderBytes(t *testing.T, name string, data []byte) outcome {
	t.Helper()
	var out bytes.Buffer
	if err := newRenderer(map[string][]byte{name: data}, nil, &out).run([]unit{{name, dataFile}}); err != nil {
		t.Fatal(err)
	}
	got, err := readOutcome(&out, []unit{{name, dataFile}})
	if err != nil && !errors.Is(err, errOutput) {
		t.Fatal(err)
	}
	return got
}

// fuzzCUE parses a file and loads the package it makes.
func fuzzCUE(t *testing.T, data string) {
	t.Helper()
	if _, err := parser.ParseFile("a.cue", data); err != nil {
		return
	}
	r := newRenderer(map[string][]byte{"a.cue": []byte(data)}, nil, io.Discard)
	var err error
	if r.overlay, err = overlay(r.files, r.root); err != nil {
		t.Fatal(err)
	}
	for _, inst := range load.Instances([]string{r.argument(unit{".", cuePackage})}, r.config(unit{".", cuePackage}, r.root, nil)) {
		if inst.Err == nil && inst.Dir != r.root {
			t.Errorf("the package is in %s", inst.Dir)
		}
	}
}

// archives reads a folder of the corpus.
func archives(tb testing.TB, folder string) []*txtar.Archive {
	tb.Helper()
	var all []*txtar.Archive
	names, err := filepath.Glob(filepath.Join("testdata", folder, "*.txtar"))
	if err != nil || len(names) == 0 {
		tb.Fatalf("%s: %d cases, %v", folder, len(names), err)
	}
	for _, name := range names {
		ar, err := txtar.ParseFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, ar)
	}
	return all
}

func TestPlacesAreBounded(t *testing.T) {
	const app = "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: a}\nspec: {bytecode: {image: \"r.example.com/x:v1\"}, programs: " +
		"[{name: f}]}\n"
	var out bytes.Buffer
	r := newRenderer(map[string][]byte{"a.yaml": []byte(app)}, nil, &out)
	r.places = 3
	if err := r.run([]unit{{"a.yaml", dataFile}}); err != nil {
		t.Fatal(err)
	}
	got, err := readOutcome(&out, []unit{{"a.yaml", dataFile}})
	if err != nil || len(got.objects) != 1 || len(got.objects[0].Places) != 3 {
		t.Errorf("render: %+v, %v; want an object with 3 places", got.objects, err)
	}
}
