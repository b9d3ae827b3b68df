package schemas

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
)

// maxTags is of how many tags a source tells.
const maxTags = 1000

// Tag is a field of a CUE package that takes its value from outside, by its attribute
// @tag(name,short=a|b,type=int) (cuelang.org, cue help injection).
type Tag struct {
	Name string `json:"name"`
	// Type is what the value is read as: string, int, number or bool.
	Type string `json:"type"`
	// Shorthands are values that may stand for name=value, as in -t prod.
	Shorthands []string `json:"shorthands,omitempty"`
	// Default is the value that the field has without the tag, as text; empty where it has none,
	// or one that is computed.
	Default string `json:"default,omitempty"`
	// Doc is the first line of the field's comment.
	Doc string `json:"doc,omitempty"`
	// Source is where the field is written first.
	Source Position `json:"source"`
}

// Tags lists the tags that the CUE packages at o.Path take, sorted by name, each once. Nothing
// is evaluated. The problems are of files that cannot be read; the error is as for Render.
func Tags(ctx context.Context, o Options) ([]Tag, []Problem, error) {
	o, err := o.complete()
	if err != nil {
		return nil, nil, err
	}
	t, units, err := o.read()
	if err != nil {
		return nil, nil, err
	}
	o.Tags, o.listTags = nil, true
	out, err := renderAll(ctx, t, units, o)
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(out.tags, func(a, b Tag) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), comparePositions(a.Source, b.Source))
	})
	sortProblems(out.problems)
	return slices.CompactFunc(out.tags, func(a, b Tag) bool { return a.Name == b.Name }), out.problems, nil
}

// tagsOf tells the tags of a package's own files.
func (r *renderer) tagsOf(inst *build.Instance) {
	for _, file := range inst.Files {
		ast.Walk(file, func(n ast.Node) bool {
			if field, is := n.(*ast.Field); is {
				for _, attribute := range field.Attrs {
					r.tag(field, attribute)
				}
			}
			return true
		}, nil)
	}
}

// tag tells of a field with an attribute, where that is @tag.
func (r *renderer) tag(field *ast.Field, attribute *ast.Attribute) {
	key, body := attribute.Split()
	name, options, _ := strings.Cut(body, ",")
	if key != "tag" || name == "" {
		return
	}
	at, _ := r.inSource(attribute.Pos())
	if r.tagsLeft--; r.tagsLeft < 0 {
		if r.tagsLeft == -1 {
			r.emit(record{Problem: &Problem{Source: at, Message: fmt.Sprintf("there are more than %d tags", maxTags), Fix: "have fewer, and structs behind them"}})
		}
		return
	}
	t := Tag{Name: strings.TrimSpace(name), Type: "string", Default: defaultOf(field.Value), Doc: docOf(field), Source: at}
	for option := range strings.SplitSeq(options, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(option), "="); name {
		case "type":
			t.Type = value
		case "short":
			t.Shorthands = strings.Split(value, "|")
		}
	}
	r.emit(record{Tag: &t})
}

// docOf is the first line of a field's comment.
func docOf(field *ast.Field) string {
	for _, group := range ast.Comments(field) {
		if group.Doc && len(group.List) > 0 {
			line, _, _ := strings.Cut(group.Text(), "\n")
			return line
		}
	}
	return ""
}

// defaultOf is the value of an expression that is a literal, or that has one marked as its
// default.
func defaultOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return defaultOf(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return cmp.Or(markedIn(e.X), markedIn(e.Y))
		}
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, err := literal.Unquote(e.Value)
			if err != nil {
				return ""
			}
			return s
		}
		return e.Value
	}
	return ""
}

// markedIn is the default among the alternatives of an expression.
func markedIn(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.UnaryExpr:
		if e.Op == token.MUL {
			return defaultOf(e.X)
		}
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return cmp.Or(markedIn(e.X), markedIn(e.Y))
		}
	}
	return ""
}
