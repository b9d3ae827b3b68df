package schemas

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
)

// vendorDir is where a module keeps the schema's packages, and where CUE finds
// them without a registry. It has no version in it.
const vendorDir = "cue.mod/pkg/" + importPath

// Vendor writes the CUE module below dir, so that the author's own cue commands
// find it without network, and returns the files it wrote, relative to dir. A
// folder that is no CUE module becomes one. An older copy is replaced. Nothing
// outside of dir is written, whatever links lie in it.
func Vendor(dir string) ([]string, error) {
	sources, err := moduleSources()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("vendor the schema into %s: %w", dir, cause(err))
	}
	defer root.Close()
	written, err := vendorInto(root, sources)
	if err != nil {
		return nil, fmt.Errorf("vendor the schema into %s: %w", dir, err)
	}
	return written, nil
}

// vendorInto is Vendor below an open folder.
func vendorInto(root *os.Root, sources map[string][]byte) ([]string, error) {
	const moduleFile = "cue.mod/module.cue"
	data, readErr := root.ReadFile(moduleFile)
	if err := checkLanguage(data, moduleFile); err != nil {
		return nil, fmt.Errorf("%s: %w; %s", moduleFile, err, languageFix)
	}
	if err := root.RemoveAll(vendorDir); err != nil {
		return nil, err
	}
	if err := root.MkdirAll(vendorDir, 0o755); err != nil {
		return nil, err
	}
	var written []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		name, data := path.Join(vendorDir, name), sources[name]
		if err := root.WriteFile(name, data, 0o644); err != nil {
			return nil, err
		}
		written = append(written, name)
	}
	if errors.Is(readErr, fs.ErrNotExist) {
		if err := root.WriteFile(moduleFile, []byte(looseModule), 0o644); err != nil {
			return nil, err
		}
		return append(written, moduleFile), nil
	}
	return written, readErr
}
