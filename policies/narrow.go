package policies

import "github.com/open-policy-agent/opa/v1/ast"

// narrow has lib.image_name be given the two parts of input.image that it reads, and
// not all of it: else partial evaluation takes the name for unknown where only a
// digest is.
func narrow(compiler *ast.Compiler) *ast.Error {
	imageName := ast.MustParseRef("data.skep.lib.image_name")
	image := ast.MustParseRef("input.image")
	for _, module := range compiler.Modules {
		ast.WalkTerms(module, func(t *ast.Term) bool {
			call, ok := t.Value.(ast.Call)
			if ok && len(call) == 2 && call[0].Value.Compare(imageName) == 0 && call[1].Value.Compare(image) == 0 {
				call[1] = parts(call[1], "registry", "repository")
			}
			return false
		})
	}
	return nil
}

// parts is an object of some fields of what a reference is of.
func parts(whole *ast.Term, names ...string) *ast.Term {
	fields := make([][2]*ast.Term, len(names))
	for i, name := range names {
		key := ast.StringTerm(name).SetLocation(whole.Location)
		ref := whole.Value.(ast.Ref).Append(key)
		fields[i] = [2]*ast.Term{key, ast.NewTerm(ref).SetLocation(whole.Location)}
	}
	return ast.ObjectTerm(fields...).SetLocation(whole.Location)
}
