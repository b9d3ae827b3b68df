package schemas

import (
	"bytes"
	"slices"
	"strconv"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// asStored changes a document into what an API server makes of it, which differs from CUE's
// reading in three ways: it reads YAML 1.1, where a plain yes is true; a number without a fraction
// is an integer, as 10.0; and a field of a definition that is null counts as left out.
func (s *scope) asStored(file *ast.File, doc []byte) error {
	r := reading{scope: s, doc: doc}
	for _, d := range file.Decls {
		if e, ok := d.(*ast.EmbedDecl); ok {
			e.Expr = r.value(e.Expr, nil)
		}
	}
	file.Decls = r.fields(file.Decls, nil)
	if r.err == nil {
		return nil
	}
	return r.err
}

// reading is one document that asStored changes.
type reading struct {
	*scope

	doc []byte
	err errors.Error
}

// value is what takes the place of a value. within is the path to it, from the kind of the
// definition that it is in; nil outside of definitions.
func (r *reading) value(e ast.Expr, within []string) ast.Expr {
	switch e := e.(type) {
	case *ast.StructLit:
		e.Elts = r.fields(e.Elts, within)
	case *ast.ListLit:
		for i, item := range e.Elts {
			e.Elts[i] = r.value(item, stepTo(within, strconv.Itoa(i)))
		}
	case *ast.UnaryExpr:
		e.X = r.value(e.X, nil)
	case *ast.BasicLit:
		if said, err := literal.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			if truth, plain := r.legacyBool(said, e.ValuePos); plain {
				lit := ast.NewBool(truth)
				lit.ValuePos = e.ValuePos
				return lit
			}
		}
		integral(e)
	}
	return e
}

// stepTo is a path one step down; nil stays nil.
func stepTo(within []string, step string) []string {
	if within == nil {
		return nil
	}
	return append(slices.Clone(within), step)
}

// fields changes the fields of one mapping.
func (r *reading) fields(decls []ast.Decl, within []string) []ast.Decl {
	if kind := kindOf(decls); kind != "" {
		within = []string{kind}
	}
	return slices.DeleteFunc(decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.Field)
		if !ok {
			return false
		}
		name, _, err := ast.LabelName(f.Label)
		if err != nil {
			return false
		}
		if _, plain := r.legacyBool(name, f.Label.Pos()); plain {
			r.err = errors.Append(r.err, errors.Newf(f.Label.Pos(), "the key %s is a boolean in YAML 1.1, which Kubernetes reads: write it in quotes", name))
		}
		at := stepTo(within, name)
		if lit, ok := f.Value.(*ast.BasicLit); ok && lit.Kind == token.NULL {
			return r.null(f, at)
		}
		f.Value = r.value(f.Value, at)
		return false
	})
}

// kindOf is the kind of the definition that a mapping is; empty where it is none.
func kindOf(decls []ast.Decl) string {
	for _, d := range decls {
		f, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		if name, _, err := ast.LabelName(f.Label); err != nil || name != "kind" {
			continue
		}
		if lit, ok := f.Value.(*ast.BasicLit); ok {
			kind, err := literal.Unquote(lit.Value)
			if _, known := namespaced(kind); err == nil && known {
				return kind
			}
		}
	}
	return ""
}

// null reports whether a field that is null counts as left out: where the schema names it. A label
// or an annotation is then the empty string. What an author names otherwise, such as a variable
// or a label of a selector, keeps its null, and the schema rejects it: left out, it would choose more.
func (r *reading) null(f *ast.Field, at []string) bool {
	if len(at) == 4 && at[1] == "metadata" && (at[2] == "labels" || at[2] == "annotations") {
		pos := f.Value.Pos()
		f.Value = ast.NewString("")
		ast.SetPos(f.Value, pos)
		return false
	}
	return len(at) > 1 && named(r.schema.LookupPath(cue.MakePath(cue.Def(at[0]))), at[1:])
}

// named reports whether the schema has a field by its name, and no pattern alone.
func named(def cue.Value, fields []string) bool {
	nodes, _ := lookup(def, fields[:len(fields)-1])
	return slices.Contains(fieldNames(nodes), fields[len(fields)-1])
}

// legacyBools are the plain scalars that YAML 1.1 reads as booleans and YAML 1.2 as strings
// (yaml.org/type/bool.html).
var legacyBools = map[string]bool{
	"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true,
	"n": false, "N": false, "no": false, "No": false, "NO": false, "off": false, "Off": false, "OFF": false,
}

// legacyBool reads a plain scalar as YAML 1.1 does. The text of the document says whether it is
// plain, behind an anchor too: CUE's reader does not.
func (r *reading) legacyBool(said string, pos token.Pos) (truth, plain bool) {
	truth, legacy := legacyBools[said]
	if !legacy || !pos.IsValid() || pos.Offset() >= len(r.doc) {
		return false, false
	}
	text := r.doc[pos.Offset():]
	if text[0] == '&' {
		_, text, _ = bytes.Cut(text, []byte(" "))
		text = bytes.TrimLeft(text, " ")
	}
	return truth, bytes.HasPrefix(text, []byte(said))
}

// integral writes a number without a fraction as an integer.
func integral(lit *ast.BasicLit) {
	if lit.Kind != token.FLOAT {
		return
	}
	if f, err := strconv.ParseFloat(lit.Value, 64); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -(1<<53) {
		lit.Kind, lit.Value = token.INT, strconv.FormatInt(int64(f), 10)
	}
}

// nulls rejects the nulls of a definition where the schema takes none. CUE itself unifies null
// with a struct that has comprehensions alone.
func (s *scope) nulls(id *v1alpha1.Identity, v cue.Value) []Problem {
	var all []Problem
	def := s.schema.LookupPath(cue.MakePath(cue.Def(id.Kind)))
	var look func(v cue.Value, fields []string)
	look = func(v cue.Value, fields []string) {
		if v.Kind() == cue.NullKind {
			nodes, doc := lookup(def, fields)
			if len(nodes) > 0 && !slices.ContainsFunc(nodes, func(n cue.Value) bool { return n.IncompleteKind()&cue.NullKind != 0 }) {
				at := dotted(fields)
				all = append(all, Problem{
					Source: s.r.position(v), Definition: id, Path: v.Path().String(), Field: at,
					Message: "no value is given", Fix: clause(or(doc, "Give a value.")),
				})
			}
		}
		eachBelow(v, func(name string, below cue.Value) { look(below, append(slices.Clone(fields), name)) })
	}
	look(v, nil)
	return all
}

// eachBelow calls visit for each field or item of a value.
func eachBelow(v cue.Value, visit func(name string, below cue.Value)) {
	if fields, err := v.Fields(); err == nil {
		for fields.Next() {
			visit(fields.Selector().Unquoted(), fields.Value())
		}
		return
	}
	if list, err := v.List(); err == nil {
		for i := 0; list.Next(); i++ {
			visit(strconv.Itoa(i), list.Value())
		}
	}
}
