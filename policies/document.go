package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// maxInputBytes bounds the document as JSON.
const maxInputBytes = 4 << 20

// Document returns the input as Rego sees it: JSON of the schema that
// InputSchema returns. A list or a map that is nil in Go is empty in it and
// never null, since a rule that counts null would not fire. The namespace's name
// is the application's where the caller gave none. Beyond 4 MiB it is an error
// that Decide takes for a denial.
func (in Input) Document() ([]byte, error) {
	in.Version = InputVersion
	in.Application.Spec.Programs = list(in.Application.Spec.Programs)
	in.Signatures, in.Attestations = list(in.Signatures), list(in.Attestations)
	in.Requester.Groups = list(in.Requester.Groups)
	if in.Namespace.Name == "" {
		in.Namespace.Name = in.Application.Metadata.Namespace
	}
	in.Namespace.Labels = table(in.Namespace.Labels)
	in.Image.Labels = table(in.Image.Labels)
	in.Parameters = table(in.Parameters)
	in.Bytecode = facts(in.Bytecode)
	in.Image.Mismatches = list(bytecode.CompareLabels(in.Image.Labels, *cmp.Or(in.Object, &in.Bytecode)))
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("write policy input of %s: %w", in.Application.identity(), err)
	}
	if len(body) > maxInputBytes {
		return nil, &tooLargeError{object: in.Application.identity(), bytes: len(body)}
	}
	return body, nil
}

// tooLargeError is an input of so many bytes that no policy is asked about it.
type tooLargeError struct {
	object v1alpha1.Identity
	bytes  int
}

// Error names the application, and how much there is.
func (e *tooLargeError) Error() string {
	return fmt.Sprintf("write policy input of %s: %d bytes, at most %d are evaluated", e.object, e.bytes, maxInputBytes)
}

// decision denies what cannot be evaluated: another time it is as large.
func (e *tooLargeError) decision() Decision {
	return Decision{
		Denied: []Reason{{
			Rule: "policy/input", Path: "spec",
			Message: fmt.Sprintf("what the policies would be asked of it has %d bytes, at most %d are evaluated", e.bytes, maxInputBytes),
			Fix:     "shorten the definition and its annotations, or split the object into several",
		}},
		Warnings: []Reason{}, Policies: []string{},
	}
}

// identity names the application.
func (a Application) identity() v1alpha1.Identity {
	return v1alpha1.Identity{Kind: a.Kind, Namespace: a.Metadata.Namespace, Name: a.Metadata.Name}
}

// facts returns a copy without nil lists.
func facts(f bytecode.Facts) bytecode.Facts {
	f.Programs = list(slices.Clone(f.Programs))
	for i := range f.Programs {
		p := &f.Programs[i]
		p.Helpers, p.Kfuncs, p.Maps = list(p.Helpers), list(p.Kfuncs), list(p.Maps)
	}
	f.Maps, f.Variables = list(f.Maps), list(f.Variables)
	f.MinKernelReasons = list(f.MinKernelReasons)
	return f
}

// list is the slice, or an empty one.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// table is the map, or an empty one.
func table[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return m
}
