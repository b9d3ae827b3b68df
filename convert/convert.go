// Package convert turns manifests of bpfman and of bpfd, as it was called before, into Skep's
// kinds: bytes in, documents and notes out.
//
// It owns what a field of theirs means to Skep. Whatever has no equal becomes a comment in the
// document, at the place nearest to it, with the reason and what to do, and a note with the line
// of the manifest. It reads no file, no cluster and no registry, and decides nothing: its
// documents are vetted as any others are.
//
// Size: each kind and field of bpfman is one small function, and all write one draft.
package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"go.yaml.in/yaml/v3"
)

// The bounds of one input.
const (
	// MaxBytes bounds an input.
	MaxBytes = 4 << 20
	// MaxObjects bounds the objects of an input.
	MaxObjects = 5000
	// maxDepth bounds how deep fields are nested.
	maxDepth = 64
)

// Options are what a conversion may look up.
type Options struct {
	// Variables returns the values of the variables in raw, bytes by name, as the types ask for
	// that the object of an image gives them, and why a value has no equal, by name. Nil where no
	// image is read: the bytes become comments then.
	Variables func(image string, raw map[string][]byte) (map[string]apiextensionsv1.JSON, map[string]error, error)
	// Layouts has images in OCI layouts on disk, oci:DIR, carried over. It is for manifests that are
	// files; objects of a cluster, which others write, may name no folder.
	Layouts bool
}

// Note is one thing that did not carry over as it was.
type Note struct {
	// Line is the line of the manifest, from 1.
	Line int
	// Path is the field of the manifest, such as spec.byteCode.image.
	Path string
	// Text is the reason, and what to do.
	Text string
	// Todo notes ask for a decision: until it is taken, the document is invalid or does
	// something else than the manifest did.
	Todo bool
}

// Document is one application of Skep's. One object of bpfman's makes one document.
type Document struct {
	Kind, Namespace, Name string
	// From says what it was: apiVersion, kind and name.
	From string
	// YAML is the document with its comments, without a leading separator.
	YAML []byte
	// Notes are in the order of the manifest.
	Notes []Note
}

// Result is what an input comes to.
type Result struct {
	// Documents are in the order of the input.
	Documents []Document
	// Left are the objects that become no document, and why.
	Left []Note
}

// Convert converts a stream of YAML documents or a JSON object; a List is read as its items. An
// error means that the input is not such a stream or is over a bound, and names its line, or that
// ctx is over.
func Convert(ctx context.Context, data []byte, o Options) (Result, error) {
	if len(data) > MaxBytes {
		return Result{}, fmt.Errorf("the input is larger than %d MiB; convert its documents in parts", MaxBytes>>20)
	}
	var r Result
	decoder, count := yaml.NewDecoder(strings.NewReader(string(data))), 0
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return r, fmt.Errorf("read YAML: %w", err)
		}
		for _, root := range doc.Content {
			if err := r.add(ctx, root, o, &count); err != nil {
				return r, err
			}
		}
	}
}

// add converts one object, or the items of a List.
func (r *Result) add(ctx context.Context, root *yaml.Node, o Options, count *int) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("line %d: %w", root.Line, err)
	}
	if root.Tag == "!!null" {
		return nil
	}
	if err := check(root, maxDepth); err != nil {
		return err
	}
	if items := itemsOf(root); items != nil {
		for _, item := range items.Content {
			if err := r.add(ctx, item, o, count); err != nil {
				return err
			}
		}
		return nil
	}
	if *count++; *count > MaxObjects {
		return fmt.Errorf("line %d: the input has more than %d objects; convert it in parts", root.Line, MaxObjects)
	}
	if left := tooLarge(root); left != nil {
		left.Path = "object"
		r.Left = append(r.Left, *left)
		return nil
	}
	d, err := newDraft(root, o)
	if err != nil {
		return err
	}
	if left := d.read(); left != nil {
		r.Left = append(r.Left, *left)
		return nil
	}
	// What is read of an image takes long, and its error is a note.
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("line %d: %w", root.Line, err)
	}
	doc, err := d.document()
	r.Documents = append(r.Documents, doc)
	return err
}

// itemsOf returns the items of a List; nil where the object is none.
func itemsOf(root *yaml.Node) *yaml.Node {
	var items *yaml.Node
	list := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch key, value := root.Content[i].Value, root.Content[i+1]; {
		case key == "kind":
			list = strings.HasSuffix(value.Value, "List")
		case key == "items" && value.Kind == yaml.SequenceNode:
			items = value
		}
	}
	if !list {
		return nil
	}
	return items
}

// check rejects what no manifest needs and would have to be bounded: aliases, depth, and a field
// that is given twice. Names that only differ in spelling may be those of two labels or variables;
// of two spellings of one field, the first is read and fields.rest notes the other.
func check(n *yaml.Node, depth int) error {
	switch {
	case depth == 0:
		return fmt.Errorf("line %d: fields are nested more than %d deep", n.Line, maxDepth)
	case n.Kind == yaml.AliasNode:
		return fmt.Errorf("line %d: *%s is an alias, which is not read; write what it stands for", n.Line, n.Value)
	case n.Kind == yaml.MappingNode:
		seen := map[string]bool{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || seen[key.Value] {
				return fmt.Errorf("line %d: the field %q is given twice or is no name", key.Line, key.Value)
			}
			seen[key.Value] = true
		}
	}
	for _, child := range n.Content {
		if err := check(child, depth-1); err != nil {
			return err
		}
	}
	return nil
}
