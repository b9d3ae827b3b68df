package schemas

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/token"
	"cuelang.org/go/mod/modfile"
	"cuelang.org/go/mod/module"
	"golang.org/x/mod/semver"
)

// languageVersion is the version of CUE that a source without a module file is
// read as, and the lowest the schema is written for: it has the builtin error
// (cuelang.org/docs/howto/use-the-built-in-function-error).
const languageVersion = "v0.14.0"

// looseModule stands in for the module file of a source that has none, so that
// it can import the schema and embed files.
const looseModule = "module: \"" + looseName + "\"\nlanguage: version: \"" + languageVersion + "\"\n"

// looseName is the path of that module.
const looseName = "source.skep.dev/loose@v0"

// vendoredIn lists where a module file's tree may hold a copy of the schema.
// The binary's own is always used instead.
var vendoredIn = [...]string{"cue.mod/pkg/", "cue.mod/gen/", "cue.mod/usr/"}

// moduleSources returns the schema's CUE files by name.
func moduleSources() (map[string][]byte, error) {
	names, err := fs.Glob(moduleFiles, "module/*.cue")
	if err != nil {
		return nil, fmt.Errorf("list the embedded schema: %w", err)
	}
	sources := map[string][]byte{}
	for _, name := range names {
		data, err := moduleFiles.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the embedded schema: %w", err)
		}
		sources[path.Base(name)] = data
	}
	return sources, nil
}

// overlay lays the source out for the CUE loader below an absolute folder that
// does not exist, with the embedded schema vendored into every module. The
// loader asks the real file system only for what is not in the overlay, and
// below that folder there is nothing.
func overlay(files map[string][]byte, root string) (map[string]load.Source, error) {
	schema, err := moduleSources()
	if err != nil {
		return nil, err
	}
	out := map[string]load.Source{}
	modules := []string{"."}
	for name, data := range files {
		dir, base := path.Split(name)
		if path.Base(path.Clean(dir)) == "cue.mod" && base == "module.cue" {
			modules = append(modules, path.Dir(path.Clean(dir)))
			data = withoutVendored(data, name, files)
		}
		// A local module file may replace a module with any folder there is.
		if !vendoredSchema(name) && !strings.HasSuffix("/"+name, "/cue.mod/local-module.cue") {
			out[path.Join(root, name)] = load.FromBytes(data)
		}
	}
	if _, ok := files["cue.mod/module.cue"]; !ok {
		out[path.Join(root, "cue.mod/module.cue")] = load.FromString(looseModule)
	}
	for _, m := range modules {
		for name, data := range schema {
			out[path.Join(root, m, "cue.mod/pkg", importPath, name)] = load.FromBytes(data)
		}
	}
	return out, nil
}

// schemaRoot is where the schema itself seems to lie when it is loaded by
// itself. Nothing is there.
const schemaRoot = "/skep.dev-schemas"

// schemaInstance parses the embedded module.
func schemaInstance() (*build.Instance, error) {
	sources, err := moduleSources()
	if err != nil {
		return nil, err
	}
	files := map[string]load.Source{path.Join(schemaRoot, "cue.mod/module.cue"): load.FromString(looseModule)}
	for name, data := range sources {
		files[path.Join(schemaRoot, name)] = load.FromBytes(data)
	}
	inst := load.Instances([]string{"."}, &load.Config{Dir: schemaRoot, ModuleRoot: schemaRoot, Overlay: files, Registry: noRegistry{}, Env: []string{}})[0]
	if inst.Err != nil {
		return nil, fmt.Errorf("read the embedded schema: %w", inst.Err)
	}
	return inst, nil
}

// inSchema reports whether a place is in the schema, loaded by itself or
// imported.
func inSchema(pos token.Pos) bool {
	return strings.HasPrefix(pos.Filename(), schemaRoot+"/") || vendoredSchema(pos.Filename())
}

// vendoredSchema reports whether a file is a source's own copy of the schema.
func vendoredSchema(name string) bool {
	for _, dir := range vendoredIn {
		if strings.Contains("/"+name, "/"+dir+importPath+"/") {
			return true
		}
	}
	return false
}

// checkLanguage returns an error where a module file says that its packages,
// and with them the schema vendored into it, are older CUE than the schema.
func checkLanguage(data []byte, name string) error {
	f, err := modfile.ParseNonStrict(data, name)
	if err != nil || f.Language == nil || semver.Compare(f.Language.Version, languageVersion) >= 0 {
		return nil //nolint:nilerr // What does not parse is told where it is loaded.
	}
	return fmt.Errorf("the module's language version %s is older than %s, for which the schema is written", f.Language.Version, languageVersion)
}

// languageFix is what fixes it.
const languageFix = `set language: version: "` + languageVersion + `" or newer in it`

// withoutVendored takes those out of a module file's dependencies whose packages are below its
// cue.mod, and the schema: CUE would ask a registry for them. A file that does not parse is left
// for the loader to report.
func withoutVendored(data []byte, name string, files map[string][]byte) []byte {
	f, err := modfile.ParseNonStrict(data, name)
	if err != nil {
		return data
	}
	found := false
	majors := map[string]int{}
	for dep := range f.Deps {
		base, _, _ := strings.Cut(dep, "@")
		majors[base]++
	}
	for dep := range f.Deps {
		// Of two major versions, the one that is vendored is not known.
		base, _, _ := strings.Cut(dep, "@")
		if base == importPath || majors[base] == 1 && vendored(files, path.Dir(path.Dir(name)), base) {
			delete(f.Deps, dep)
			found = true
		}
	}
	if !found {
		return data
	}
	if formatted, err := modfile.Format(f); err == nil {
		return formatted
	}
	return data
}

// vendored reports whether the module in a folder has a copy of another below its cue.mod.
func vendored(files map[string][]byte, within, base string) bool {
	for name := range files {
		for _, dir := range vendoredIn {
			if strings.HasPrefix(name, path.Join(within, dir, base)+"/") {
				return true
			}
		}
	}
	return false
}

// moduleRoot is the nearest folder at or above dir that has a module file.
func moduleRoot(files map[string][]byte, dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, ok := files[path.Join(dir, "cue.mod/module.cue")]; ok {
			return dir
		}
	}
	return "."
}

// noNetwork is why a module that is not in the source is not found.
const noNetwork = "rendering has no network"

// noRegistry answers every request for a module with the reason why there is
// no answer.
type noRegistry struct{}

// reject is what every method says.
func (noRegistry) reject(what string) error {
	return fmt.Errorf("module %s would have to be fetched, and %s", what, noNetwork)
}

// ModFile implements modconfig.Registry.
func (r noRegistry) ModFile(_ context.Context, v module.Version) (*modfile.File, error) {
	return nil, r.reject(v.String())
}

// Fetch implements modconfig.Registry.
func (r noRegistry) Fetch(_ context.Context, v module.Version) (module.SourceLoc, error) {
	return module.SourceLoc{}, r.reject(v.String())
}

// ModuleVersions implements modconfig.Registry.
func (r noRegistry) ModuleVersions(_ context.Context, p string) ([]string, error) {
	return nil, r.reject(p)
}
