package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// allowed lists what a policy may call. Left out are the network (http.send,
// net.*), the environment (opa.runtime), randomness (rand.*, uuid.*), the clock
// (time.now_ns), schemas that name a URL (json.match_schema), keys and tokens
// (crypto.x509.*, io.jwt.*, providers.*), the compiler (rego.*), and calls whose
// cost one argument lets explode: bits.lsh, graph.reachable_paths,
// regex.globs_match, strings.render_template, yaml.unmarshal, graphql.*.
func allowed() []string {
	return []string{
		"abs", "all", "and", "any", "array.concat", "array.flatten", "array.reverse", "array.slice", "assign",
		"base64.decode", "base64.encode", "base64.is_valid", "bits.and", "bits.or", "bits.rsh", "bits.xor", "bits.negate",
		"ceil", "concat", "contains", "count", "crypto.sha256",
		"div", "endswith", "eq", "equal", "floor", "format_int",
		"glob.match", "glob.quote_meta", "graph.reachable", "gt", "gte", "hex.decode", "hex.encode",
		"indexof", "indexof_n", "internal.member_2", "internal.member_3", "internal.print", "internal.template_string", "intersection",
		"is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set", "is_string",
		"json.filter", "json.is_valid", "json.marshal", "json.patch", "json.remove", "json.unmarshal",
		"lower", "lt", "lte", "max", "min", "minus", "mul", "neq", "numbers.range", "numbers.range_step",
		"object.filter", "object.get", "object.keys", "object.remove", "object.subset", "object.union", "object.union_n",
		"or", "plus", "print", "product", "regex.find_all_string_submatch_n", "regex.find_n", "regex.is_valid", "regex.match",
		"regex.replace", "regex.split", "rem", "replace", "round", "semver.compare", "semver.is_valid", "set_diff", "sort", "split",
		"sprintf", "startswith", "strings.any_prefix_match", "strings.any_suffix_match", "strings.count", "strings.replace_n",
		"strings.reverse", "substring", "sum", "time.add_date", "time.clock", "time.date", "time.diff", "time.format",
		"time.parse_duration_ns", "time.parse_ns", "time.parse_rfc3339_ns", "time.weekday", "to_number", "trim", "trim_left",
		"trim_prefix", "trim_right", "trim_space", "trim_suffix", "type_name", "union", "units.parse", "units.parse_bytes",
		"upper", "uri.is_valid", "uri.parse", "walk",
	}
}

// capabilities narrows OPA's own capabilities to what is allowed.
func capabilities() ([]byte, error) {
	c := ast.CapabilitiesForThisVersion()
	names := allowed()
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool { return !slices.Contains(names, b.Name) })
	if len(c.Builtins) != len(names) {
		return nil, fmt.Errorf("%d builtins are allowed, and OPA has %d of them", len(names), len(c.Builtins))
	}
	c.WasmABIVersions = nil
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// The field is left out by OPA's own marshalling where it is empty, and
	// means the opposite where it is left out.
	var document map[string]any
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, err
	}
	document["allow_net"] = []string{}
	return indent(document)
}

// indent is the form of every generated document.
func indent(document any) ([]byte, error) {
	body, err := json.MarshalIndent(document, "", "  ")
	return append(body, '\n'), err
}
