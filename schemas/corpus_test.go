package schemas_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

// update rewrites the golden parts of testdata.
var update = flag.Bool("update", false, "rewrite the golden parts of testdata")

// The corpus has one definition a case. Its comment says why the case stands
// there, and on a line of its own what a CRD made from the Go types is to say
// of it: "crd: accepts", "crd: rejects", or "crd: none" where nothing can be sent. The golden part is "render.yaml"
// where the schema accepts and "problems" where it rejects.
var crdLine = regexp.MustCompile(`(?m)^crd: (accepts|refuses|none)$`)

func TestCorpus(t *testing.T) {
	for folder, golden := range map[string]string{"accepted": "render.yaml", "refused": "problems"} {
		names, err := filepath.Glob(filepath.Join("testdata", folder, "*.txtar"))
		if err != nil || len(names) < 10 {
			t.Fatalf("%s: %d cases, %v", folder, len(names), err)
		}
		for _, name := range names {
			t.Run(folder+"/"+strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
				t.Parallel()
				runCase(t, name, golden)
			})
		}
	}
}

// runCase renders one case and compares what came out with its golden part.
func runCase(t *testing.T, name, golden string) {
	t.Helper()
	ar, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !crdLine.Match(ar.Comment) {
		t.Error("the comment does not say what the CRD is to do")
	}
	dir, want := unpack(t, ar, golden)
	objects, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	if refused := len(problems) > 0; refused != (golden == "problems") {
		t.Errorf("refused is %v: %v", refused, problems)
	}
	if len(objects)+min(len(problems), 1) != 1 {
		t.Errorf("%d objects and %d problems; a case has one definition", len(objects), len(problems))
	}
	var got bytes.Buffer
	for _, p := range problems {
		got.WriteString(p.Error() + "\n")
	}
	if err := schemas.Write(&got, objects, schemas.YAML); err != nil {
		t.Fatal(err)
	}
	if *update {
		setGolden(t, name, ar, golden, got.Bytes())
		return
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

// unpack writes every file of an archive but the golden one, and returns that.
func unpack(t *testing.T, ar *txtar.Archive, golden string) (dir, want string) {
	t.Helper()
	dir = t.TempDir()
	for _, f := range ar.Files {
		if f.Name == golden {
			want = string(f.Data)
			continue
		}
		write(t, filepath.Join(dir, f.Name), string(f.Data))
	}
	return dir, want
}

// write makes a file and the folders it lies in.
func write(t testing.TB, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// setGolden writes an archive back with its golden part replaced.
func setGolden(t *testing.T, name string, ar *txtar.Archive, golden string, data []byte) {
	t.Helper()
	for i, f := range ar.Files {
		if f.Name == golden {
			ar.Files = append(ar.Files[:i], ar.Files[i+1:]...)
			break
		}
	}
	ar.Files = append(ar.Files, txtar.File{Name: golden, Data: data})
	if err := os.WriteFile(name, txtar.Format(ar), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestContentsOfAllMapsAreCounted: as an API server does, in the same words.
func TestContentsOfAllMapsAreCounted(t *testing.T) {
	for last, denied := range map[int]bool{v1alpha1.MaxContents - 6*v1alpha1.MaxMapEntries: false, v1alpha1.MaxContents - 6*v1alpha1.MaxMapEntries + 1: true} {
		dir, definition := t.TempDir(), "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: a}\n"+
			"spec:\n  bytecode: {image: r.example.com/x:v1}\n  programs: [{name: p}]\n  maps:\n"
		for i, entries := range append(slices.Repeat([]int{v1alpha1.MaxMapEntries}, 6), last) {
			definition += fmt.Sprintf("    m%d: {contents: [%s]}\n", i, strings.Repeat("{key: 1, value: 1}, ", entries))
		}
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(definition), 0o600); err != nil {
			t.Fatal(err)
		}
		_, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
		if err != nil || denied != (len(problems) > 0) || denied && !strings.Contains(problems[0].Error(), "the contents of all maps list more than 6553 entries") {
			t.Errorf("%d entries in the last map: %v, %v, want a denial: %v", last, problems, err, denied)
		}
	}
}
