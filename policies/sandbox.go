package policies

import (
	"bytes"
	_ "embed"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"
)

//go:generate go run ./generate

// capabilitiesJSON lists what a policy may call. It is a list of what is
// allowed, so that a new version of OPA brings nothing in by itself.
//
//go:embed capabilities.json
var capabilitiesJSON []byte

//go:embed input.schema.json
var inputSchemaJSON []byte

// Capabilities returns the OPA capabilities of the sandbox as JSON, for
// opa check --capabilities: no network, no environment, no randomness, no
// clock, and nothing whose cost one call can let explode.
func Capabilities() []byte { return bytes.Clone(capabilitiesJSON) }

// InputSchema returns the JSON schema of Input, for opa check --schema.
func InputSchema() []byte { return bytes.Clone(inputSchemaJSON) }

// sandbox is what every policy is compiled in and evaluated against.
type sandbox struct {
	capabilities *ast.Capabilities
	schemas      *ast.SchemaSet
	store        storage.Store
}

// newSandbox reads what is embedded.
func newSandbox() (*sandbox, error) {
	capabilities, err := ast.LoadCapabilitiesJSON(bytes.NewReader(capabilitiesJSON))
	if err != nil {
		return nil, fmt.Errorf("read the embedded capabilities: %w", err)
	}
	// An empty list forbids every host; nil, which an absent field gives,
	// allows every host.
	capabilities.AllowNet = []string{}
	var schema any
	if err := util.UnmarshalJSON(inputSchemaJSON, &schema); err != nil {
		return nil, fmt.Errorf("read the embedded input schema: %w", err)
	}
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, schema)
	data, err := baseData()
	if err != nil {
		return nil, err
	}
	store := inmem.NewFromObjectWithOpts(data, inmem.OptRoundTripOnWrite(false), inmem.OptReturnASTValuesOnRead(true))
	return &sandbox{capabilities: capabilities, schemas: schemas, store: store}, nil
}

// parserOptions are those of every module.
func (s *sandbox) parserOptions() ast.ParserOptions {
	return ast.ParserOptions{Capabilities: s.capabilities, RegoVersion: ast.RegoV1}
}

// compiler returns a fresh compiler: strict, typed by the input's schema, with
// print left out.
func (s *sandbox) compiler() *ast.Compiler {
	return ast.NewCompiler().
		SetErrorLimit(maxCompileErrors).
		WithCapabilities(s.capabilities).
		WithDefaultRegoVersion(ast.RegoV1).
		WithSchemas(s.schemas).
		WithStageAfterID(ast.StageResolveRefs, ast.CompilerStageDefinition{Name: "Narrow", MetricName: "compile_stage_narrow", Stage: narrow}).
		WithStageAfterID(ast.StageCheckTypes, ast.CompilerStageDefinition{Name: "Guard", MetricName: "compile_stage_guard", Stage: guard}).
		WithStrict(true)
}

// library adds to modules what they name of Library, and what that names. It is
// parsed anew, since a compiler changes what it is given.
func (s *sandbox) library(modules map[string]*ast.Module) error {
	files := Library()
	for grown := true; grown; {
		grown = false
		for file, source := range files {
			if modules[file] != nil || !mentioned(modules, packageOf(file)) {
				continue
			}
			module, err := ast.ParseModuleWithOpts(file, source, s.parserOptions())
			if err != nil {
				return fmt.Errorf("read the embedded library: %w", err)
			}
			modules[file], grown = module, true
		}
	}
	return nil
}

// mentioned reports whether modules have a reference to a package, to what is in it, or
// to what it is in.
func mentioned(modules map[string]*ast.Module, pkg ast.Ref) bool {
	found := false
	for _, module := range modules {
		ast.WalkRefs(module, func(ref ast.Ref) bool {
			prefix := ref.GroundPrefix()
			found = found || prefix.HasPrefix(ast.DefaultRootRef) && (prefix.HasPrefix(pkg) || pkg.HasPrefix(prefix))
			return found
		})
	}
	return found
}
