package schemas

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/text"
)

// Format is how Write writes objects.
type Format string

// The formats of Write.
const (
	// YAML is a stream of documents.
	YAML Format = "yaml"
	// JSON is one List of API version v1, as kubectl reads and writes it.
	JSON Format = "json"
)

// Write writes objects in their order.
func Write(w io.Writer, objects []Object, f Format) error {
	switch f {
	case YAML:
		return writeYAML(w, objects)
	case JSON:
		items := make([]json.RawMessage, len(objects))
		for i, o := range objects {
			items[i] = o.JSON
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}); err != nil {
			return fmt.Errorf("write the definitions: %w", err)
		}
		return nil
	}
	return fmt.Errorf("write the definitions: format %q is neither %s nor %s", f, YAML, JSON)
}

// writeYAML writes one document for each object.
func writeYAML(w io.Writer, objects []Object) error {
	for i, o := range objects {
		doc, err := yaml.JSONToYAML([]byte(text.YAML(string(o.JSON))))
		if err != nil {
			return fmt.Errorf("write %s %s as YAML: %w", o.Identity.Kind, o.Identity, err)
		}
		if i > 0 {
			doc = append([]byte("---\n"), doc...)
		}
		if _, err := w.Write(doc); err != nil {
			return fmt.Errorf("write the definitions: %w", err)
		}
	}
	return nil
}
