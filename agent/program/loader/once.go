package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// RunError says that a program which runs once did not do so, or said that it failed.
type RunError struct {
	// Program is the function.
	Program string
	// Returned is what it returned, as a negative errno; 0 where the kernel did not run it.
	Returned int32
	// err is the kernel's error; nil where it ran the program.
	err error
}

// Error implements error.
func (e *RunError) Error() string {
	if e.Returned != 0 {
		return fmt.Sprintf("run %s once: it returned %d (%v), and so failed; a program of hook syscall returns 0 or more if it did what it is for",
			e.Program, e.Returned, unix.Errno(-e.Returned))
	}
	if errors.Is(e.err, unix.EINVAL) {
		return fmt.Sprintf("run %s once: %v; it may read arguments, which Skep gives none: put them into variables", e.Program, e.err)
	}
	return fmt.Sprintf("run %s once: %v", e.Program, e.err)
}

// Unwrap returns the kernel's error. What a program returned is none: it says nothing of this
// process's rights or of what the kernel has.
func (e *RunError) Unwrap() error { return e.err }

// once lists what of an intent's programs runs once.
func once(payload *intent.Payload, loads lister) []string {
	var all []string
	for _, p := range payload.Programs {
		for _, a := range p.Attach {
			if h, _ := hook.Lookup(a.Hook); !h.RunsOnce() {
				continue
			}
			for _, load := range loads(payload.Application, p.Name, a) {
				if !slices.Contains(all, load.Instance) {
					all = append(all, load.Instance)
				}
			}
		}
	}
	return all
}

// runOnce runs the programs that are attached to nothing, in the order of the definition. The
// kernel ends none of them: the gate allows none that repeats without an end that the verifier finds.
func (r *Revision) runOnce(p *Prepared) error {
	for _, instance := range p.Once {
		program := r.Programs[instance]
		if program == nil {
			// The node does without it.
			continue
		}
		returned, err := plain.Of(program.Run(&ebpf.RunOptions{}))
		name, _, _ := strings.Cut(instance, "@")
		if err != nil {
			return p.rejection(&RunError{Program: name, err: err})
		}
		if n := int32(returned); n < 0 {
			return p.rejection(&RunError{Program: name, Returned: n})
		}
	}
	return nil
}

// inlined has the verifier walk each call of a program's functions, as it does with static ones.
// It looks at others apart, and at each once, so that their loops would not count together.
func inlined(insns asm.Instructions) asm.Instructions {
	out := append(asm.Instructions(nil), insns...)
	for i := range out {
		fn := btf.FuncMetadata(&out[i])
		if i == 0 || fn == nil || fn.Linkage != btf.GlobalFunc {
			continue
		}
		static := *fn
		static.Linkage = btf.StaticFunc
		out[i] = btf.WithFuncMetadata(out[i], &static)
	}
	return out
}
