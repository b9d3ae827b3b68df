package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/tester"
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
	// Outcome says how it ended, Message why where it is Errored.
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message,omitempty"`
	// Output is what the test printed.
	Output string `json:"output,omitempty"`
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

// Passed tells whether no test failed. It is true where there was none.
func (r Report) Passed() bool {
	return !slices.ContainsFunc(r.Results, func(t TestResult) bool { return t.Outcome == Failed || t.Outcome == Errored })
}

// Test runs the Rego tests of a folder that Load reads: the tests of policy NAME
// are in files called NAME_test.rego, of package skep.policy_test or
// skep.policy. Each policy is compiled alone with its tests, in the sandbox it
// is to run in and with the data it is to see; print works in tests alone. An
// error says that something could not be tested: a policy or a test that does
// not compile, a test file without a policy.
func Test(ctx context.Context, fsys fs.FS) (Report, error) {
	policies, err := Load(fsys)
	if err != nil {
		return Report{}, err
	}
	tests := map[string]map[string]string{}
	if err := eachFile(fsys, func(file string, body []byte) {
		if name, ok := strings.CutSuffix(path.Base(file), testSuffix); ok {
			if tests[name] == nil {
				tests[name] = map[string]string{}
			}
			tests[name][file] = string(body)
		}
	}); err != nil {
		return Report{}, err
	}
	return testAll(ctx, policies, tests)
}

// testAll pairs policies and tests, by the policy's name.
func testAll(ctx context.Context, policies []Policy, tests map[string]map[string]string) (Report, error) {
	if _, err := Compile(ctx, policies, Options{}); err != nil {
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
		results, err := testOne(ctx, p, files)
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

// testOne runs the tests of one policy.
func testOne(ctx context.Context, p Policy, files map[string]string) ([]TestResult, error) {
	box, err := newSandbox()
	if err != nil {
		return nil, err
	}
	// OPA's tester calls this one, from where it is given cases.
	box.capabilities.Builtins = append(box.capabilities.Builtins, ast.InternalTestCase)
	modules, err := box.testModules(p, files)
	if err != nil {
		return nil, err
	}
	return box.runTests(ctx, p, modules)
}

// runTests runs every test of the modules.
func (s *sandbox) runTests(ctx context.Context, p Policy, modules map[string]*ast.Module) ([]TestResult, error) {
	txn, err := s.store.NewTransaction(ctx, storage.TransactionParams{})
	if err != nil {
		return nil, fmt.Errorf("test policy %s: %w", p, err)
	}
	defer s.store.Abort(ctx, txn)
	results, err := tester.NewRunner().
		SetCompiler(s.compiler().WithEnablePrintStatements(true)).
		SetStore(s.store).
		SetDefaultRegoVersion(ast.RegoV1).
		SetModules(modules).
		SetTimeout(testTimeout).
		SetParallel(1).
		CapturePrintOutput(true).
		RaiseBuiltinErrors(true).
		RunTests(ctx, txn)
	if err != nil {
		return nil, errors.Join(compileErrors(p, err)...)
	}
	var all []TestResult
	for r := range results {
		all = append(all, testResult(p, r))
	}
	return all, ctx.Err()
}

// testModules parses the policy, the library and the tests.
func (s *sandbox) testModules(p Policy, files map[string]string) (map[string]*ast.Module, error) {
	modules, _, errs := s.parse(p)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	lib, err := s.library()
	if err != nil {
		return nil, err
	}
	maps.Copy(modules, lib)
	for file, source := range files {
		module, err := ast.ParseModuleWithOpts(file, source, s.parserOptions())
		if err != nil {
			return nil, errors.Join(compileErrors(p, err)...)
		}
		if pkg := module.Package.Path.String(); pkg != "data.skep.policy" && pkg != "data.skep.policy_test" {
			return nil, &CompileError{Policy: p.String(), File: file, Line: module.Package.Location.Row, Column: module.Package.Location.Col,
				Message: fmt.Sprintf("the package is %s; tests are of package skep.policy_test", strings.TrimPrefix(pkg, "data."))}
		}
		modules[file] = module
	}
	return modules, nil
}

// testResult turns OPA's result into ours.
func testResult(p Policy, r *tester.Result) TestResult {
	t := TestResult{Policy: p.String(), Name: r.Name, Outcome: Passed, Output: string(r.Output), Duration: r.Duration}
	if r.Location != nil {
		t.File, t.Line = r.Location.File, r.Location.Row
	}
	switch {
	case r.Error != nil:
		t.Outcome, t.Message = Errored, r.Error.Error()
	case r.Skip:
		t.Outcome = Skipped
	case r.Fail:
		t.Outcome = Failed
	}
	return t
}
