package policies

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// libraryFolders are those of Library.
var libraryFolders = []string{"lib", "evidence"}

// libraryTests are the Rego tests of one folder and what all of them share.
func libraryTests(t *testing.T, folder string) map[string]string {
	t.Helper()
	tests := map[string]string{}
	files, err := filepath.Glob(filepath.Join("library", folder, "*"+testSuffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "library/fixture_test.rego") {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests[file] = string(body)
	}
	return tests
}

func TestLibrary(t *testing.T) {
	tests := map[string]map[string]string{}
	var profiles []Policy
	for _, profile := range Profiles() {
		tests[profile] = libraryTests(t, profile)
		for _, folder := range libraryFolders {
			maps.Copy(tests[profile], libraryTests(t, folder))
		}
		profiles = append(profiles, Policy{Name: profile, Spec: v1alpha1.BpfPolicySpec{Profile: profile}})
	}
	engine := NewEngine(EngineOptions{})
	t.Cleanup(engine.Close)
	report, err := engine.testAll(t.Context(), profiles, tests, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Outcome != Passed || r.Output != "" {
			t.Errorf("%s:%d: %s %s %s %s", r.File, r.Line, r.Name, r.Outcome, r.Message, r.Output)
		}
	}
	if len(report.Results) < 80 || len(report.Untested) != 0 {
		t.Errorf("%d tests ran, untested: %v", len(report.Results), report.Untested)
	}
}

// TestEveryRuleIsTested takes each rule out of the shipped Rego, one at a time:
// the tests beside it must notice.
func TestEveryRuleIsTested(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the library once for each of its rules")
	}
	box, err := newSandbox()
	if err != nil {
		t.Fatal(err)
	}
	box.capabilities.Builtins = append(box.capabilities.Builtins, ast.InternalTestCase)
	for _, folder := range append(Profiles(), libraryFolders...) {
		profile, tests := folder, libraryTests(t, folder)
		if slices.Contains(libraryFolders, folder) {
			profile = ProfileBaseline
		}
		for file, source := range sources(folder) {
			for i, rule := range parsed(t, box, file, source).Rules {
				module := parsed(t, box, file, source)
				module.Rules = slices.Delete(module.Rules, i, i+1)
				if passes(t, box, profile, tests, file, module) {
					t.Errorf("%s: no test notices that the rule is gone", where(rule.Location))
				}
			}
		}
	}
}

// parsed is the module of a file.
func parsed(t *testing.T, box *sandbox, file, source string) *ast.Module {
	t.Helper()
	module, err := ast.ParseModuleWithOpts(file, source, box.parserOptions())
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// passes runs a profile's tests with one module in the place of another.
func passes(t *testing.T, box *sandbox, profile string, tests map[string]string, file string, module *ast.Module) bool {
	t.Helper()
	p := program{Policy: profile, Profile: profile, Parameters: []byte("{}")}
	modules, errs, err := box.testModules(testRun{Program: p, Files: tests})
	if err != nil || len(errs) > 0 {
		t.Fatal(err, errs)
	}
	modules[file] = module
	var results []TestResult
	errs, err = box.runTests(context.WithoutCancel(t.Context()), testRun{Program: p}, modules, func(r TestResult) { results = append(results, r) })
	// A rule that others need is noticed as well.
	return err == nil && len(errs) == 0 && Report{Results: results}.Passed()
}

func TestShippedRegoIsFormatted(t *testing.T) {
	files := Source()
	for _, folder := range append(Profiles(), libraryFolders...) {
		maps.Copy(files, libraryTests(t, folder))
	}
	for file, source := range files {
		formatted, err := format.SourceWithOpts(file, []byte(source), format.Opts{RegoVersion: ast.RegoV1})
		if err != nil {
			t.Fatal(err)
		}
		if string(formatted) != source {
			t.Errorf("%s is not as opa fmt writes it", file)
		}
	}
}

func TestSourceHoldsNoTests(t *testing.T) {
	want := []string{"library/baseline/baseline.rego",
		"library/evidence/sbom.rego", "library/evidence/signers.rego", "library/evidence/slsa.rego", "library/evidence/vsa.rego", "library/evidence/vuln.rego",
		"library/lib/lib.rego", "library/restricted/restricted.rego"}
	if got := sortedKeys(Source()); !slices.Equal(got, want) {
		t.Errorf("shipped are %v, want %v", got, want)
	}
	if got := sources("nowhere"); len(got) != 0 {
		t.Errorf("a folder that is not there holds %v", sortedKeys(got))
	}
}

// TestTheLibraryReadsNoInput keeps a policy that uses the library from being
// decided again and again.
func TestTheLibraryReadsNoInput(t *testing.T) {
	box, err := newSandbox()
	if err != nil {
		t.Fatal(err)
	}
	for file, source := range Library() {
		ast.WalkRefs(parsed(t, box, file, source), func(ref ast.Ref) bool {
			if ref.HasPrefix(ast.InputRootRef) {
				t.Errorf("%s reads %s", file, ref)
			}
			return false
		})
	}
}
