package schemas

import (
	stderrors "errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Bounds of what one problem says, and of a value it repeats, in bytes.
const (
	maxMessage = 400
	maxValue   = 80
)

// CUE's errors have no types. These are the texts and formats that tell them apart.
const (
	textNotAllowed = "field not allowed"
	textRequired   = "field is required but not present"
	textNoneFits   = "errors in empty disjunction"
	textInvalid    = "invalid value"
	textListLength = "incompatible list lengths"
	textConflict   = "conflicting values"
	textIncomplete = "incomplete value"
	textNoModule   = "cannot find module"
	textNoTag      = "no tag for %q"
	textUnusedTag  = "tag %q not used in any file"
)

// explain turns CUE's errors into problems, one for each path. v is the
// definition they are about, where there is one.
func (s *scope) explain(err error, v cue.Value, id *v1alpha1.Identity) []Problem {
	var problems []Problem
	seen := map[string]bool{}
	for _, e := range errors.Errors(err) {
		fields := e.Path()
		if id != nil && len(fields) > 0 && strings.HasPrefix(fields[0], "#") {
			// The path begins at the schema's definition.
			fields = fields[1:]
		}
		fields = visible(fields)
		at := dotted(fields)
		if at != "" && seen[at] {
			continue
		}
		seen[at] = true
		p := Problem{Definition: id, Source: s.source(e, v, fields), Path: at}
		if id != nil {
			p.Path, p.Field = strings.Trim(v.Path().String()+"."+at, "."), at
			p.Message, p.Fix = s.words(e, v, fields, id)
			p.Fix = clause(p.Fix)
		} else {
			p.Message, p.Fix = strings.TrimPrefix(s.text(e), p.Source.String()+": "), "correct the file at this place"
			if strings.Contains(at, "@") && strings.Contains(at, "/") {
				p.Path = "" // It is the import path of the package.
			}
			switch {
			case strings.Contains(p.Message, noNetwork):
				p.Fix = vendorFix
			case strings.Contains(p.Message, textNoModule):
				p.Fix = "put the package below cue.mod/pkg; where another module has it, have deps name that (cue mod tidy), and " + vendorFix
			}
		}
		if s.nested(e) {
			p.Fix = nestedFix
		}
		problems = append(problems, p)
	}
	return problems
}

// vendorFix fixes a module that would have to be fetched.
const vendorFix = "run skep schema vendor --deps with the folder of the module, and commit its cue.mod/pkg"

// text is what CUE says, with its cause and without the folder the files only
// seem to lie in.
func (s *scope) text(e errors.Error) string {
	format, args := e.Msg()
	said := format
	if len(args) > 0 {
		said = fmt.Sprintf(format, args...)
	}
	if cause := stderrors.Unwrap(e); cause != nil && len(args) == 0 {
		said = cause.Error()
	} else if cause != nil {
		said += ": " + cause.Error()
	}
	said = strings.Join(strings.Fields(said), " ")
	return clip(strings.NewReplacer(s.r.root+"/", "", looseName+": ", "").Replace(said), maxMessage)
}

// words says what is wrong and what would fix it. The fix is the comment
// that the schema has above the field.
func (s *scope) words(e errors.Error, v cue.Value, fields []string, id *v1alpha1.Identity) (message, fix string) {
	format, _ := e.Msg()
	if said, cure, ok := strings.Cut(s.text(e), "; "); ok && inSchema(e.Position()) && !strings.HasPrefix(format, textInvalid) {
		// The schema's own words: what is wrong; what would fix it.
		return said, cure
	}
	def := s.schema.LookupPath(cue.MakePath(cue.Def(id.Kind)))
	nodes, doc := lookup(def, fields)
	last := ""
	if len(fields) > 0 {
		last = unquote(fields[len(fields)-1])
	}
	switch {
	case len(fields) == 1 && last == "apiVersion":
		return s.text(e) + s.elsewhere(e), rightVersion
	case format == textNotAllowed:
		parent, _ := lookup(def, fields[:max(len(fields)-1, 0)])
		fix = suggest(last, fieldNames(parent), "Remove it, or use one of ")
		if in := holder(parent, last); in != "" {
			fix = fmt.Sprintf("Write it into %s, as %s: {%s: …}.", in, in, last)
		}
		return fmt.Sprintf("field %s is not known here", or(last, `""`)), or(fix, "Remove it.")
	case format == textRequired:
		return fmt.Sprintf("field %s is missing", last), or(doc, "Add the field.")
	case strings.Contains(format, textNoneFits):
		given := written(v, fields)
		if values := alternatives(nodes); len(values) > 0 {
			fix = " " + suggest(unquote(given), values, "Use one of ")
		}
		return given + " is not an accepted value", or(strings.TrimSpace(doc+fix), "Give a value the schema accepts.")
	case doc != "" && (strings.HasPrefix(format, textInvalid) || strings.HasPrefix(format, textListLength)):
		return written(v, fields) + " is not an accepted value", doc
	case strings.HasPrefix(format, textConflict):
		if wrong := s.wrongType(e, v, fields); wrong != "" {
			return wrong, or(doc, "Correct the value.")
		}
		return s.text(e) + s.elsewhere(e), or(doc, "Correct the value.")
	case strings.HasPrefix(format, textIncomplete):
		return "the value is not concrete: " + s.text(e), or(doc, "Give it a concrete value.")
	}
	return s.text(e), or(doc, "Correct the value.")
}

// rightVersion fixes a wrong apiVersion.
const rightVersion = "Write apiVersion: " + v1alpha1.APIVersion + "."

// or is the first of the two that says something.
func or(a, b string) string {
	if strings.TrimSpace(a) == "" {
		return b
	}
	return a
}

// wrongType says that the author's value is of another type than the schema's; empty where two
// values of the author conflict, or two of one type.
func (s *scope) wrongType(e errors.Error, v cue.Value, fields []string) string {
	_, args := e.Msg()
	if len(args) != 4 || len(s.places(e)) > 1 {
		return ""
	}
	given, types := authored(v, concrete(fields)).IncompleteKind().String(), []string{fmt.Sprint(args[2]), fmt.Sprint(args[3])}
	i := slices.Index(types, given)
	if i < 0 {
		return ""
	}
	if wanted := types[1-i]; given != "null" {
		return fmt.Sprintf("%s is of type %s, not %s", written(v, fields), given, wanted)
	}
	return fmt.Sprintf("no value is given, and one of type %s is expected", types[1-i])
}

// clause turns a comment into the part of a sentence that a fix is.
func clause(comment string) string {
	first, size := utf8.DecodeRuneInString(comment)
	return string(unicode.ToLower(first)) + strings.TrimSuffix(comment[size:], ".")
}

// clip puts what is said of a value on one line of at most so many bytes.
func clip(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// nestedFix fixes what nested finds.
const nestedFix = "a CUE package of a subfolder has the files of the same package above it too: name the field or the package otherwise, or move the file out"

// nested reports whether values conflict that stand in a folder and in one below
// it, in packages of one name, which CUE joins.
func (s *scope) nested(e errors.Error) bool {
	if format, _ := e.Msg(); !strings.HasPrefix(format, textConflict) {
		return false
	}
	places := s.places(e)
	for _, a := range places {
		for _, b := range places {
			up, down := path.Dir(a.File), path.Dir(b.File)
			if up != down && below(up, down) && s.r.packageOf(a.File) == s.r.packageOf(b.File) {
				return true
			}
		}
	}
	return false
}

// packageOf is the package a CUE file says it is of.
func (r *renderer) packageOf(name string) string {
	file, err := parser.ParseFile(name, r.files[name], parser.PackageClauseOnly)
	if err != nil {
		return ""
	}
	return file.PackageName()
}

// places are those of the author's that an error involves, each once.
func (s *scope) places(e errors.Error) []Position {
	var all []Position
	for _, pos := range e.InputPositions() {
		if p, ok := s.r.inSource(pos); ok && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// elsewhere tells the author's other places that a conflict involves.
func (s *scope) elsewhere(e errors.Error) string {
	var places []string
	for _, p := range s.places(e) {
		places = append(places, p.String())
	}
	if len(places) < 2 {
		return ""
	}
	return ", given at " + strings.Join(places, " and ")
}

// suggest lists the known names in their order, or, where they are many, those
// of the family that was given, or those that are near.
func suggest(given string, known []string, intro string) string {
	const most = 12
	slices.Sort(known)
	if len(known) == 0 {
		return "Remove it."
	}
	if len(known) <= most {
		return intro + strings.Join(known, ", ") + "."
	}
	distance := func(name string) int { return levenshtein.ComputeDistance(given, name) }
	var family, near []string
	for _, k := range known {
		if strings.HasPrefix(k, given+"/") {
			family = append(family, k)
		}
		if distance(k) <= max(2, len(given)/3) {
			near = append(near, k)
		}
	}
	if len(family) > 0 {
		near = family[:min(most, len(family))]
	} else {
		slices.SortStableFunc(near, func(a, b string) int { return distance(a) - distance(b) })
		near = near[:min(3, len(near))]
	}
	if len(near) == 0 {
		return ""
	}
	return "Did you mean " + strings.Join(near, " or ") + "?"
}

// written is the value at fields as the author wrote it.
func written(v cue.Value, fields []string) string {
	at := authored(v, concrete(fields))
	if data, err := at.MarshalJSON(); err == nil {
		return clip(string(data), maxValue)
	}
	return clip(fmt.Sprint(at), maxValue)
}

// authored is the value at a path of v; where that is in error because it was
// joined with the schema, it is the author's part of it.
func authored(v cue.Value, path cue.Path) cue.Value {
	at := v.LookupPath(path)
	if at.Exists() && at.Err() == nil {
		return at
	}
	if op, parts := v.Expr(); op == cue.AndOp {
		for _, part := range parts {
			if sub := authored(part, path); sub.Exists() && sub.Err() == nil {
				return sub
			}
		}
	}
	return at
}

// alternatives are the strings that the first of the nodes that is a
// disjunction offers.
func alternatives(nodes []cue.Value) []string {
	for _, node := range nodes {
		var all []string
		if op, parts := node.Eval().Expr(); op == cue.OrOp {
			for _, part := range parts {
				if s, err := part.String(); err == nil {
					all = append(all, s)
				}
			}
			return all
		}
	}
	return nil
}

// fieldNames are the fields the nodes of one struct of the schema know, sorted.
func fieldNames(nodes []cue.Value) []string {
	names := map[string]bool{}
	for _, node := range nodes {
		it, err := node.Fields(cue.Optional(true))
		for err == nil && it.Next() {
			names[it.Selector().Unquoted()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// holder is the one field of the nodes whose fields include name; empty where there is none,
// or several.
func holder(nodes []cue.Value, name string) string {
	var all []string
	for _, field := range fieldNames(nodes) {
		var below []cue.Value
		for _, node := range nodes {
			below = append(below, step(node, field)...)
		}
		if slices.Contains(fieldNames(below), name) {
			all = append(all, field)
		}
	}
	if len(all) != 1 {
		return ""
	}
	return all[0]
}

// lookup finds what the schema says at fields, which may stand in several
// places that are joined, and the comment of the nearest field above that has
// one.
func lookup(def cue.Value, fields []string) (nodes []cue.Value, doc string) {
	nodes = []cue.Value{def}
	for _, f := range fields {
		var next []cue.Value
		for _, node := range nodes {
			next = append(next, step(node, f)...)
		}
		nodes = next
		for i := len(nodes) - 1; i >= 0; i-- {
			doc = or(comment(nodes[i]), doc)
		}
	}
	return nodes, doc
}

// comment is the comment above a field of the schema, on one line.
func comment(node cue.Value) string {
	var words []string
	for _, group := range node.Doc() {
		words = append(words, strings.Fields(group.Text())...)
	}
	return strings.Join(words, " ")
}

// step goes from a node of the schema to the field or element named. A list
// with a validator, such as list.MaxItems, hides its elements, so the parts of
// a conjunction are looked at too.
func step(node cue.Value, field string) []cue.Value {
	name := cue.Str(unquote(field))
	sels := []cue.Selector{name, name.Required(), name.Optional(), cue.AnyString}
	if _, err := strconv.Atoi(field); err == nil {
		sels = []cue.Selector{cue.AnyIndex}
	}
	var found []cue.Value
	for _, sel := range sels {
		if next := node.LookupPath(cue.MakePath(sel)); next.Exists() {
			found = append(found, next)
			break
		}
	}
	if op, parts := node.Expr(); op == cue.AndOp {
		for _, part := range parts {
			found = append(found, step(part, field)...)
		}
	}
	return found
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

// visible makes a path lead to the field that a hidden one speaks of: x for
// _x, and x for _takes.x.
func visible(fields []string) []string {
	for i, f := range fields {
		name, hidden := strings.CutPrefix(f, "_")
		switch {
		case hidden && name == "takes":
			return slices.Concat(fields[:i], fields[i+1:])
		case hidden:
			return append(slices.Clone(fields[:i]), name)
		}
	}
	return fields
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
