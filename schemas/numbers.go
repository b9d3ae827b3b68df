package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
)

// exactInt is the largest integer that every reader of JSON keeps: 2^53.
var exactInt = big.NewInt(1 << 53)

// exactVariables writes the integers of spec.variables beyond 2^53 as decimal
// strings: whatever reads the object later may go through float64.
func exactVariables(object []byte) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(object, &doc); err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	var spec map[string]json.RawMessage
	if err := json.Unmarshal(doc["spec"], &spec); err != nil || spec["variables"] == nil {
		return object, err
	}
	dec := json.NewDecoder(bytes.NewReader(spec["variables"]))
	dec.UseNumber()
	var variables any
	if err := dec.Decode(&variables); err != nil {
		return nil, fmt.Errorf("read the variables: %w", err)
	}
	for _, step := range []struct {
		in    map[string]json.RawMessage
		key   string
		value func() any
	}{
		{spec, "variables", func() any { return exact(variables) }},
		{doc, "spec", func() any { return spec }},
	} {
		data, err := marshal(step.value())
		if err != nil {
			return nil, err
		}
		step.in[step.key] = data
	}
	return marshal(doc)
}

// marshal writes JSON without escaping characters for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// exact replaces the integers in v that float64 would round.
func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, ok := new(big.Int).SetString(v.String(), 10); ok && n.CmpAbs(exactInt) > 0 {
			return n.String()
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	}
	return v
}
