package schemas

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// maxMessage bounds what one problem says of a value, in bytes.
const maxMessage = 400

// explain turns CUE's errors into problems, one for each path. v is the
// definition they are about, where there is one.
func (s *scope) explain(err error, v cue.Value, id *v1alpha1.Identity) []Problem {
	var problems []Problem
	seen := map[string]bool{}
	var choice errors.Error
	for _, e := range errors.Errors(err) {
		format, _ := e.Msg()
		fields := e.Path()
		if id != nil && len(fields) > 0 && strings.HasPrefix(fields[0], "#") {
			// The path begins at the schema's definition.
			fields = fields[1:]
		}
		if seen[strings.Join(fields, "\x00")] && len(fields) > 0 {
			continue
		}
		seen[strings.Join(fields, "\x00")] = true
		if strings.Contains(format, "matchN") {
			choice = e
		} else if choice != nil && e.Position() == choice.Position() {
			// What each alternative of a choice lacks is told with the choice.
			continue
		}
		p := Problem{Definition: id, Source: s.source(e, v, fields), Field: dotted(fields), Path: dotted(fields)}
		if v.Exists() {
			p.Path = strings.TrimSuffix(v.Path().String()+"."+p.Field, ".")
			p.Path = strings.TrimPrefix(p.Path, ".")
		}
		p.Message, p.Remedy = s.words(e, v, fields, id)
		problems = append(problems, p)
	}
	return problems
}

// words says what is wrong and what would mend it. The remedy is the comment
// that the schema has above the field.
func (s *scope) words(e errors.Error, v cue.Value, fields []string, id *v1alpha1.Identity) (message, remedy string) {
	format, args := e.Msg()
	message = clip(fmt.Sprintf(format, args...))
	if id == nil {
		return message, "correct the file at this place"
	}
	def := s.schema.LookupPath(cue.MakePath(cue.Def(id.Kind)))
	node, doc := lookupDoc(def, fields)
	last := ""
	if len(fields) > 0 {
		last = unquote(fields[len(fields)-1])
	}
	switch {
	case format == "field not allowed":
		parent, _ := lookupDoc(def, fields[:max(len(fields)-1, 0)])
		known := fieldNames(parent)
		return fmt.Sprintf("field %s is not known here", last), suggest(last, known, "remove it or use one of ")
	case format == "field is required but not present":
		return fmt.Sprintf("field %s is missing", last), or(doc, "give it")
	case strings.Contains(format, "errors in empty disjunction"):
		given := written(v, fields)
		if values := alternatives(node); len(values) > 0 {
			return fmt.Sprintf("%s is not an accepted value", given), or(doc+" ", "") + suggest(unquote(given), values, "Use one of ")
		}
		return fmt.Sprintf("%s is not an accepted value", given), or(doc, "give a value the schema accepts")
	case strings.Contains(format, "matchN"):
		return "a field of a choice is missing, or too many of them are given", or(doc, "see the schema for which fields go together")
	case strings.HasPrefix(format, "incomplete value"):
		return fmt.Sprintf("the value is not concrete: %s", message), or(doc, "give it a concrete value")
	}
	return message, or(doc, "correct the value")
}

// or is the first of the two that says something.
func or(a, b string) string {
	if strings.TrimSpace(a) == "" {
		return b
	}
	return a
}

// clip shortens a message that repeats a large value.
func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// suggest lists the known names, or the nearest where they are many.
func suggest(given string, known []string, intro string) string {
	slices.SortStableFunc(known, func(a, b string) int {
		return levenshtein.ComputeDistance(given, a) - levenshtein.ComputeDistance(given, b)
	})
	if len(known) > 12 {
		return fmt.Sprintf("%s%d, nearest: %s", intro, len(known), strings.Join(known[:3], ", "))
	}
	return intro + strings.Join(known, ", ")
}

// written is the value at fields as the author wrote it.
func written(v cue.Value, fields []string) string {
	at := v.LookupPath(concrete(fields))
	if data, err := at.MarshalJSON(); err == nil {
		return clip(string(data))
	}
	return clip(fmt.Sprint(at))
}

// alternatives are the strings a disjunction offers.
func alternatives(node cue.Value) []string {
	op, parts := node.Expr()
	switch op {
	case cue.OrOp, cue.AndOp:
		var all []string
		for _, p := range parts {
			all = append(all, alternatives(p)...)
		}
		return all
	case cue.NoOp:
		if s, err := node.String(); err == nil {
			return []string{s}
		}
	}
	return nil
}

// fieldNames are the fields a struct of the schema knows.
func fieldNames(node cue.Value) []string {
	var names []string
	it, err := node.Fields(cue.Optional(true))
	if err != nil {
		return nil
	}
	for it.Next() {
		names = append(names, it.Selector().Unquoted())
	}
	return names
}

// lookupDoc finds the schema's node at fields, and the comment of the nearest
// node above that has one.
func lookupDoc(def cue.Value, fields []string) (cue.Value, string) {
	node, doc := def, ""
	for _, f := range fields {
		node = step(node, f)
		if !node.Exists() {
			break
		}
		var lines []string
		for _, group := range node.Doc() {
			lines = append(lines, strings.Fields(group.Text())...)
		}
		if len(lines) > 0 {
			doc = strings.Join(lines, " ")
		}
	}
	return node, doc
}

// step goes from a node of the schema to the field or element named.
func step(node cue.Value, field string) cue.Value {
	if _, err := strconv.Atoi(field); err == nil {
		return node.LookupPath(cue.MakePath(cue.AnyIndex))
	}
	name := cue.Str(unquote(field))
	for _, sel := range []cue.Selector{name, name.Required(), name.Optional(), cue.AnyString} {
		if next := node.LookupPath(cue.MakePath(sel)); next.Exists() {
			return next
		}
	}
	return cue.Value{}
}

// unquote takes the quotes off a label or a string.
func unquote(label string) string {
	if s, err := strconv.Unquote(label); err == nil {
		return s
	}
	return label
}

// concrete makes a path of the labels CUE gives with an error.
func concrete(fields []string) cue.Path {
	sels := make([]cue.Selector, len(fields))
	for i, f := range fields {
		if n, err := strconv.Atoi(f); err == nil {
			sels[i] = cue.Index(n)
		} else {
			sels[i] = cue.Str(unquote(f))
		}
	}
	return cue.MakePath(sels...)
}

// dotted writes labels as a.b[0].c.
func dotted(fields []string) string {
	var b strings.Builder
	for i, f := range fields {
		switch _, err := strconv.Atoi(f); {
		case err == nil:
			fmt.Fprintf(&b, "[%s]", f)
		case i > 0:
			b.WriteString("." + f)
		default:
			b.WriteString(f)
		}
	}
	return b.String()
}

// source finds the place in the author's files that an error is about: where
// CUE says so, else the field, else the nearest above it.
func (s *scope) source(e errors.Error, v cue.Value, fields []string) Position {
	for _, pos := range append([]token.Pos{e.Position()}, e.InputPositions()...) {
		if p, ok := s.r.inSource(pos); ok {
			return p
		}
	}
	for n := len(fields); v.Exists() && n >= 0; n-- {
		if p := s.r.position(v.LookupPath(concrete(fields[:n]))); p.File != "" {
			return p
		}
	}
	return Position{}
}

// position is where the author wrote a value.
func (r *renderer) position(v cue.Value) Position {
	if p, ok := r.inSource(v.Pos()); ok {
		return p
	}
	if _, parts := v.Expr(); len(parts) > 1 {
		for _, part := range parts {
			if p, ok := r.inSource(part.Pos()); ok {
				return p
			}
		}
	}
	return Position{}
}

// inSource makes a position relative to the root of the source. Places in the
// schema and in CUE itself are not the author's.
func (r *renderer) inSource(pos token.Pos) (Position, bool) {
	name, ok := strings.CutPrefix(path.Clean(pos.Filename()), r.root+"/")
	if !ok || !pos.IsValid() || vendoredSchema(name) {
		return Position{}, false
	}
	return Position{File: name, Line: pos.Line(), Column: pos.Column()}, true
}
