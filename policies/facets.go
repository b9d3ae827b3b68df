package policies

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Unknown says what of an Input could not be determined beside its signatures and
// attestations, which are always unknown.
type Unknown struct {
	// Object: the image was not read, so that its size, its labels and the bytecode
	// are unknown.
	Object bool
	// Digest: a tag was not resolved.
	Digest bool
	// Programs: the object says hooks or targets that the definition leaves out.
	Programs bool
}

// facet is a group of parts of the input that become known together.
type facet struct {
	name  string
	parts []ast.Ref
}

// facets are all groups that may be unknown.
func facets() []facet {
	in := func(fields ...string) ast.Ref {
		ref := slices.Clone(ast.InputRootRef)
		for _, name := range fields {
			ref = ref.Append(ast.StringTerm(name))
		}
		return ref
	}
	return []facet{
		{"evidence", []ast.Ref{in(keySignatures), in(keyAttestations)}},
		{"object", []ast.Ref{in("image", "size"), in("image", "labels"), in("image", "mismatches"), in("bytecode")}},
		{"digest", []ast.Ref{in("image", "digest")}},
		{"programs", []ast.Ref{in("application", "spec", "programs")}},
	}
}

// facets are the names of the groups that are unknown.
func (u Unknown) facets() []string {
	names := []string{"evidence"}
	if u.Object {
		names = append(names, "object")
	}
	if u.Digest {
		names = append(names, "digest")
	}
	if u.Programs {
		names = append(names, "programs")
	}
	return names
}

// unknownParts are the parts of the groups of some names.
func unknownParts(names []string) []ast.Ref {
	var parts []ast.Ref
	for _, f := range facets() {
		if slices.Contains(names, f.name) {
			parts = append(parts, f.parts...)
		}
	}
	return parts
}

// keyForegone is a field of the input where some of it is unknown: an object whose
// keys are the names of the groups.
const keyForegone = "foregone"

// guard has deny rules that mention a part of the input be skipped where that part is
// unknown: none of them can hold whatever it is, and partial evaluation would try
// every helper that data.helpers has. Other rules stay as they are, since a rule may
// ask whether they do not hold. What it adds no schema knows, so it comes after types
// are checked.
func guard(compiler *ast.Compiler) *ast.Error {
	policy := ast.MustParseRef("data.skep.policy")
	for _, module := range compiler.Modules {
		if !module.Package.Path.Equal(policy) {
			continue
		}
		for _, rule := range module.Rules {
			if rule.Head.Ref()[0].Value.Compare(ast.Var(entryDeny)) == 0 {
				guardRule(rule)
			}
		}
	}
	return nil
}

// guardRule puts conditions before those of a rule.
func guardRule(rule *ast.Rule) {
	var guards ast.Body
	for _, f := range facets() {
		if mentions(rule.Body, f.parts) {
			known := ast.InputRootRef.Append(ast.StringTerm(keyForegone)).Append(ast.StringTerm(f.name))
			guards.Append(ast.NewExpr(ast.NewTerm(known)).Complement().SetLocation(rule.Location))
		}
	}
	for _, expr := range rule.Body {
		guards.Append(expr)
	}
	rule.Body = guards
}

// mentions reports whether a body has a reference to one of the parts, to what is in
// it, or to what it is in.
func mentions(body ast.Body, parts []ast.Ref) bool {
	found := false
	ast.WalkRefs(body, func(ref ast.Ref) bool {
		prefix := ref.GroundPrefix()
		found = found || prefix.HasPrefix(ast.InputRootRef) && slices.ContainsFunc(parts, func(part ast.Ref) bool {
			return prefix.HasPrefix(part) || part.HasPrefix(prefix)
		})
		return found
	})
	return found
}
