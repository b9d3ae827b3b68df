// Package conformance holds what the conformance test of the agent saw of each hook on
// each kernel that it is run on. The page of hooks is made from it.
//
// It owns the file and its form. It tries nothing: the test compares what it sees with
// the file, and make test-kernels UPDATE=1 writes the file.
package conformance

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
)

// Outcome is what the test saw of a hook.
type Outcome string

// The outcomes. Any other text is the part of a hook that the kernel lacks.
const (
	// Fires says that a program was attached, ran on a real event, was updated, repaired
	// and unloaded.
	Fires Outcome = "fires"
	// Later says that the hook came with a later kernel.
	Later Outcome = "unsupported: later kernel"
	// BuiltWithout says that the kernel was built without the hook.
	BuiltWithout Outcome = "unsupported: built without"
	// Forbidden says that the kernel rejects programs of the hook from a process that has
	// every capability for them.
	Forbidden Outcome = "unsupported: forbidden"
)

// Kernel is what was seen on one kernel.
type Kernel struct {
	// Name is what people call the kernel.
	Name string `json:"name"`
	// Release is a pattern of path.Match for the releases that are this kernel, as
	// uname -r prints them.
	Release string `json:"release"`
	// Hooks are the outcomes by the names of hooks.
	Hooks map[string]Outcome `json:"hooks"`
}

//go:embed kernels.json
var file []byte

// Kernels returns what the file says, in its order.
func Kernels() ([]Kernel, error) {
	var kernels []Kernel
	decoder := json.NewDecoder(bytes.NewReader(file))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&kernels); err != nil {
		return nil, fmt.Errorf("read kernels.json: %w", err)
	}
	return kernels, nil
}

// Of returns what the kernels say of a release, and false where none of them is it.
func Of(kernels []Kernel, release string) (Kernel, bool) {
	i := slices.IndexFunc(kernels, func(k Kernel) bool {
		is, err := path.Match(k.Release, release)
		return err == nil && is
	})
	if i < 0 {
		return Kernel{}, false
	}
	return kernels[i], true
}

// Update returns the file with the outcomes that were seen on a release: those of hooks
// that were not seen stay. A release that is none of the kernels changes nothing.
func Update(kernels []Kernel, release string, seen map[string]Outcome) ([]byte, error) {
	if k, ok := Of(kernels, release); ok {
		maps.Copy(k.Hooks, seen)
	}
	body, err := json.MarshalIndent(kernels, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write kernels.json: %w", err)
	}
	return append(body, '\n'), nil
}
