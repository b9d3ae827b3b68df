package schemas

import _ "embed"

//go:embed jsonschema/skep.dev.json
var jsonSchema []byte

// JSONSchema returns the JSON Schema (draft 7) of one YAML or JSON document of any kind that people write, for editors. It says what an API
// server's schema says, and knows no rules between fields.
func JSONSchema() []byte { return jsonSchema }
