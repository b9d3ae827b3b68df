package schemas

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/skep-dev/skep/text"
)

// Bounds of the copy that is rendered, not of one definition. They hold for what
// is to be read, and once more for the CUE around it, which may be imported.
const (
	maxTreeFiles   = 10_000
	maxTreeDirs    = 10_000
	maxOutsideDirs = 100_000
	maxTreeBytes   = 32 << 20
	maxFileBytes   = 4 << 20
)

// mark is the text without which a data file in a folder holds no definition.
const mark = "skep.dev/"

// copied are the endings of the files a renderer can have use for: CUE, data,
// and what definitions embed as text.
var copied = []string{".cue", ".yaml", ".yml", ".json", ".jsonl", ".toml", ".xml", ".txt", ".csv", ".pem", ".pub", ".crt", ".rego"}

// isData reports whether a file holds YAML or JSON.
func isData(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// tree is a copy of a source in memory.
type tree struct {
	// files by their path below the root, with slashes.
	files map[string][]byte
	// sub is what is to be read; of the rest, only CUE files are copied.
	sub string
	// inside and outside of sub.
	inside, outside amount
	// problems are files that belong to the source and cannot be copied.
	problems []Problem
}

// amount is how much was copied or walked.
type amount struct {
	files, dirs int
	bytes       int64
}

// within is the amount that a name counts to.
func (t *tree) within(name string) *amount {
	if below(t.sub, name) {
		return &t.inside
	}
	return &t.outside
}

// unit is what is rendered in one go, and so what a fault takes along: a folder
// of CUE, a CUE file by itself, or a data file.
type unit struct {
	// Path is the folder or the file, below the root.
	Path string
	// Kind says how Path is read.
	Kind unitKind
}

// unitKind says how a unit is read.
type unitKind int

const (
	cuePackage unitKind = iota
	cueFile
	dataFile
	// otherFile is a data file that does not say mark, but one of our kinds.
	otherFile
)

// readTree copies what lies below root and tells the units that sub names in
// it. Only regular files are copied; a symbolic link is never followed.
func readTree(root *os.Root, sub string) (*tree, []unit, error) {
	t := &tree{files: map[string][]byte{}, sub: sub}
	info, err := root.Lstat(filepath.FromSlash(sub))
	if err != nil {
		return nil, nil, fmt.Errorf("read the definitions at %s: %w", sub, cause(err))
	}
	switch {
	case info.Mode().IsRegular():
		units, err := t.single(root, sub)
		return t, units, err
	case !info.IsDir():
		return nil, nil, fmt.Errorf("read the definitions at %s: %s is neither a file nor a folder; links are not followed", sub, sub)
	}
	if err := t.walk(root, "."); err != nil {
		return nil, nil, err
	}
	inside := func(p Problem) bool { return !below(sub, p.Source.File) }
	t.problems = slices.DeleteFunc(t.problems, inside)
	return t, t.units(sub), nil
}

// readStream copies a stream of YAML documents as the only file of a source.
func readStream(from io.Reader) (*tree, []unit, error) {
	t := &tree{files: map[string][]byte{}, sub: "."}
	data, err := readBounded(from)
	switch {
	case errors.Is(err, errTooLarge):
		t.reject(StreamName, fmt.Sprintf("the stream is larger than %d MiB and is not read", maxFileBytes>>20), "split it")
		return t, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the definitions on %s: %w", StreamName, err)
	}
	t.files[StreamName] = data
	return t, []unit{{StreamName, dataFile}}, nil
}

// single copies one file, and around a CUE file the module it is part of.
func (t *tree) single(root *os.Root, name string) ([]unit, error) {
	if isData(name) {
		return []unit{{name, dataFile}}, t.add(root, name)
	}
	t.sub = path.Dir(name)
	if path.Ext(name) != ".cue" {
		return nil, fmt.Errorf("read the definitions at %s: the file is neither .cue, .yaml, .yml nor .json", name)
	}
	if _, err := root.Stat("cue.mod"); err == nil {
		if err := t.walk(root, "."); err != nil {
			return nil, err
		}
	} else if err := t.add(root, name); err != nil {
		return nil, err
	}
	return []unit{{name, cueFile}}, nil
}

// walk copies every file below dir that a renderer can have use for.
func (t *tree) walk(root *os.Root, dir string) error {
	err := fs.WalkDir(root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("read %s: %w", text.Line(name), cause(err))
		case e.IsDir():
			t.within(name).dirs++
			if t.inside.dirs > maxTreeDirs || t.outside.dirs > maxOutsideDirs {
				return fmt.Errorf("more than %d folders, or %d around them; name a smaller one", maxTreeDirs, maxOutsideDirs)
			}
			if name != "." && strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		case strings.HasPrefix(e.Name(), "."), !slices.Contains(copied, path.Ext(name)), !below(t.sub, name) && path.Ext(name) != ".cue":
			return nil
		case text.Line(name) != name:
			t.reject(text.Line(name), "the file's name has control characters and is not read", "rename it")
			return nil
		case !e.Type().IsRegular():
			if path.Ext(name) == ".cue" || isData(name) {
				t.reject(name, "the file is a link or a device and is not read", "put the file itself there")
			}
			return nil
		}
		return t.add(root, name)
	})
	if err != nil {
		return fmt.Errorf("copy the source: %w", err)
	}
	return nil
}

// add copies one file. Only what bounds the whole tree is an error.
func (t *tree) add(root *os.Root, name string) error {
	data, err := readFile(root, name)
	switch {
	case errors.Is(err, errTooLarge):
		t.reject(name, fmt.Sprintf("the file is larger than %d MiB and is not read", maxFileBytes>>20), "split it")
		return nil
	case OfMachine(err):
		return fmt.Errorf("read %s: %w", name, cause(err))
	case err != nil:
		t.reject(name, "the file cannot be read: "+cause(err).Error(), "make it readable")
		return nil
	}
	t.files[name] = data
	a := t.within(name)
	a.files, a.bytes = a.files+1, a.bytes+int64(len(data))
	switch {
	case a.files <= maxTreeFiles && a.bytes <= maxTreeBytes:
		return nil
	case a == &t.outside:
		return fmt.Errorf("more than %d CUE files or %d MiB of them outside of %s; give it a module of its own", maxTreeFiles, maxTreeBytes>>20, t.sub)
	}
	return fmt.Errorf("more than %d files or %d MiB; name a smaller folder", maxTreeFiles, maxTreeBytes>>20)
}

// reject records a file that is not copied.
func (t *tree) reject(name, message, fix string) {
	t.problems = append(t.problems, Problem{Source: Position{File: name}, Message: message, Fix: fix})
}

// errTooLarge says that a file is over its bound.
var errTooLarge = errors.New("too large")

// readFile reads a regular file within bounds. It neither follows a link nor
// waits for a pipe, whatever the file became since it was listed.
func readFile(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	return readBounded(f)
}

// readBounded reads what is no larger than a file may be.
func readBounded(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, errTooLarge
	}
	return data, nil
}

// units lists what is to be rendered below sub, in the order of the names.
func (t *tree) units(sub string) []unit {
	var units []unit
	seen := map[string]bool{}
	for name, data := range t.files {
		if !below(sub, name) || ignored(strings.TrimPrefix(name, sub)) {
			continue
		}
		dir := path.Dir(name)
		switch {
		case isData(name) && bytes.Contains(narrow(data), []byte(mark)):
			units = append(units, unit{name, dataFile})
		case isData(name) && namesKind(narrow(data)):
			units = append(units, unit{name, otherFile})
		case path.Ext(name) == ".cue" && !seen[dir]:
			seen[dir] = true
			units = append(units, unit{dir, cuePackage})
		}
	}
	slices.SortFunc(units, func(a, b unit) int { return strings.Compare(a.Path, b.Path) })
	return units
}

// narrow makes the ASCII in a text of UTF-16 plain: a definition that an editor
// saved so must not be taken for one that was taken out.
func narrow(data []byte) []byte {
	if bytes.IndexByte(data, 0) < 0 {
		return data
	}
	return bytes.ReplaceAll(data, []byte{0}, nil)
}

// below reports whether name is sub or lies in it.
func below(sub, name string) bool {
	return sub == "." || name == sub || strings.HasPrefix(name, sub+"/")
}

// ignored reports whether a file below the named folder does not count.
func ignored(name string) bool {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		last := i == len(parts)-1
		hidden := strings.HasPrefix(part, ".") || strings.HasPrefix(part, "_") && (!last || path.Ext(part) == ".cue")
		if hidden || part == "cue.mod" {
			return true
		}
	}
	return strings.HasSuffix(name, "_tool.cue") || strings.HasSuffix(name, "_test.cue")
}

// cause takes the path off a file error: it names a file of this machine.
func cause(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// OfMachine reports whether an error of Render is of this machine and may pass, such as a lack of
// memory or of room on a disk: it is no fault of the definitions.
func OfMachine(err error) bool {
	if errors.Is(err, errNoRenderer) || errors.Is(err, errBusy) {
		return true
	}
	for _, no := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
