package schemas

import (
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/encoding/yaml"

	"github.com/skep-dev/skep/test/harness/library"
)

// cueModule is the module whose texts are matched.
const cueModule = "cuelang.org/go"

func TestCUESaysWhatIsMatched(t *testing.T) {
	for text, source := range map[string]string{
		textNotAllowed: "#A: a: int\nb: #A & {c: 1}",
		textRequired:   "#A: a!: int\nb: #A",
		textNoneFits:   `a: ("x" | "y") & "z"`,
		textInvalid:    "a: <5 & 7",
		textListLength: "a: [1] & [1, 2]",
		textConflict:   "a: 1 & 2",
		textIncomplete: "a: string",
	} {
		err := cuecontext.New().CompileString(source).Validate(cue.Concrete(true), cue.Final())
		library.Says(t, cueModule, formats(err), text)
	}
}

func TestCUESaysWhatIsMatchedOfModulesAndTags(t *testing.T) {
	loaded := func(source string, tags ...string) error {
		return load.Instances([]string{"/a/a.cue"}, &load.Config{Dir: "/a", Registry: noRegistry{}, Tags: tags, Overlay: map[string]load.Source{
			"/a/a.cue":              load.FromString(source),
			"/a/cue.mod/module.cue": load.FromString("module: \"a.example\"\nlanguage: version: \"v0.9.0\"\n"),
		}})[0].Err
	}
	library.Says(t, cueModule, errors.Details(loaded("package a\nimport \"b.example/c\"\nd: c.d"), nil), textNoModule)
	library.Says(t, cueModule, formats(loaded("package a", "x=1")), textNoTag)
	library.Says(t, cueModule, formats(loaded("package a", "x")), textUnusedTag)
}

// formats are those of CUE's errors, each on its line.
func formats(err error) string {
	var all []string
	for _, e := range errors.Errors(err) {
		format, _ := e.Msg()
		all = append(all, format)
	}
	return strings.Join(all, "\n")
}

// TestYAMLSaysTheLineFirst: placed reads the position out of the text.
func TestYAMLSaysTheLineFirst(t *testing.T) {
	_, err := yaml.Extract("f.yaml", "a: 1\nb: [\n")
	if err == nil {
		t.Fatal("it is taken for YAML")
	}
	library.Says(t, cueModule, err.Error(), "f.yaml:2:")
}
