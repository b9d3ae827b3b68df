package policies

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/skep-dev/skep/confined"
	"github.com/skep-dev/skep/text"
)

// Bounds on what one policy may say of one input.
const (
	// maxReasons bounds each of deny and warn; a last reason counts the rest.
	maxReasons = 64
	// maxTextBytes bounds a message and a fix, maxNameBytes a path and the
	// name of a rule. Longer ones are cut.
	maxTextBytes = 1024
	maxNameBytes = 256
)

// ruleError is the name of the rule by which a failing policy denies.
const ruleError = "error"

// evaluate asks OPA until ctx ends, and reads the answer. OPA looks at ctx between
// steps, and one step, such as one regular expression over a long string, can be long:
// then this process ends.
func (c *executable) evaluate(ctx context.Context, input ast.Object) (v verdict) {
	defer func() {
		if r := recover(); r != nil {
			v = fails(c.id, "made the evaluator give up", "its author is to fix it")
		}
	}()
	results, err := c.query.Eval(ctx, rego.EvalParsedInput(c.inputFor(input)))
	switch {
	case topdown.IsCancel(err) || ctx.Err() != nil:
		return late(c.id, errors.Is(context.Cause(ctx), confined.ErrSpent))
	case err != nil:
		return c.failsWith(err)
	case len(results) != 1:
		return fails(c.id, "gave no answer", "its author is to fix it")
	}
	denied, err := c.reasons(results[0].Bindings, entryDeny)
	if err != nil {
		return c.failsWith(err)
	}
	warnings, err := c.reasons(results[0].Bindings, entryWarn)
	if err != nil {
		return c.failsWith(err)
	}
	return verdict{Denied: denied, Warnings: warnings}
}

// inputFor is the input with the policy's own parameters. The object is shared,
// so it is copied one level deep.
func (c *executable) inputFor(shared ast.Object) ast.Object {
	own := ast.NewObjectWithCapacity(shared.Len())
	shared.Foreach(func(key, value *ast.Term) { own.Insert(key, value) })
	own.Insert(ast.StringTerm("parameters"), c.parameters)
	return own
}

// failsWith names the kind and the place of an evaluation error and nothing
// else, since OPA's own words may quote the input.
func (c *executable) failsWith(err error) verdict {
	var evaluation *topdown.Error
	if !errors.As(err, &evaluation) {
		return fails(c.id, err.Error(), "its author is to fix it")
	}
	what := map[string]string{
		topdown.ConflictErr:  "gives two values for one thing",
		topdown.TypeErr:      "uses a value of the wrong type",
		topdown.BuiltinErr:   "calls a function with a value it does not take",
		topdown.WithMergeErr: "replaces a part of the input that cannot be replaced",
	}[evaluation.Code]
	if what == "" {
		what = "could not be evaluated"
	}
	return fails(c.id, what+" at "+where(evaluation.Location), "its author is to fix it there")
}

// reasons reads the members of an entry point.
func (c *executable) reasons(bindings rego.Vars, entry string) ([]Reason, error) {
	bound, ok := bindings[entry]
	if !ok {
		return nil, nil
	}
	term, ok := bound.(*ast.Term)
	if !ok {
		return nil, fmt.Errorf("gives %s a value that is no set", entry)
	}
	set, ok := term.Value.(ast.Set)
	if !ok {
		return nil, fmt.Errorf("gives %s a value that is no set", entry)
	}
	members := set.Slice()
	reasons := make([]Reason, 0, min(len(members), maxReasons+1))
	for i, member := range members {
		if i == maxReasons {
			reasons = append(reasons, Reason{
				Rule: c.id + "/" + entry, Message: fmt.Sprintf("and %d more reasons", len(members)-maxReasons), Fix: "fix the reasons that are told first",
			})
			break
		}
		reason, err := c.reason(member, entry)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, reason)
	}
	return reasons, nil
}

// reason reads one member: a message, or an object with one.
func (c *executable) reason(member *ast.Term, entry string) (Reason, error) {
	rule := entry
	var r Reason
	switch value := member.Value.(type) {
	case ast.String:
		r.Message = text.Cut(string(value), maxTextBytes)
	case ast.Object:
		texts := map[string]string{}
		for _, key := range []string{keyMsg, keyPath, keyFix, keyRule} {
			field := value.Get(ast.StringTerm(key))
			if field == nil {
				continue
			}
			text, ok := field.Value.(ast.String)
			if !ok {
				return Reason{}, fmt.Errorf("gives an object in %s a %s that is no string", entry, key)
			}
			texts[key] = string(text)
		}
		if name := texts[keyRule]; name != "" {
			rule = text.Cut(name, maxNameBytes)
		}
		r = Reason{Path: text.Cut(texts[keyPath], maxNameBytes), Message: text.Cut(texts[keyMsg], maxTextBytes), Fix: text.Cut(texts[keyFix], maxTextBytes)}
	default:
		return Reason{}, fmt.Errorf("puts something into %s that is neither a string nor an object", entry)
	}
	if strings.TrimSpace(r.Message) == "" {
		return Reason{}, fmt.Errorf("puts something without a message into %s", entry)
	}
	if r.Fix == "" && entry == entryDeny {
		r.Fix = "the rule names no fix; ask the owner of policy " + c.id
	}
	r.Rule = c.id + "/" + rule
	return r, nil
}
