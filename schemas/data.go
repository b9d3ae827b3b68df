package schemas

import (
	"bytes"
	"path"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"
	"cuelang.org/go/encoding/json"
	"cuelang.org/go/encoding/yaml"
)

// data renders the documents of a YAML or JSON file. A document that does not
// parse hides no other.
func (r *renderer) data(u unit) {
	name := u.Path
	s := r.newScope()
	s.lenient = u.Kind == otherFile
	full := path.Join(r.root, name)
	for _, doc := range documents(name, r.files[name]) {
		file, err := parseData(full, doc)
		if err == nil {
			err = repeatedKeys(file)
		}
		if err == nil {
			err = s.asStored(file, doc)
		}
		if err != nil {
			s.rejectUnit(err, name)
			continue
		}
		s.found = nil
		v := s.ctx.BuildFile(file)
		if v.Err() != nil && v.Kind() == cue.BottomKind && !v.LookupPath(cue.MakePath(cue.Str("apiVersion"))).Exists() {
			s.rejectUnit(v.Err(), name)
			continue
		}
		s.walkAll(v, name)
	}
}

// parseData parses one document; the file's name only gives positions.
func parseData(name string, doc []byte) (*ast.File, error) {
	if path.Ext(name) != ".json" {
		file, err := yaml.Extract(name, doc)
		if err != nil {
			return nil, placed(err, name, doc)
		}
		return file, wideIntegers(file)
	}
	expr, err := json.Extract(name, doc)
	if err != nil {
		return nil, err
	}
	return &ast.File{Filename: name, Decls: []ast.Decl{&ast.EmbedDecl{Expr: expr}}}, nil
}

// placed gives a YAML error the position that its text begins with, file:line.
// Where YAML knows no line, it is the first one that says something.
func placed(err error, name string, doc []byte) error {
	said, _ := strings.CutPrefix(err.Error(), name+":")
	number, rest, _ := strings.Cut(said, ":")
	line, atoiErr := strconv.Atoi(number)
	if atoiErr != nil || line < 1 {
		line, rest = 1+bytes.Count(doc[:len(doc)-len(bytes.TrimLeft(doc, "\n"))], []byte("\n")), said
	}
	f := token.NewFile(name, -1, len(doc)+1)
	f.SetLinesForContent(doc)
	if line > f.LineCount() {
		line = f.LineCount()
	}
	start := 0
	for range line - 1 {
		start += bytes.IndexByte(doc[start:], '\n') + 1
	}
	text := doc[start:]
	start += len(text) - len(bytes.TrimLeft(text, " \t"))
	return errors.Newf(f.Pos(start, token.NoRelPos), "malformed YAML: %s", strings.TrimSpace(rest))
}

// documents splits a YAML stream at its document markers, which YAML allows
// only at the beginning of a line, and keeps every document on its own lines.
// A JSON file is one document.
func documents(name string, data []byte) [][]byte {
	if path.Ext(name) == ".json" {
		return [][]byte{data}
	}
	var docs [][]byte
	var doc []byte
	lines := 0
	flush := func() {
		if len(bytes.TrimSpace(doc)) > 0 {
			docs = append(docs, doc)
		}
		doc = bytes.Repeat([]byte("\n"), lines)
	}
	for line := range bytes.Lines(data) {
		switch {
		case marker(line, "---") || marker(line, "..."):
			flush()
			// What follows the marker on its line belongs to the document; three
			// blanks keep its columns.
			if rest := bytes.TrimSpace(line[3:]); len(rest) > 0 && rest[0] != '#' {
				doc = append(append(doc, "   "...), line[3:]...)
			} else {
				doc = append(doc, '\n')
			}
		case line[0] == '%' && len(bytes.TrimSpace(doc)) == 0:
			doc = append(doc, '\n') // A directive, such as %YAML 1.1.
		default:
			doc = append(doc, line...)
		}
		lines++
	}
	flush()
	return docs
}

// marker reports whether a line begins with a document marker.
func marker(line []byte, m string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(m))
	return ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n"))
}

// wideIntegers rejects integers that no field and no variable takes. YAML reads one of
// more than 64 bits as a float, which CUE's reader writes as an expression.
func wideIntegers(file *ast.File) error {
	var found errors.Error
	ast.Walk(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		if value, wide := strings.CutPrefix(lit.Value, "number & "); wide && !strings.ContainsAny(value, ".eE") {
			found = errors.Append(found, errors.Newf(lit.Pos(), "the integer %s does not fit in 64 bits", clip(value, maxValue)))
		}
		return true
	}, nil)
	if found == nil {
		return nil
	}
	return found
}

// repeatedKeys rejects a mapping that has a key twice: CUE would unify the two
// values where every other reader takes one of them.
func repeatedKeys(file *ast.File) error {
	var found errors.Error
	ast.Walk(file, func(n ast.Node) bool {
		var decls []ast.Decl
		switch n := n.(type) {
		case *ast.StructLit:
			decls = n.Elts
		case *ast.File:
			decls = n.Decls
		}
		seen := map[string]bool{}
		for _, d := range decls {
			f, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			name, _, err := ast.LabelName(f.Label)
			if err == nil && seen[name] {
				found = errors.Append(found, errors.Newf(f.Pos(), "key %q stands twice in one mapping", name))
			}
			seen[name] = true
		}
		return true
	}, nil)
	if found == nil {
		return nil
	}
	return found
}
