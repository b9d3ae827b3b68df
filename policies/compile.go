package policies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"

	"github.com/skep-dev/skep/text"
)

// Bounds on one policy's source.
const (
	// maxRegoBytes bounds spec.rego.
	maxRegoBytes = 256 << 10
	// maxNesting bounds how deep brackets stand in brackets.
	maxNesting = 64
	// maxCompileErrors bounds how many errors of one policy are reported; each is cut
	// at maxTextBytes.
	maxCompileErrors = 10
)

// The entry points of a policy.
const (
	entryDeny = "deny"
	entryWarn = "warn"
)

// CompileError is one thing wrong with one policy.
type CompileError struct {
	// Policy is the policy's name, with its namespace before it where it has
	// one.
	Policy string `json:"policy"`
	// File, Line and Column say where; Line is 0 where the error is about a
	// field of the object rather than about its Rego. Both count from 1.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Message says what is wrong.
	Message string `json:"message"`
}

// Error is one line: the place, the policy and what is wrong.
func (e *CompileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("compile policy %s: %s", e.Policy, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: compile policy %s: %s", e.File, e.Line, e.Column, e.Policy, e.Message)
}

// executable is one compiled program, ready to be evaluated. It exists in a child
// alone.
type executable struct {
	// id is the policy's name.
	id         string
	parameters *ast.Term
	query      rego.PreparedEvalQuery
	// box and compiler are what it was compiled in; partial is prepared when it is
	// first needed.
	box      *sandbox
	compiler *ast.Compiler
	partial  *rego.PreparedPartialQuery
	// follows remembers of what is unknown whether the program is followable.
	follows map[string]bool
}

// compile compiles a program, which takes the time and the memory it takes. There
// is an executable where the proof holds no error. An error is none of the
// program's.
func (s *sandbox) compile(ctx context.Context, p program) (*executable, proof, error) {
	modules, entries, errs := s.parse(p)
	if len(errs) > 0 {
		return nil, proof{Errors: errs, Denies: slices.Contains(entries, entryDeny)}, nil
	}
	parameters, err := ast.ValueFromReader(bytes.NewReader(p.Parameters))
	if err != nil {
		fault := &CompileError{Policy: p.Policy, Message: text.Cut("spec.parameters: "+err.Error(), maxTextBytes)}
		return nil, proof{Errors: []*CompileError{fault}}, nil //nolint:nilerr // it is the policy's fault, which a proof tells
	}
	shown := proof{Denies: slices.Contains(entries, entryDeny), AllEvidence: readsEvidence(modules, p.Profile != "")}
	own := slices.Sorted(maps.Keys(modules))
	if err := s.library(modules); err != nil {
		return nil, proof{}, err
	}
	compiler := s.compiler()
	query, errs := s.link(ctx, p, compiler, modules, entries, &shown)
	if len(errs) == 0 && p.Rego != "" {
		errs = unset(p, compiler, own, parameters)
	}
	if shown.Errors = errs; len(errs) > 0 {
		return nil, shown, nil
	}
	return &executable{id: p.Policy, parameters: ast.NewTerm(parameters), query: query, box: s, compiler: compiler, follows: map[string]bool{}}, shown, nil
}

// refParameters is where the policy's own parameters are.
var refParameters = ast.InputRootRef.Append(ast.StringTerm("parameters"))

// unset are the parameters that the policy's files read and that are not set. What reads
// one is undefined, and so is a deny: it would allow.
func unset(p program, compiler *ast.Compiler, files []string, parameters ast.Value) (errs []*CompileError) {
	set, _ := parameters.(ast.Object)
	seen := map[CompileError]bool{}
	for _, file := range files {
		ast.WalkRefs(compiler.Modules[file], func(ref ast.Ref) bool {
			if len(errs) == maxCompileErrors || !ref.HasPrefix(refParameters) || len(ref) <= len(refParameters) {
				return false
			}
			name, ok := ref[len(refParameters)].Value.(ast.String)
			if !ok || set != nil && set.Get(ast.NewTerm(name)) != nil {
				return false
			}
			e := CompileError{Policy: p.Policy, File: file, Line: 1, Column: 1, Message: text.Cut(fmt.Sprintf(
				"input.parameters.%[1]s is not set, and what is undefined denies nothing: set spec.parameters.%[1]s, or read it with a default, "+
					"by object.get(input.parameters, %[1]q, …)", string(name)), maxTextBytes)}
			if at := ref[0].Location; at != nil && at.Row > 0 {
				e.Line, e.Column = at.Row, max(1, at.Col)
			}
			if !seen[e] {
				seen[e] = true
				errs = append(errs, &e)
			}
			return false
		})
	}
	return errs
}

// parse reads the policy's modules and finds its entry points.
func (s *sandbox) parse(p program) (modules map[string]*ast.Module, entries []string, errs []*CompileError) {
	sources := profileSources(p.Profile)
	if p.Rego != "" {
		sources = map[string]string{p.File: p.Rego}
	}
	modules = make(map[string]*ast.Module, len(sources))
	for file, source := range sources {
		if line := tooDeep(source); line > 0 {
			return nil, nil, []*CompileError{nestedTooDeep(p.Policy, file, line)}
		}
		module, err := ast.ParseModuleWithOpts(file, source, s.parserOptions())
		if err != nil {
			return nil, nil, compileErrors(p, err)
		}
		modules[file] = module
	}
	for _, module := range modules {
		found, err := entryPoints(module)
		if err != nil {
			errs = append(errs, compileErrors(p, err)...)
		}
		entries = append(entries, found...)
	}
	slices.Sort(entries)
	entries = slices.Compact(entries)
	if len(errs) == 0 && len(entries) == 0 {
		errs = append(errs, &CompileError{Policy: p.Policy, File: p.File, Line: 1, Column: 1,
			Message: "the policy has neither of the sets deny and warn, so it could never say anything; write: deny contains {\"msg\": …} if { … }"})
	}
	return modules, entries, errs
}

// link compiles the modules, prepares the query and notes what they may read.
func (s *sandbox) link(ctx context.Context, p program, compiler *ast.Compiler, modules map[string]*ast.Module, entries []string,
	shown *proof) (query rego.PreparedEvalQuery, errs []*CompileError) {
	defer func() {
		if r := recover(); r != nil {
			errs = []*CompileError{{
				Policy: p.Policy, File: p.File, Line: 1, Column: 1, Message: text.Cut(fmt.Sprintf("the compiler gave up on it: %v", r), maxTextBytes),
			}}
		}
	}()
	if compiler.Compile(modules); compiler.Failed() {
		return query, compileErrors(p, compiler.Errors)
	}
	shown.TimeDependent, shown.Authored = readsNow(compiler), readsAuthor(compiler)
	query, err := s.prepare(ctx, compiler, entries)
	if err != nil {
		return query, compileErrors(p, err)
	}
	return query, nil
}

// prepare makes the query that asks for the entry points.
func (s *sandbox) prepare(ctx context.Context, compiler *ast.Compiler, entries []string) (rego.PreparedEvalQuery, error) {
	var query strings.Builder
	for _, entry := range entries {
		fmt.Fprintf(&query, "%[1]s = data.skep.policy.%[1]s\n", entry)
	}
	txn, err := s.store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return rego.PreparedEvalQuery{}, err
	}
	defer s.store.Abort(ctx, txn)
	return rego.New(
		rego.Query(query.String()),
		rego.Compiler(compiler),
		rego.Store(s.store),
		rego.Transaction(txn),
		rego.StrictBuiltinErrors(true),
		rego.GenerateJSON(func(t *ast.Term, _ *rego.EvalContext) (any, error) { return t, nil }),
	).PrepareForEval(ctx)
}

// compileErrors gives OPA's errors the policy's name.
func compileErrors(p program, err error) []*CompileError {
	var list ast.Errors
	var one *ast.Error
	switch {
	case errors.As(err, &list):
	case errors.As(err, &one):
		list = ast.Errors{one}
	default:
		return []*CompileError{{Policy: p.Policy, File: p.File, Line: 1, Column: 1, Message: text.Cut(err.Error(), maxTextBytes)}}
	}
	list.Sort()
	// The last one may say that there are more.
	list = list[:min(len(list), maxCompileErrors+1)]
	errs := make([]*CompileError, 0, len(list))
	for _, e := range list {
		ce := &CompileError{Policy: p.Policy, File: p.File, Line: 1, Column: 1, Message: e.Message}
		if e.Location != nil && e.Location.Row > 0 {
			ce.File, ce.Line, ce.Column = e.Location.File, e.Location.Row, max(1, e.Location.Col)
		}
		ce.Message = text.Cut(ce.Message+details(e.Details), maxTextBytes)
		errs = append(errs, ce)
	}
	return errs
}

// details are what OPA adds to an error, on one line and without its drawing of
// where the error is.
func details(d ast.ErrorDetails) string {
	if d == nil {
		return ""
	}
	var text strings.Builder
	for _, line := range d.Lines() {
		if line = strings.TrimSpace(line); line != "" && line != "^" {
			text.WriteString("; " + line)
		}
	}
	return text.String()
}

// joined are the errors of one policy as one; nil where there are none.
func joined(list []*CompileError) error {
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// nestedTooDeep says that brackets stand deeper than maxNesting.
func nestedTooDeep(policy, file string, line int) *CompileError {
	return &CompileError{Policy: policy, File: file, Line: line, Column: 1,
		Message: fmt.Sprintf("brackets stand in each other more than %d deep; give what is inside a rule of its own", maxNesting)}
}

// tooDeep returns the line where brackets outside strings and comments stand
// deeper than maxNesting, or 0. The compiler's time grows steeply with depth.
func tooDeep(source string) int {
	line, depth := 1, 0
	var quote byte
	for i := 0; i < len(source); i++ {
		c := source[i]
		switch {
		case c == '\n':
			line++
			if quote == '#' || quote == '"' {
				quote = 0
			}
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote && quote != '#' {
				quote = 0
			}
		case c == '"' || c == '`' || c == '#':
			quote = c
		case strings.IndexByte("([{", c) >= 0:
			if depth++; depth > maxNesting {
				return line
			}
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		}
	}
	return 0
}
