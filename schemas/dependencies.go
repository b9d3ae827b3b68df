package schemas

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/mod/modconfig"
	"cuelang.org/go/mod/modfile"
	"cuelang.org/go/mod/modregistry"
	"cuelang.org/go/mod/module"
	"cuelang.org/go/mod/modzip"
	"golang.org/x/mod/semver"
)

// Bounds of what VendorDependencies fetches: modules, bytes of all of them, packed and unpacked,
// and the time for it.
const (
	maxModules      = 256
	maxModuleBytes  = 64 << 20
	maxDependencies = 5 * time.Minute
)

// Dependency is one module that VendorDependencies wrote.
type Dependency struct {
	// Module is its path and version, as example.com/lib@v0.1.0.
	Module string
	// Digest is that of its manifest in the registry, by which its content is fetched.
	Digest string
	// Folder is where it is written, relative to the module that needs it.
	Folder string
}

// VendorDependencies fetches the modules that the module file of dir names, and those that they
// need, of the lowest version that all accept, and writes their packages below cue.mod/pkg, where
// rendering finds them without a network. A tag is resolved to a digest once, and what is fetched
// is checked against it. Older copies are replaced. env has what cue itself reads: CUE_REGISTRY,
// and where credentials are. Nothing outside of dir is written, and nothing where one module
// cannot be fetched.
func VendorDependencies(ctx context.Context, dir string, env []string) ([]Dependency, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxDependencies, fmt.Errorf("it takes longer than %s", maxDependencies))
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("vendor the dependencies of %s: %w", dir, cause(err))
	}
	defer root.Close()
	f := fetching{root: root, env: env, modules: map[string]*fetchedModule{}}
	written, err := f.vendor(ctx)
	if err != nil {
		return nil, fmt.Errorf("vendor the dependencies of %s: %w", dir, cmp.Or(deadline(ctx), err))
	}
	return written, nil
}

// deadline is why a context ended by a bound of its own; nil where it did not.
func deadline(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return nil
}

// fetching is one call of VendorDependencies.
type fetching struct {
	root   *os.Root
	env    []string
	client *modregistry.Client
	// modules are those that were asked for, by path and version.
	modules map[string]*fetchedModule
	bytes   int64
}

// fetchedModule is a module in a registry, and what its own module file needs.
type fetchedModule struct {
	*modregistry.Module

	needs []module.Version
}

// vendor fetches all modules, then writes them.
func (f *fetching) vendor(ctx context.Context) ([]Dependency, error) {
	const moduleFile = "cue.mod/module.cue"
	data, err := f.root.ReadFile(moduleFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", moduleFile, cause(err))
	}
	needs, err := needsOf(data, moduleFile)
	if err != nil {
		return nil, err
	}
	resolver, err := modconfig.NewResolver(&modconfig.Config{Env: f.env, ClientType: "skep"})
	if err != nil {
		return nil, fmt.Errorf("read CUE_REGISTRY: %w", err)
	}
	f.client = modregistry.NewClientWithResolver(resolver)
	chosen, err := f.choose(ctx, needs)
	if err != nil {
		return nil, err
	}
	var all []Dependency
	files := map[string][]byte{}
	for _, m := range chosen {
		folder := path.Join("cue.mod/pkg", m.Version().BasePath())
		if err := f.unzip(ctx, m, folder, files); err != nil {
			return nil, fmt.Errorf("fetch %s: %w", m.Version(), err)
		}
		all = append(all, Dependency{Module: m.Version().String(), Digest: string(m.ManifestDigest()), Folder: folder})
	}
	return all, f.write(all, files)
}

// needsOf are the modules that a module file needs, without the schema, which is the binary's own.
func needsOf(data []byte, name string) ([]module.Version, error) {
	file, err := modfile.ParseNonStrict(data, name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return slices.DeleteFunc(slices.Clone(file.DepVersions()), func(v module.Version) bool { return v.BasePath() == importPath }), nil
}

// choose finds the modules to vendor: of each that is reached, the highest version that anything
// reached asks for, which is the lowest that all accept (minimal version selection).
func (f *fetching) choose(ctx context.Context, needs []module.Version) ([]*fetchedModule, error) {
	highest := map[string]*fetchedModule{}
	for len(needs) > 0 {
		v := needs[0]
		needs = needs[1:]
		if f.modules[v.String()] != nil {
			continue
		}
		if len(f.modules) == maxModules {
			return nil, fmt.Errorf("it needs more than %d modules", maxModules)
		}
		m, err := f.module(ctx, v)
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", v, err)
		}
		f.modules[v.String()] = m
		needs = append(needs, m.needs...)
		if other := highest[v.BasePath()]; other != nil && other.Version().Path() != v.Path() {
			return nil, fmt.Errorf("both %s and %s are needed, and cue.mod/pkg has room for one major version of a module: use one of them", other.Version(), v)
		} else if other == nil || semver.Compare(other.Version().Version(), v.Version()) < 0 {
			highest[v.BasePath()] = m
		}
	}
	paths := slices.Sorted(maps.Keys(highest))
	all := make([]*fetchedModule, len(paths))
	for i, p := range paths {
		all[i] = highest[p]
	}
	return all, nil
}

// module asks for a module and its module file.
func (f *fetching) module(ctx context.Context, v module.Version) (*fetchedModule, error) {
	m, err := f.client.GetModule(ctx, v)
	if err != nil {
		return nil, err
	}
	data, err := m.ModuleFile(ctx)
	if err != nil {
		return nil, err
	}
	needs, err := needsOf(data, v.String())
	return &fetchedModule{m, needs}, err
}

// unzip adds the files of a module's packages to files, by their path.
func (f *fetching) unzip(ctx context.Context, m *fetchedModule, folder string, files map[string][]byte) error {
	content, err := m.GetZip(ctx)
	if err != nil {
		return err
	}
	defer content.Close()
	packed, err := f.bounded(content)
	if err != nil {
		return err
	}
	listed, _, _, err := modzip.CheckZip(m.Version(), bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return err
	}
	for _, file := range listed.File {
		if strings.HasPrefix(file.Name, "cue.mod/") || strings.HasSuffix(file.Name, "/") {
			continue
		}
		if !fs.ValidPath(file.Name) {
			return fmt.Errorf("unpack %s: it leads out of its module", file.Name)
		}
		if files[path.Join(folder, file.Name)], err = f.file(file); err != nil { //nolint:gosec // It was looked at.
			return fmt.Errorf("unpack %s: %w", file.Name, err)
		}
	}
	return nil
}

// file reads one file of a module.
func (f *fetching) file(packed *zip.File) ([]byte, error) {
	content, err := packed.Open()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return f.bounded(content)
}

// bounded reads all of a stream, within what is left of the bound of all modules.
func (f *fetching) bounded(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxModuleBytes-f.bytes+1))
	if f.bytes += int64(len(data)); err == nil && f.bytes > maxModuleBytes {
		err = fmt.Errorf("all modules together have more than %d MiB", maxModuleBytes>>20)
	}
	return data, err
}

// write replaces the folders of the modules by their files.
func (f *fetching) write(modules []Dependency, files map[string][]byte) error {
	for _, m := range modules {
		if err := f.root.RemoveAll(m.Folder); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := f.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := f.root.WriteFile(name, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
