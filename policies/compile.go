package policies

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Bounds on one policy's source.
const (
	// maxRegoBytes bounds spec.rego.
	maxRegoBytes = 256 << 10
	// maxNesting bounds how deep brackets stand in brackets.
	maxNesting = 64
	// compileTimeout is how long one policy may take to compile. The compiler
	// cannot be stopped, so what takes longer is left to itself.
	compileTimeout = 20 * time.Second
	// maxCompileErrors bounds how many errors of one policy are told.
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
	Policy string
	// File, Line and Column say where; Line is 0 where the error is about a
	// field of the object rather than about its Rego. Both count from 1.
	File         string
	Line, Column int
	// Message says what is wrong.
	Message string
}

// Error is one line: the place, the policy and what is wrong.
func (e *CompileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("compile policy %s: %s", e.Policy, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: compile policy %s: %s", e.File, e.Line, e.Column, e.Policy, e.Message)
}

// compiled is one policy, ready to be evaluated. A broken one denies all that
// its scope covers.
type compiled struct {
	id            string
	scope         scope
	spec          v1alpha1.BpfPolicySpec
	parameters    *ast.Term
	query         rego.PreparedEvalQuery
	timeDependent bool
	// authored tells that it reads what only the definition says: its labels,
	// its annotations, who wrote it.
	authored bool
	// allEvidence tells that the policy is not to be asked about a part of it.
	allEvidence bool
	broken      bool
	// enforces tells that the policy can refuse: it has a deny, and its mode is
	// not Audit. Only such a policy takes the place of baseline.
	enforces bool
	running  *runs
}

// compile turns one policy into a compiled one, which is usable, by denying,
// even where there are errors. It returns in time.
func (s *sandbox) compile(ctx context.Context, p Policy, timeout time.Duration) (*compiled, []error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type outcome struct {
		compiled *compiled
		errs     []error
	}
	done := make(chan outcome, 1)
	go func() {
		c, errs := s.compileNow(ctx, p)
		done <- outcome{c, errs}
	}()
	select {
	case o := <-done:
		return o.compiled, o.errs
	case <-ctx.Done():
		// The scope of a broken match is the whole reach of the policy.
		reach, _ := newScope(p)
		c := &compiled{id: p.String(), spec: p.Spec, scope: reach, broken: true, running: &runs{}}
		return c, []error{&CompileError{Policy: c.id, File: p.file(), Line: 1, Column: 1, Message: "it did not compile in time; make it simpler"}}
	}
}

// compileNow takes the time it takes.
func (s *sandbox) compileNow(ctx context.Context, p Policy) (*compiled, []error) {
	c := &compiled{id: p.String(), spec: p.Spec, running: &runs{}}
	var err error
	c.scope, err = newScope(p)
	if err = errors.Join(p.check(), err); err != nil {
		c.broken = true
		return c, []error{&CompileError{Policy: c.id, Message: err.Error()}}
	}
	if c.parameters, err = parameterTerm(p.Spec); err != nil {
		c.broken = true
		return c, []error{&CompileError{Policy: c.id, Message: err.Error()}}
	}
	modules, entries, errs := s.parse(p)
	if len(errs) == 0 {
		errs = s.link(ctx, c, p, modules, entries)
	}
	c.broken = len(errs) > 0
	c.enforces = p.Spec.Mode != v1alpha1.PolicyAudit && (c.broken || slices.Contains(entries, entryDeny))
	return c, errs
}

// parameterTerm is spec.parameters as Rego sees them.
func parameterTerm(spec v1alpha1.BpfPolicySpec) (*ast.Term, error) {
	body, err := json.Marshal(table(spec.Parameters))
	if err != nil {
		return nil, fmt.Errorf("spec.parameters: %w", err)
	}
	value, err := ast.ValueFromReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("spec.parameters: %w", err)
	}
	return ast.NewTerm(value), nil
}

// parse reads the policy's modules and finds its entry points.
func (s *sandbox) parse(p Policy) (modules map[string]*ast.Module, entries []string, errs []error) {
	sources := profileSources(p.Spec.Profile)
	if p.Spec.Rego != "" {
		sources = map[string]string{p.file(): p.Spec.Rego}
	}
	modules = make(map[string]*ast.Module, len(sources))
	for file, source := range sources {
		if line := tooDeep(source); line > 0 {
			return nil, nil, []error{&CompileError{Policy: p.String(), File: file, Line: line, Column: 1,
				Message: fmt.Sprintf("brackets stand in each other more than %d deep; give what is inside a rule of its own", maxNesting)}}
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
		errs = append(errs, &CompileError{Policy: p.String(), File: p.file(), Line: 1, Column: 1,
			Message: "the policy has neither of the sets deny and warn, so it could never say anything; write: deny contains {\"msg\": …} if { … }"})
	}
	return modules, entries, errs
}

// link compiles the modules together with the library and prepares the query.
func (s *sandbox) link(ctx context.Context, c *compiled, p Policy, modules map[string]*ast.Module, entries []string) (errs []error) {
	defer func() {
		if r := recover(); r != nil {
			errs = []error{&CompileError{Policy: c.id, File: p.file(), Line: 1, Column: 1, Message: fmt.Sprintf("the compiler gave up on it: %v", r)}}
		}
	}()
	lib, err := s.library()
	if err != nil {
		return []error{err}
	}
	c.allEvidence = readsEvidence(modules, p.Spec.Profile != "")
	maps.Copy(modules, lib)
	compiler := s.compiler()
	if compiler.Compile(modules); compiler.Failed() {
		return compileErrors(p, compiler.Errors)
	}
	c.timeDependent = readsNow(compiler)
	c.authored = readsAuthor(compiler) || p.Spec.Match != nil && p.Spec.Match.Selector != nil
	c.query, err = s.prepare(ctx, compiler, entries)
	if err != nil {
		return compileErrors(p, err)
	}
	return nil
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
func compileErrors(p Policy, err error) []error {
	var list ast.Errors
	var one *ast.Error
	switch {
	case errors.As(err, &list):
	case errors.As(err, &one):
		list = ast.Errors{one}
	default:
		return []error{&CompileError{Policy: p.String(), File: p.file(), Line: 1, Column: 1, Message: err.Error()}}
	}
	list.Sort()
	errs := make([]error, 0, len(list))
	for _, e := range list {
		ce := &CompileError{Policy: p.String(), File: p.file(), Line: 1, Column: 1, Message: e.Message}
		if e.Location != nil && e.Location.Row > 0 {
			ce.File, ce.Line, ce.Column = e.Location.File, e.Location.Row, max(1, e.Location.Col)
		}
		ce.Message += details(e.Details)
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
