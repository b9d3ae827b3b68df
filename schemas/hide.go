package schemas

import (
	"bytes"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// hideout is a file or a package that could not be read, and so may hold any
// number of definitions.
type hideout struct {
	// unit is the file or folder; empty where that is not known.
	unit string
	// cue tells that it is CUE, which can compute names.
	cue bool
	// text is what it says; nil where not even that was read.
	text [][]byte
}

// MayHide reports whether a problem may be the reason why the identity is not
// among the good definitions, so that what runs under it was perhaps not taken
// out by its author. That is so for a problem of its own, and for a file or
// package that cannot be read and that
//
//   - is one of the places where the definition was found before, each a
//     Definition's Source.File or Unit; none means that this is not known,
//   - names it, or is CUE that computes names, so that it may have moved there.
//
// Of what cannot even be opened it is known only that the definition was not in
// another file that is still there.
func (d Definitions) MayHide(id v1alpha1.Identity, places ...string) bool {
	if slices.ContainsFunc(d.Problems, func(p Problem) bool { return p.Definition != nil && *p.Definition == id }) {
		return true
	}
	places = slices.DeleteFunc(slices.Clone(places), func(place string) bool { return place == "" })
	return slices.ContainsFunc(d.hideouts, func(h hideout) bool {
		return len(places) == 0 || h.mayName(id.Name) || slices.ContainsFunc(places, func(place string) bool { return d.mayComeFrom(h, place) })
	})
}

// Emptied is the problem of a file that may be the reason why nothing is found any more at a place where a definition was: it is there
// and holds no definition. For data that is the file itself; for CUE it is a file of the package, or of a folder above, that declares
// nothing; for a place that is not known it is any blank file. A user who takes a definition out of a folder removes its file; a file
// that a command begins to write, or failed to write, is empty.
func (d Definitions) Emptied(place string) (Problem, bool) {
	folder := place
	if path.Ext(place) == ".cue" {
		folder = path.Dir(place)
	}
	i := slices.IndexFunc(d.emptied, func(e emptied) bool {
		switch {
		case place == "":
			return e.isBlank
		case isData(place):
			return e.file == place
		}
		return path.Ext(e.file) == ".cue" && below(path.Dir(e.file), folder)
	})
	if i < 0 {
		return Problem{}, false
	}
	return Problem{
		Source: Position{File: d.emptied[i].file}, Message: "the file holds no definition; it may be half-written", Fix: "write it again, or remove it",
	}, true
}

// emptied is a file that is there and holds no definition.
type emptied struct {
	file    string
	isBlank bool
}

// emptiedIn are the files of a tree of which nothing came, neither an object nor a problem.
func (d *Definitions) emptiedIn(t *tree) (all []emptied) {
	came := map[string]bool{}
	for _, at := range d.Sources {
		came[at.File] = true
	}
	for _, p := range slices.Concat(d.Problems, d.Unjudged) {
		came[p.Source.File] = true
	}
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		isCUE := path.Ext(name) == ".cue"
		if came[name] || ignored(strings.TrimPrefix(name, t.sub)) || !isCUE && (!isData(name) || !below(t.sub, name)) {
			continue
		}
		if text := narrow(t.files[name]); !isCUE || isBlank(undeclared.ReplaceAll(text, nil)) {
			all = append(all, emptied{name, isBlank(text)})
		}
	}
	return all
}

// undeclared finds what a CUE file may say beside declarations: comments, and the name of its package.
var undeclared = regexp.MustCompile(`(?m)//.*$|^[ \t]*package[ \t]+[\pL\pN_]+`)

// isBlank reports whether a text says nothing. It may begin with a byte order mark.
func isBlank(text []byte) bool {
	return len(bytes.TrimFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r == 0xFEFF || r == utf8.RuneError })) == 0
}

// hide records what the problems leave unknown of the source.
func (d *Definitions) hide(t *tree) {
	d.files = map[string]bool{}
	for name := range t.files {
		d.files[name] = true
	}
	d.emptied = d.emptiedIn(t)
	for _, p := range d.Problems {
		if p.Definition != nil {
			continue
		}
		h := hideout{unit: p.unit}
		if h.unit == "" {
			h.unit = p.Source.File
		}
		h.cue = !isData(h.unit)
		for name, data := range t.files {
			// A CUE package is also made of the files of the same package in the
			// folders above.
			if name == h.unit || h.cue && path.Ext(name) == ".cue" && below(path.Dir(name), h.unit) && p.unit != "" {
				h.text = append(h.text, data)
			}
		}
		d.hideouts = append(d.hideouts, h)
	}
}

// mayComeFrom reports whether what was found at a place before may come from the
// hideout.
func (d *Definitions) mayComeFrom(h hideout, place string) bool {
	isCUE := !isData(place)
	folder := place
	if path.Ext(place) == ".cue" {
		folder = path.Dir(place)
	}
	switch {
	case h.unit == "" || h.unit == place:
		return true
	case h.text == nil:
		// CUE may embed it, and its name may have changed.
		return isCUE || !d.files[place]
	}
	return h.cue && isCUE && below(folder, h.unit)
}

// imports finds what a CUE file imports; quoted finds the paths in that.
var (
	imports = regexp.MustCompile(`(?m)^[ \t]*import\s*(?:\([^)]*\)|[^\n]*)`)
	quoted  = regexp.MustCompile(`"[^"\n]*"`)
)

// mayName reports whether a text may hold a definition of the name: it says the
// name, may say it with escapes, or is CUE that may compute it.
func (h hideout) mayName(name string) bool {
	return slices.ContainsFunc(h.text, func(text []byte) bool {
		return bytes.Contains(narrow(text), []byte(name)) || bytes.ContainsRune(text, '\\') || h.cue && computes(text)
	})
}

// multiplies finds a star behind an operand, as in 2*"ab"; one that marks a
// default stands behind none.
var multiplies = regexp.MustCompile(`[\w"')\]}#$][ \t]*\*`)

// computes reports whether a CUE file can make strings that it does not say, or
// take them from a file that is no CUE.
func computes(text []byte) bool {
	if bytes.ContainsRune(text, '+') || multiplies.Match(text) || bytes.Contains(text, []byte("@embed")) {
		return true
	}
	for _, clause := range imports.FindAll(text, -1) {
		for _, module := range quoted.FindAllString(string(clause), -1) {
			if !strings.HasPrefix(module, `"`+importPath) {
				return true
			}
		}
	}
	return false
}
