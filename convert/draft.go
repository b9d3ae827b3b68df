package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// maxWritten bounds what a comment repeats of a manifest, in bytes.
const maxWritten = 256

// todoMark begins a comment that asks for a decision.
const todoMark = "TODO "

// draft is one document while it is made.
type draft struct {
	options Options
	root    *fields
	line    int

	from       string
	namespaced bool
	app        application
	comments   []placed
	notes      []Note
	// attachments and attachmentBytes are what has been added; see room.
	attachments, attachmentBytes int
}

// placed is a line of comment, and the place that it belongs to, such as spec.programs[0].
type placed struct{ place, line string }

// application is what a document holds, in the order of its fields.
type application struct {
	APIVersion string                      `json:"apiVersion"`
	Kind       string                      `json:"kind"`
	Metadata   metadata                    `json:"metadata"`
	Spec       v1alpha1.BpfApplicationSpec `json:"spec"`
}

// metadata is what people write of an object's.
type metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func newDraft(root *yaml.Node, o Options) (*draft, error) {
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: %s is no object of Kubernetes: it has no apiVersion and kind", root.Line, written(root))
	}
	d := &draft{options: o, line: root.Line}
	d.root = d.below("", "", root)
	return d, nil
}

// note records what needs no decision, and has it written at place.
func (d *draft) note(n *yaml.Node, path, place, why string) {
	d.add(Note{Line: n.Line, Path: path, Text: why}, place, "")
}

// todo records what somebody has to decide.
func (d *draft) todo(n *yaml.Node, path, place, why string) {
	d.add(Note{Line: n.Line, Path: path, Text: why, Todo: true}, place, todoMark)
}

// missing records what is not in the manifest and has to be decided.
func (d *draft) missing(path, place, why string) {
	d.add(Note{Line: d.line, Path: path, Text: why, Todo: true}, place, todoMark)
}

// written repeats a value of the manifest on one line, shortened.
func written(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return text.Line(text.Cut(n.Value, maxWritten))
	}
	var value any
	if err := n.Decode(&value); err != nil {
		return "the value"
	}
	out, err := json.Marshal(value)
	if err != nil {
		return "the value"
	}
	return text.Line(text.Cut(string(out), maxWritten))
}

// strict decodes a value whose fields are all known.
func strict(n *yaml.Node, into any) error {
	var value any
	if err := n.Decode(&value); err != nil {
		return err
	}
	out, err := json.Marshal(value)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(out))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// document writes the draft.
func (d *draft) document() (Document, error) {
	doc := Document{Kind: d.app.Kind, Namespace: d.app.Metadata.Namespace, Name: d.app.Metadata.Name, From: d.from, Notes: d.notes}
	if d.app.Spec.Programs == nil {
		d.app.Spec.Programs = []v1alpha1.Program{}
	}
	plain, err := json.Marshal(d.app)
	if err != nil {
		return doc, fmt.Errorf("line %d: write %s: %w", d.line, d.from, err)
	}
	// JSON is YAML: its nodes keep the order of the fields, and take comments.
	var tree yaml.Node
	if err := yaml.Unmarshal([]byte(text.YAML(string(plain))), &tree); err != nil {
		return doc, fmt.Errorf("line %d: write %s: %w", d.line, d.from, err)
	}
	places := map[string]*yaml.Node{}
	block(tree.Content[0], "", places)
	first := tree.Content[0].Content[0]
	lines := map[*yaml.Node][]string{first: {"# From " + d.from + "."}}
	for _, c := range d.comments {
		at := places[nearest(places, c.place)]
		if at == nil {
			at = first
		}
		lines[at] = append(lines[at], "# "+c.line)
	}
	for at, comment := range lines {
		at.HeadComment = strings.Join(comment, "\n")
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&tree); err != nil {
		return doc, fmt.Errorf("line %d: write %s: %w", d.line, d.from, err)
	}
	doc.YAML = []byte(text.YAML(out.String()))
	return doc, nil
}

// block has a tree written in block style, and indexes the nodes that a comment can precede.
func block(n *yaml.Node, place string, places map[string]*yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = styleOf(n)
	}
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			below := place + "[" + strconv.Itoa(i) + "]"
			places[below] = child
			block(child, below, places)
		case i%2 == 0:
			child.Style = styleOf(child)
			below := join(place, child.Value)
			places[below] = child
			block(n.Content[i+1], below, places)
		}
	}
}

// styleOf leaves the style to the library, unless text is to have escapes.
func styleOf(n *yaml.Node) yaml.Style {
	if text.Obeyed(n.Value) {
		return yaml.DoubleQuotedStyle
	}
	return 0
}

// nearest is the place itself, or the innermost one around it that is in the document.
func nearest(places map[string]*yaml.Node, place string) string {
	for places[place] == nil && place != "" {
		place = place[:max(strings.LastIndexAny(place, ".["), 0)]
	}
	return place
}
