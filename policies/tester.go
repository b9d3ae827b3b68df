package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/lineage"
)

// testTimeout is how long one test may take.
const testTimeout = 5 * time.Second

// Outcome is how a test ended.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Errored Outcome = "error"
	Skipped Outcome = "skipped"
)

// TestResult is one test of one policy.
type TestResult struct {
	// Policy is the name of the policy that was tested.
	Policy string `json:"policy"`
	// Name is the test's, such as test_unsigned_is_refused.
	Name string `json:"name"`
	// File and Line say where the test stands.
	File string `json:"file"`
	Line int    `json:"line"`
	// Outcome says how it ended, Message why where it is Errored, and which expression
	// was not true where it is Failed.
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message,omitempty"`
	// Output is what the test printed.
	Output string `json:"output,omitempty"`
	// Trace is how OPA evaluated a test that Failed, where Engine.Trace ran it.
	Trace string `json:"trace,omitempty"`
	// Duration is how long it took.
	Duration time.Duration `json:"durationNanoseconds"`
}

// Report is what came of the tests of a folder.
type Report struct {
	// Results in the order of policy, file, line and name.
	Results []TestResult `json:"results"`
	// Untested names the policies without any test, sorted.
	Untested []string `json:"untested"`
}

// Passed reports whether no test failed. It is true where there was none.
func (r Report) Passed() bool {
	return !slices.ContainsFunc(r.Results, func(t TestResult) bool { return t.Outcome == Failed || t.Outcome == Errored })
}

// Test runs the Rego tests of a folder that Load reads: the tests of policy NAME
// are in files called NAME_test.rego, of package skep.policy_test or
// skep.policy. Each policy is compiled alone with its tests, in the sandbox it
// is to run in and with the data it is to see; print works in tests alone. An
// error says that something could not be tested: a policy or a test that does
// not compile, a test file without a policy.
func (e *Engine) Test(ctx context.Context, fsys fs.FS) (Report, error) {
	return e.test(ctx, fsys, false)
}

// Trace is Test, and traces the tests that failed.
func (e *Engine) Trace(ctx context.Context, fsys fs.FS) (Report, error) {
	return e.test(ctx, fsys, true)
}

func (e *Engine) test(ctx context.Context, fsys fs.FS, traced bool) (Report, error) {
	policies, err := Load(fsys)
	if err != nil {
		return Report{}, err
	}
	tests := map[string]map[string]string{}
	var unread error
	err = eachFile(fsys, func(file string, body []byte, err error) {
		unread = errors.Join(unread, err)
		if name, ok := strings.CutSuffix(path.Base(file), testSuffix); ok {
			if tests[name] == nil {
				tests[name] = map[string]string{}
			}
			tests[name][file] = string(body)
		}
	})
	if err := errors.Join(err, unread); err != nil {
		return Report{}, err
	}
	return e.testAll(ctx, policies, tests, traced)
}

// testAll pairs policies and tests, by the policy's name.
func (e *Engine) testAll(ctx context.Context, policies []Policy, tests map[string]map[string]string, traced bool) (Report, error) {
	if _, err := e.Compile(ctx, policies, Options{}); err != nil {
		return Report{}, err
	}
	report := Report{Results: []TestResult{}, Untested: []string{}}
	var errs []error
	for _, p := range policies {
		files := tests[p.Name]
		if len(files) == 0 {
			report.Untested = append(report.Untested, p.String())
			continue
		}
		results, err := e.testOne(ctx, p, files, traced)
		report.Results = append(report.Results, results...)
		errs = append(errs, err)
	}
	for _, name := range sortedKeys(tests) {
		if !slices.ContainsFunc(policies, func(p Policy) bool { return p.Name == name }) {
			errs = append(errs, fmt.Errorf("test policies: %s tests policy %s, which is not there", strings.Join(sortedKeys(tests[name]), ", "), name))
		}
	}
	slices.Sort(report.Untested)
	slices.SortFunc(report.Results, func(a, b TestResult) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Name, b.Name))
	})
	return report, errors.Join(errs...)
}

// testOne has a child run the tests of one policy.
func (e *Engine) testOne(ctx context.Context, p Policy, files map[string]string, traced bool) ([]TestResult, error) {
	prog, err := programOf(p)
	if err != nil {
		return nil, fmt.Errorf("test policy %s: %w", p, err)
	}
	pool := e.pools.proveTenants
	leave, err := pool.enter(ctx, p.Namespace)
	if err != nil {
		return nil, fmt.Errorf("test policy %s: %w", p, err)
	}
	defer leave()
	var results []TestResult
	var broken []*CompileError
	t := task{Test: &testRun{Program: prog, Files: files, Trace: traced}, Bounds: bounds{MemoryBytes: e.memory}}
	err = e.try(pool, t, e.patience+testTimeout, func(a answer) error {
		switch {
		case a.Result != nil:
			results = append(results, *a.Result)
		case len(a.Broken) > 0:
			broken = a.Broken
		}
		return nil
	})
	var ended *endedError
	switch {
	case errors.As(err, &ended) && ended.exhausted():
		return results, fmt.Errorf("test policy %s: a test of it %s", p, exceeded(ended, e.memory, e.patience+testTimeout))
	case err != nil:
		return results, fmt.Errorf("test policy %s: %w", p, err)
	}
	return results, joined(broken)
}

// testPolicy runs every test of one policy in this process, and hands over each
// result.
func testPolicy(ctx context.Context, t testRun, take func(TestResult)) ([]*CompileError, error) {
	box, err := newSandbox()
	if err != nil {
		return nil, err
	}
	// OPA's tester calls this one, from where it is given cases.
	box.capabilities.Builtins = append(box.capabilities.Builtins, ast.InternalTestCase)
	modules, errs, err := box.testModules(t)
	if err != nil || len(errs) > 0 {
		return errs, err
	}
	return box.runTests(ctx, t, modules, take)
}

// runTests runs every test of the modules.
func (s *sandbox) runTests(ctx context.Context, t testRun, modules map[string]*ast.Module, take func(TestResult)) ([]*CompileError, error) {
	txn, err := s.store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return nil, fmt.Errorf("test policy %s: %w", t.Program.Policy, err)
	}
	defer s.store.Abort(ctx, txn)
	results, err := s.runner(modules).CapturePrintOutput(true).RunTests(ctx, txn)
	if err != nil {
		return compileErrors(t.Program, err), nil
	}
	var failed []TestResult
	for r := range results {
		if result := testResult(t.Program.Policy, r); result.Outcome == Failed {
			failed = append(failed, result)
		} else {
			take(result)
		}
	}
	why := s.explain(ctx, txn, modules, failed, t.Trace)
	for _, result := range failed {
		result.Message = why.of(result.File, result.Line)
		result.Trace = why.trace(result.File, result.Line)
		take(result)
	}
	return nil, nil
}

// runner runs tests of the modules.
func (s *sandbox) runner(modules map[string]*ast.Module) *tester.Runner {
	return tester.NewRunner().
		SetCompiler(s.compiler().WithEnablePrintStatements(true)).
		SetStore(s.store).
		SetDefaultRegoVersion(ast.RegoV1).
		SetModules(modules).
		SetTimeout(testTimeout).
		SetParallel(1).
		RaiseBuiltinErrors(true)
}

// explain runs tests that failed once more, to see which expression did: to look at each
// takes several times as long.
func (s *sandbox) explain(ctx context.Context, txn storage.Transaction, modules map[string]*ast.Module, failed []TestResult, traced bool) *failures {
	why := &failures{last: map[place]*ast.Location{}, traced: traced, events: map[place][]*topdown.Event{}}
	if len(failed) == 0 {
		return why
	}
	names := make([]string, len(failed))
	for i, result := range failed {
		names[i] = regexp.QuoteMeta(result.Name)
	}
	results, err := s.runner(modules).SetCoverageQueryTracer(why).Filter("("+strings.Join(names, "|")+")$").RunTests(ctx, txn)
	if err != nil {
		return why
	}
	for range results {
	}
	return why
}

// failures notes of each test which of its expressions failed last.
type failures struct {
	mu sync.Mutex
	// test is the place of the test that runs, query the one that evaluates its body.
	test  place
	query uint64
	last  map[place]*ast.Location
	// events are those of each test, at most maxTraceEvents, where traced.
	traced bool
	events map[place][]*topdown.Event
}

// What is kept of the trace of a test.
const (
	maxTraceEvents = 4096
	maxTraceBytes  = 256 << 10
)

// place is where a test stands.
type place struct {
	file string
	line int
}

// Enabled implements topdown.QueryTracer.
func (f *failures) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (f *failures) Config() topdown.TraceConfig { return topdown.TraceConfig{PlugLocalVars: f.traced} }

// TraceEvent implements topdown.QueryTracer.
func (f *failures) TraceEvent(e topdown.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch node := e.Node.(type) {
	case *ast.Rule:
		if e.Op == topdown.EnterOp && strings.HasPrefix(string(node.Head.Name), tester.TestPrefix) && node.Location != nil {
			f.test, f.query = place{node.Location.File, node.Location.Row}, e.QueryID
		}
	case *ast.Expr:
		if e.Op == topdown.FailOp && e.QueryID == f.query && node.Location != nil {
			f.last[f.test] = node.Location
		}
	}
	// What has no file is OPA's own query for the test.
	if f.traced && e.Location != nil && e.Location.File != "" && len(f.events[f.test]) < maxTraceEvents {
		f.events[f.test] = append(f.events[f.test], &e)
	}
}

// trace is how the test at a place was evaluated, as OPA writes it; empty where nothing
// was traced.
func (f *failures) trace(file string, line int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	topdown.PrettyTraceWithOpts(&b, lineage.Full(f.events[place{file, line}]), topdown.PrettyTraceOptions{Locations: true, ExprVariables: true})
	text := b.String()
	if len(text) > maxTraceBytes {
		text = strings.ToValidUTF8(text[:maxTraceBytes], "") + "…"
	}
	return text
}

// of says what failed in the test at a place; empty where that is not known.
func (f *failures) of(file string, line int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.last[place{file, line}]
	if at == nil {
		return ""
	}
	first, _, more := strings.Cut(string(at.Text), "\n")
	if more {
		first += " …"
	}
	return fmt.Sprintf("%s:%d: not true: %s", at.File, at.Row, first)
}

// testModules parses the policy, the library and the tests.
func (s *sandbox) testModules(t testRun) (map[string]*ast.Module, []*CompileError, error) {
	modules, _, errs := s.parse(t.Program)
	if len(errs) > 0 {
		return nil, errs, nil
	}
	for file, source := range t.Files {
		if line := tooDeep(source); line > 0 {
			return nil, []*CompileError{nestedTooDeep(t.Program.Policy, file, line)}, nil
		}
		module, err := ast.ParseModuleWithOpts(file, source, s.parserOptions())
		if err != nil {
			return nil, compileErrors(t.Program, err), nil
		}
		if pkg := module.Package.Path.String(); pkg != "data.skep.policy" && pkg != "data.skep.policy_test" {
			return nil, []*CompileError{{Policy: t.Program.Policy, File: file, Line: module.Package.Location.Row, Column: module.Package.Location.Col,
				Message: fmt.Sprintf("the package is %s; tests are of package skep.policy_test", strings.TrimPrefix(pkg, "data."))}}, nil
		}
		modules[file] = module
	}
	return modules, nil, s.library(modules)
}

// testResult turns OPA's result into ours.
func testResult(policy string, r *tester.Result) TestResult {
	t := TestResult{Policy: policy, Name: r.Name, Outcome: Passed, Output: string(r.Output), Duration: r.Duration}
	if r.Location != nil {
		t.File, t.Line = r.Location.File, r.Location.Row
	}
	switch {
	case topdown.IsCancel(r.Error):
		t.Outcome, t.Message = Errored, fmt.Sprintf("it exceeded its time limit of %s: make it simpler, or test it on a machine that has less to do", testTimeout)
	case r.Error != nil:
		t.Outcome, t.Message = Errored, r.Error.Error()
	case r.Skip:
		t.Outcome = Skipped
	case r.Fail:
		t.Outcome = Failed
	}
	return t
}
