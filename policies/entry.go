package policies

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The keys of an object in deny and warn.
const (
	keyMsg  = "msg"
	keyPath = "path"
	keyFix  = "fix"
	keyRule = "rule"
)

// The fields of the input that are evidence.
const (
	keySignatures   = "signatures"
	keyAttestations = "attestations"
)

// entryPoints finds deny and warn in a module and denies what could silently
// say nothing: another package, an entry point that is no set, and an object
// with a misspelt key.
func entryPoints(module *ast.Module) ([]string, error) {
	if module.Package.Path.String() != "data.skep.policy" {
		return nil, ast.NewError(ast.CompileErr, module.Package.Location,
			"the package is %s; a policy is of package skep.policy", module.Package.Path.String()[len("data."):])
	}
	var entries []string
	for _, rule := range module.Rules {
		name := rule.Head.Ref()[0].Value.String()
		if name != entryDeny && name != entryWarn {
			continue
		}
		if rule.Default || rule.Head.RuleKind() != ast.MultiValue || len(rule.Head.Ref()) != 1 {
			return nil, ast.NewError(ast.CompileErr, rule.Location,
				"%s is a set of strings or objects; write: %s contains {\"msg\": …} if { … }", name, name)
		}
		if err := memberKeys(rule.Head.Key, name); err != nil {
			return nil, err
		}
		entries = append(entries, name)
	}
	return entries, nil
}

// memberKeys checks an object that is written out in a rule's head.
func memberKeys(member *ast.Term, entry string) error {
	object, ok := member.Value.(ast.Object)
	if !ok {
		return nil
	}
	known := []string{keyMsg, keyPath, keyFix, keyRule}
	var err error
	object.Foreach(func(key, _ *ast.Term) {
		name, ok := key.Value.(ast.String)
		if ok && !slices.Contains(known, string(name)) {
			err = ast.NewError(ast.CompileErr, key.Location, "an object in %s has the keys %v, not %q", entry, known, string(name))
		}
	})
	if err == nil && object.Get(ast.StringTerm(keyMsg)) == nil {
		err = ast.NewError(ast.CompileErr, member.Location, "an object in %s needs the key %q", entry, keyMsg)
	}
	return err
}

// readsNow reports whether anything in the compiled modules may read input.now.
// It errs on the side of yes: the whole input taken as a value, and a field of
// it chosen by a variable, count as reading it. The compiler has made a
// reference of every use of the input by then, imports and plain names too.
func readsNow(compiler *ast.Compiler) bool { return reads(compiler, refReadsNow) }

// readsAuthor tells in the same way whether anything may read what only a
// definition says and no intent: its labels, its annotations, who wrote it.
func readsAuthor(compiler *ast.Compiler) bool { return reads(compiler, refReadsAuthor) }

// reads reports whether any reference in the compiled modules is one of those.
func reads(compiler *ast.Compiler, one func(ast.Ref) bool) bool {
	found := false
	for _, module := range compiler.Modules {
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			found = found || one(ref)
			return found
		})
	}
	return found
}

// refReadsAuthor tells it of one reference.
func refReadsAuthor(ref ast.Ref) bool {
	if !ref.HasPrefix(ast.InputRootRef) {
		return false
	}
	known := [][]string{
		{"application", "kind"}, {"application", "spec"}, {"application", "metadata", "name"}, {"application", "metadata", "namespace"},
		{"version"}, {"namespace"}, {"image"}, {keySignatures}, {keyAttestations}, {"bytecode"}, {"parameters"}, {"now"}, {keyForegone},
	}
	return !slices.ContainsFunc(known, func(path []string) bool {
		field := ast.InputRootRef
		for _, name := range path {
			field = field.Append(ast.StringTerm(name))
		}
		return ref.HasPrefix(field)
	})
}

// refReadsNow tells it of one reference.
func refReadsNow(ref ast.Ref) bool {
	if !ref.HasPrefix(ast.InputRootRef) {
		return false
	}
	if len(ref) == 1 {
		return true
	}
	field, constant := ref[1].Value.(ast.String)
	return !constant || field == "now"
}

// readsEvidence reports whether anything in the modules of one policy, as they
// were parsed, may decide by an attestation or signature beyond whether somebody
// signed: what such a policy says of a part of the evidence need not be what it
// says of all. It errs on the side of yes, as readsNow does, and an alias for
// the whole input counts too. A profile may read signatures: none denies
// because of one, which a test holds them to.
func readsEvidence(modules map[string]*ast.Module, profile bool) bool {
	found := false
	for _, module := range modules {
		ast.NewGenericVisitor(func(node any) bool {
			switch node := node.(type) {
			case *ast.Expr:
				return found || asksWhetherSigned(node)
			case ast.Ref:
				found = found || refReadsEvidence(node, profile)
			}
			return found
		}).Walk(module)
	}
	return found
}

// asksWhetherSigned recognises count(input.signatures) == 0, and != and >. A
// part of the evidence answers it as all of it does, since a part is only ever
// taken where a signature in it counts.
func asksWhetherSigned(e *ast.Expr) bool {
	terms, ok := e.Terms.([]*ast.Term)
	if !ok || len(terms) != 3 || len(e.With) > 0 || !terms[2].Equal(ast.InternedTerm(0)) {
		return false
	}
	operators := []*ast.Builtin{ast.Equal, ast.NotEqual, ast.GreaterThan}
	if !slices.ContainsFunc(operators, func(b *ast.Builtin) bool { return e.Operator().Equal(b.Ref()) }) {
		return false
	}
	signatures := ast.InputRootRef.Append(ast.StringTerm(keySignatures))
	return terms[1].Equal(ast.CallTerm(ast.NewTerm(ast.Count.Ref()), ast.NewTerm(signatures)))
}

// refReadsEvidence tells it of one reference.
func refReadsEvidence(ref ast.Ref, profile bool) bool {
	if !ref.HasPrefix(ast.InputRootRef) {
		return false
	}
	if len(ref) == 1 {
		return true
	}
	field, constant := ref[1].Value.(ast.String)
	return !constant || field == keyAttestations || field == keySignatures && !profile
}

// where names the place of a rule for a person to read.
func where(location *ast.Location) string {
	if location == nil {
		return "a place it does not tell"
	}
	return fmt.Sprintf("%s:%d", location.File, location.Row)
}
