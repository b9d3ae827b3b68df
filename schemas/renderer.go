package schemas

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/inject/embed"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// renderer evaluates units. It touches no file, no network and no clock.
type renderer struct {
	files map[string][]byte
	tags  []string
	// pkg and expressions are Options.Package and Options.Expressions.
	pkg         string
	expressions []string
	// root is the absolute folder the files seem to lie in.
	root    string
	overlay map[string]load.Source
	schema  *build.Instance
	out     *json.Encoder
	failed  error
	// places is of how many fields more the places are told.
	places int
	// listTags has the tags told, of which tagsLeft more are, and nothing rendered.
	listTags bool
	tagsLeft int
}

// newRenderer makes a renderer that writes records to out.
func newRenderer(files map[string][]byte, tags []string, out io.Writer) *renderer {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return &renderer{files: files, tags: tags, root: "/skep-" + rand.Text(), out: enc}
}

// run renders the units one after another. The error is for an output that
// cannot be written; the units' own faults are in the records.
func (r *renderer) run(units []unit) error {
	var err error
	if r.overlay, err = overlay(r.files, r.root); err != nil {
		return err
	}
	if r.schema, err = schemaInstance(); err != nil {
		return err
	}
	for i, u := range units {
		r.emit(record{Begin: &i})
		if u.Kind == cuePackage || u.Kind == cueFile {
			r.cue(u)
		} else if !r.listTags {
			r.data(u)
		}
		r.emit(record{End: &i})
		if r.failed != nil {
			return fmt.Errorf("write the result: %w", r.failed)
		}
	}
	return nil
}

// emit writes a record, unless writing failed before. What a problem says may
// be the author's words, and it is printed on terminals and into logs.
func (r *renderer) emit(rec record) {
	if p := rec.Problem; p != nil {
		for _, s := range []*string{&p.Path, &p.Field, &p.Message, &p.Fix} {
			*s = text.Line(*s)
		}
		if p.Definition != nil {
			p.Definition = &v1alpha1.Identity{Kind: p.Definition.Kind, Namespace: text.Line(p.Definition.Namespace), Name: text.Line(p.Definition.Name)}
		}
	}
	if t := rec.Tag; t != nil {
		for _, s := range []*string{&t.Name, &t.Type, &t.Default, &t.Doc} {
			*s = text.Line(*s)
		}
		for i := range t.Shorthands {
			t.Shorthands[i] = text.Line(t.Shorthands[i])
		}
	}
	if r.failed == nil {
		r.failed = r.out.Encode(rec)
	}
}

// cue renders the packages of a folder, or one file.
func (r *renderer) cue(u unit) {
	dir := u.Path
	if u.Kind == cueFile {
		dir = path.Dir(u.Path)
	}
	within := moduleRoot(r.files, dir)
	file := path.Join(within, "cue.mod/module.cue")
	if err := checkLanguage(r.files[file], file); err != nil {
		r.emit(record{Problem: &Problem{Source: Position{File: file}, Message: err.Error(), Fix: languageFix}})
		return
	}
	module := path.Join(r.root, within)
	for _, inst := range r.instances(u, module) {
		s := r.newScope()
		switch {
		case inst.Err != nil:
			s.rejectUnit(inst.Err, u.Path)
		case r.listTags:
			r.tagsOf(inst)
		default:
			s.build(inst, u.Path)
		}
	}
}

// build renders a package, or the expressions in its scope where there are some.
func (s *scope) build(inst *build.Instance, file string) {
	v := s.ctx.BuildInstance(inst)
	if len(s.r.expressions) == 0 {
		s.walkAll(v, file)
		return
	}
	for _, e := range s.r.expressions {
		s.expression(v, inst.ID(), e, file)
	}
}

// expression renders what an expression gives in the scope of a package.
func (s *scope) expression(within cue.Value, importPath, e, file string) {
	parsed, err := parser.ParseExpr("", e)
	if err != nil {
		s.r.emit(record{Problem: &Problem{Message: fmt.Sprintf("the expression %s cannot be read: %v", e, err), Fix: "write it in CUE, such as apps.edge"}})
		return
	}
	v := s.ctx.BuildExpr(parsed, cue.Scope(within), cue.InferBuiltins(true), cue.ImportPath(importPath))
	s.found = nil
	s.walkAll(v, file)
}

// instances loads a unit. A tag that this unit has no place for is taken out
// and tried without: another unit may have one.
func (r *renderer) instances(u unit, module string) []*build.Instance {
	tags := slices.Clone(r.tags)
	for {
		insts := load.Instances([]string{r.argument(u)}, r.config(u, module, tags))
		unused := ""
		for _, inst := range insts {
			unused = max(unused, unusedTag(inst.Err))
		}
		n := len(tags)
		tags = slices.DeleteFunc(tags, func(t string) bool {
			key, _, _ := strings.Cut(t, "=")
			return unused != "" && key == unused
		})
		if len(tags) == n {
			for _, t := range tags {
				r.emit(record{UsedTag: t})
			}
			return insts
		}
	}
}

// config is how CUE loads a unit: all of it from the overlay, and no registry.
func (r *renderer) config(u unit, module string, tags []string) *load.Config {
	c := &load.Config{Dir: module, ModuleRoot: module, Tags: tags, Overlay: r.overlay, Registry: noRegistry{}, Env: []string{}}
	if u.Kind == cuePackage {
		c.Package = cmp.Or(r.pkg, "*")
	}
	return c
}

// argument names a unit to the CUE loader.
func (r *renderer) argument(u unit) string {
	return path.Join(r.root, u.Path)
}

// unusedTag returns the key of a tag that an instance has no place for, or "".
func unusedTag(err error) string {
	for _, e := range errors.Errors(err) {
		format, args := e.Msg()
		if format == textNoTag || format == textUnusedTag {
			if key, ok := args[0].(string); ok {
				return key
			}
		}
	}
	return ""
}

// scope is one CUE context: the schema and one package, file or document.
type scope struct {
	r      *renderer
	ctx    *cue.Context
	schema cue.Value
	// found are the CUE paths of the definitions met so far.
	found []string
	// lenient leaves unsaid what cannot be read: the file is likely to be none
	// of ours.
	lenient bool
}

// newScope builds the schema in a fresh context, so that what one unit
// evaluated is freed before the next. Nothing of the source is part of it.
func (r *renderer) newScope() *scope {
	ctx := cuecontext.New(cuecontext.WithInjection(embed.New()))
	return &scope{r: r, ctx: ctx, schema: ctx.BuildInstance(r.schema)}
}

// rejectUnit reports why nothing of a unit could be read.
func (s *scope) rejectUnit(err error, file string) {
	if s.lenient {
		return
	}
	for _, p := range s.explain(err, cue.Value{}, nil) {
		if p.Source.File == "" {
			p.Source.File = file
		}
		s.r.emit(record{Problem: &p})
	}
}

// walkAll renders every definition in v, and reports what is wrong outside of
// them.
func (s *scope) walkAll(v cue.Value, file string) {
	s.walk(v)
	var outside errors.Error
	for _, e := range errors.Errors(v.Validate()) {
		at := strings.Join(e.Path(), "\x00") + "\x00"
		if !slices.ContainsFunc(s.found, func(p string) bool { return strings.HasPrefix(at, p) }) {
			outside = errors.Append(outside, e)
		}
	}
	if outside != nil {
		s.rejectUnit(outside, file)
	}
}

// walk looks for definitions in v and below.
func (s *scope) walk(v cue.Value) {
	version, err := v.LookupPath(cue.MakePath(cue.Str("apiVersion"))).String()
	if err == nil && strings.HasPrefix(version, v1alpha1.Group+"/") && s.listed(v) {
		return
	}
	if err == nil && strings.HasPrefix(version, v1alpha1.Group+"/") {
		s.found = append(s.found, joined(v.Path()))
		s.definition(v, version)
		return
	}
	if p := s.stray(v); p != nil {
		s.found = append(s.found, joined(v.Path()))
		s.r.emit(record{Problem: p})
		return
	}
	if err := v.Err(); err != nil && v.Validate() == nil {
		// Incomplete: an undefined field, or a comprehension over what is not
		// known. What would have stood here may be any number of definitions.
		s.rejectUnit(err, s.r.position(v).File)
	}
	if fields, err := v.Fields(); err == nil {
		for fields.Next() {
			s.walk(fields.Value())
		}
		return
	}
	if list, err := v.List(); err == nil {
		for list.Next() {
			s.walk(list.Value())
		}
	}
}

// listed renders the items of a list of definitions, such as a BpfPolicyList. It reports whether
// v is one.
func (s *scope) listed(v cue.Value) bool {
	kind, err := v.LookupPath(cue.MakePath(cue.Str("kind"))).String()
	item, isList := strings.CutSuffix(kind, "List")
	_, known := namespaced(item)
	items, notList := v.LookupPath(cue.MakePath(cue.Str("items"))).List()
	if err != nil || notList != nil || !isList || !known {
		return false
	}
	for items.Next() {
		if one := items.Value(); one.LookupPath(cue.MakePath(cue.Str("kind"))).Exists() && one.LookupPath(cue.MakePath(cue.Str("apiVersion"))).Exists() {
			s.walk(one)
			continue
		}
		s.r.emit(record{Problem: &Problem{
			Source: s.r.position(items.Value()), Path: items.Value().Path().String(),
			Message: "an item of a " + kind + " has no kind or no apiVersion", Fix: "write both into each item",
		}})
	}
	return true
}

// joined is a path in the form walkAll compares: every selector with an end.
func joined(p cue.Path) string {
	var b strings.Builder
	for _, sel := range p.Selectors() {
		b.WriteString(sel.String())
		b.WriteByte(0)
	}
	return b.String()
}

// namespaced tells which kinds there are, and which of them live in a
// namespace.
func namespaced(kind string) (inNamespace, known bool) {
	switch kind {
	case v1alpha1.KindBpfApplication, v1alpha1.KindBpfPolicy, v1alpha1.KindCueArtifact:
		return true, true
	case v1alpha1.KindClusterBpfApplication, v1alpha1.KindClusterBpfPolicy, v1alpha1.KindBpfSigner,
		v1alpha1.KindBpfImage, v1alpha1.KindBpfIntent, v1alpha1.KindBpfNode:
		return false, true
	}
	return false, false
}

// identify reads an object's identity as far as it is given.
func identify(v cue.Value, kind string, inNamespace bool) v1alpha1.Identity {
	id := v1alpha1.Identity{Kind: kind}
	id.Name, _ = authored(v, cue.ParsePath("metadata.name")).String()
	if inNamespace {
		id.Namespace, _ = authored(v, cue.ParsePath("metadata.namespace")).String()
		if id.Namespace == "" {
			id.Namespace = "default"
		}
	}
	return id
}

// definition checks one object against the schema and renders it.
func (s *scope) definition(v cue.Value, version string) {
	kind, err := v.LookupPath(cue.MakePath(cue.Str("kind"))).String()
	inNamespace, known := namespaced(kind)
	if err != nil || !known {
		s.r.emit(record{Problem: &Problem{
			Source: s.r.position(v), Path: v.Path().String(), Field: "kind",
			Message: fmt.Sprintf("kind %q is none of %s", kind, version),
			Fix:     "use BpfApplication, ClusterBpfApplication, BpfPolicy, ClusterBpfPolicy or BpfSigner",
		}})
		return
	}
	id := identify(v, kind, inNamespace)
	whole := s.schema.LookupPath(cue.MakePath(cue.Def(kind))).Unify(v)
	if err := whole.Validate(cue.Concrete(true), cue.Final()); err != nil {
		for _, p := range s.explain(err, v, &id) {
			if id.Name == "" {
				p.Definition = nil
			}
			s.r.emit(record{Problem: &p})
		}
		return
	}
	if missing := s.nulls(&id, v); len(missing) > 0 {
		for _, p := range missing {
			s.r.emit(record{Problem: &p})
		}
		return
	}
	data, err := whole.MarshalJSON()
	if len(data) > maxOutput {
		// The parent would kill this process for it, with less to say.
		err = errOutput
	}
	if err == nil && !slices.Contains(unjudged[:], kind) {
		data, err = exactVariables(data)
	}
	if err != nil {
		s.r.emit(record{Problem: &Problem{
			Source: s.r.position(v), Definition: &id, Path: v.Path().String(),
			Message: err.Error(), Fix: "give every field a value that JSON has, and of a sensible size",
		}})
		return
	}
	s.r.emit(record{Object: &Object{Identity: id, Source: s.r.position(v), Path: v.Path().String(), JSON: data, Places: s.r.placesOf(v)}})
}
