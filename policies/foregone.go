package policies

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/skep-dev/skep/confined"
)

// queryForegone asks for each member of deny.
const queryForegone = "data.skep.policy.deny[reason]"

// foregone returns the denials that hold whatever the unknown parts of the input turn
// out to be, by OPA's partial evaluation. What is left over of a rule is no denial,
// nor is anything where the evaluation fails or takes too long: then the policy is
// asked once all is known.
func (c *executable) foregone(ctx context.Context, input ast.Object, unknown []string) (v verdict) {
	defer func() {
		if r := recover(); r != nil {
			v = verdict{}
		}
	}()
	parts, key := unknownParts(unknown), strings.Join(unknown, " ")
	follows, asked := c.follows[key]
	if !asked {
		follows = followable(c.compiler, parts)
		c.follows[key] = follows
	}
	if !follows {
		return verdict{}
	}
	if c.partial == nil {
		prepared, err := c.box.preparePartial(ctx, c.compiler)
		if err != nil {
			return verdict{}
		}
		c.partial = &prepared
	}
	known := c.inputFor(input)
	known.Insert(ast.StringTerm(keyForegone), named(unknown))
	terms := make([]*ast.Term, len(parts))
	for i, part := range parts {
		terms[i] = ast.NewTerm(part)
	}
	left, err := c.partial.Partial(ctx, rego.EvalParsedInput(known), rego.EvalParsedUnknowns(terms))
	if topdown.IsCancel(err) || ctx.Err() != nil {
		return verdict{Late: true, Busy: !errors.Is(context.Cause(ctx), confined.ErrSpent)}
	}
	if err != nil {
		return verdict{}
	}
	members := ast.NewSet()
	for _, body := range left.Queries {
		if member := unconditional(body); member != nil {
			members.Add(member)
		}
	}
	denied, err := c.reasons(rego.Vars{entryDeny: ast.NewTerm(members)}, entryDeny)
	if err != nil {
		return verdict{}
	}
	return verdict{Denied: denied}
}

// preparePartial makes the query that asks for denials.
func (s *sandbox) preparePartial(ctx context.Context, compiler *ast.Compiler) (rego.PreparedPartialQuery, error) {
	txn, err := s.store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return rego.PreparedPartialQuery{}, err
	}
	defer s.store.Abort(ctx, txn)
	return rego.New(
		rego.Query(queryForegone),
		rego.Compiler(compiler),
		rego.Store(s.store),
		rego.Transaction(txn),
		rego.StrictBuiltinErrors(true),
	).PrepareForPartial(ctx)
}

// unconditional returns the member that is left over of a rule which holds already:
// nothing but its value, without anything unknown in it; nil where there is more.
func unconditional(body ast.Body) *ast.Term {
	if len(body) != 1 {
		return nil
	}
	expr := body[0]
	if expr.Negated || len(expr.With) > 0 || !expr.IsEquality() {
		return nil
	}
	for _, pair := range [][2]int{{0, 1}, {1, 0}} {
		name, value := expr.Operand(pair[0]), expr.Operand(pair[1])
		if _, ok := name.Value.(ast.Var); ok && constant(value) {
			return value
		}
	}
	return nil
}

// constant reports whether nothing has to be evaluated to know a term.
func constant(t *ast.Term) bool {
	found := true
	ast.WalkTerms(t, func(t *ast.Term) bool {
		switch t.Value.(type) {
		case ast.Null, ast.Boolean, ast.Number, ast.String, *ast.Array, ast.Object, ast.Set:
		default:
			found = false
		}
		return !found
	})
	return found
}

// named is an object with each name as a key.
func named(names []string) *ast.Term {
	object := ast.NewObject()
	for _, name := range names {
		object.Insert(ast.StringTerm(name), ast.BooleanTerm(true))
	}
	return ast.NewTerm(object)
}

// followable reports whether partial evaluation can tell of every use of the input
// whether it is of an unknown part. It follows references by their constant beginning:
// a key that is computed, above an unknown part, hides which part is meant. Nor is a
// policy followed that replaces parts of the input itself.
func followable(compiler *ast.Compiler, unknown []ast.Ref) bool {
	for _, module := range compiler.Modules {
		hidden := false
		ast.WalkWiths(module, func(*ast.With) bool {
			hidden = true
			return true
		})
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			hidden = hidden || hides(ref, unknown)
			return hidden
		})
		if hidden {
			return false
		}
	}
	return true
}

// hides reports whether a reference chooses by a computed key what may be above an
// unknown part, or that part.
func hides(ref ast.Ref, unknown []ast.Ref) bool {
	if !ref.HasPrefix(ast.InputRootRef) {
		return false
	}
	prefix := ref.GroundPrefix()
	if len(prefix) == len(ref) {
		return false
	}
	return slices.ContainsFunc(unknown, func(part ast.Ref) bool { return len(part) > len(prefix) && part.HasPrefix(prefix) })
}
