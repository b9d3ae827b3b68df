package schemas_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/schemas"
)

// vet does what the author's own "cue vet -c ./..." does, in a folder on disk
// and with no registry to ask.
func vet(t *testing.T, dir string) error {
	t.Helper()
	ctx := cuecontext.New()
	var all errors.Error
	for _, inst := range cueload.Instances([]string{"./..."}, &cueload.Config{Dir: dir, Env: []string{"CUE_REGISTRY=none", "CUE_CACHE_DIR=" + t.TempDir()}}) {
		if inst.Err != nil {
			all = errors.Append(all, inst.Err)
			continue
		}
		if err := ctx.BuildInstance(inst).Validate(cue.Concrete(true), cue.Attributes(true), cue.Optional(true), cue.Hidden(true)); err != nil {
			all = errors.Append(all, errors.Promote(err, ""))
		}
	}
	if all == nil {
		return nil
	}
	return all
}

func TestVendoredSchemaServesTheAuthorsOwnCue(t *testing.T) {
	for name, c := range map[string]struct{ module, cue, says string }{
		"a folder that was no module becomes one": {cue: `programs: [{name: "f", attach: [{hook: "xdp", interfaces: primary: true}]}]`},
		"a module of the author's is kept":        {module: "module: \"example.com/fleet@v3\"\nlanguage: version: \"v0.15.0\"\n", cue: `programs: [{name: "f"}]`},
		"a mistake is found without network": {
			cue: `programs: [{name: "f", attach: [{hook: "xdp", interfaces: primary: true, cgroup: "/"}]}]`, says: "xdp attaches to network devices and takes no cgroup",
		},
		"a misspelt field is found":        {cue: `programs: [{nam: "f"}]`, says: "nam: field not allowed"},
		"a value that is missing is found": {cue: `programs: [{name: string}]`, says: "incomplete value"},
		"a choice of none is found": {
			cue: `programs: [{name: "f", attach: [{hook: "xdp", interfaces: exclude: ["a"]}]}]`, says: "none of names and primary is given",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if c.module != "" {
				write(t, filepath.Join(dir, "cue.mod/module.cue"), c.module)
			}
			write(t, filepath.Join(dir, "cue.mod/pkg/skep.dev/schemas/old.cue"), "package schemas\n#BpfSigner: 3\n")
			write(t, filepath.Join(dir, "a.cue"), "package a\n\nimport \"skep.dev/schemas\"\n\napp: schemas.#ClusterBpfApplication & {\n\tmetadata: name: "+
				"\"a\"\n\tspec: {bytecode: image: \"x\", "+c.cue+"}\n}\n"+
				"signer: schemas.#BpfSigner & {metadata: name: \"s\", spec: key: publicKey: \"x\"}\n"+
				"policy: schemas.#BpfPolicy & {metadata: name: \"p\", spec: profile: \"baseline\"}\n")
			written, err := schemas.Vendor(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range written {
				if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
					t.Error(err)
				}
			}
			if data, err := os.ReadFile(filepath.Join(dir, "cue.mod/module.cue")); c.module != "" && string(data) != c.module || err != nil {
				t.Errorf("the module file is now %q, %v", data, err)
			}
			switch err := vet(t, dir); {
			case c.says == "" && err != nil:
				t.Errorf("vet: %s", errors.Details(err, nil))
			case c.says != "" && (err == nil || !strings.Contains(errors.Details(err, nil), c.says)):
				t.Errorf("vet: %v; want %q", err, c.says)
			}
		})
	}
}

func TestVendorWritesNothingOutside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "pkg/skep.dev/schemas/keep.cue"), "")
	if err := os.Symlink(outside, filepath.Join(dir, "cue.mod")); err != nil {
		t.Fatal(err)
	}
	if _, err := schemas.Vendor(dir); err == nil {
		t.Error("a link out of the folder was followed")
	}
	left, err := filepath.Glob(filepath.Join(outside, "pkg/skep.dev/schemas/*"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(outside, "pkg/skep.dev/schemas/keep.cue")}, left); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
}

func TestVendorTellsWhatItCannotDo(t *testing.T) {
	old := t.TempDir()
	write(t, filepath.Join(old, "cue.mod/module.cue"), "module: \"example.com/fleet@v0\"\nlanguage: version: \"v0.9.0\"\n")
	if _, err := schemas.Vendor(old); err == nil || !strings.Contains(err.Error(), "v0.9.0 is older than v0.14.0") {
		t.Errorf("older language: %v", err)
	}
	if _, err := schemas.Vendor(filepath.Join(old, "gone")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no folder: %v", err)
	}
}
