package loader

import (
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/intent"
)

// DeniedError says that a program does on this node's kernel what the sealed intent does not say of
// it: CO-RE relocations made it another program than the one that was evaluated.
type DeniedError struct {
	// Application is the intent's, and Program the function.
	Application v1alpha1.Identity
	Program     string
	// Does is the fact, and Where the instruction; empty where it is none of a single one.
	Does, Where string
}

// Error names program, fact, rule and fix.
func (e *DeniedError) Error() string {
	does := e.Does
	if e.Where != "" {
		does += " (" + e.Where + ")"
	}
	return fmt.Sprintf("program %s denied by load/facts: relocated for the kernel of this node it %s, which the sealed intent of %s does not allow; "+
		"take it out of the program, or have the application evaluated anew by a controller of this version", e.Program, does, e.Application)
}

// admit denies programs that do more than the facts by which the intent's version was allowed.
func admit(p *intent.Payload, read *objectfile.Object, programs []string) error {
	for _, name := range programs {
		found, err := bytecode.InspectProgram(read, name)
		if err != nil {
			return fmt.Errorf("inspect what is loaded: %w", err)
		}
		denied := DeniedError{Application: p.Application, Program: name}
		if denied.Does, denied.Where = beyond(p, found); denied.Does != "" {
			return &denied
		}
	}
	return nil
}

// beyond is what a program does that an intent does not say of it, and at which instruction; empty
// where there is nothing.
func beyond(p *intent.Payload, found bytecode.Program) (does, where string) {
	if p.Application.Kind == v1alpha1.KindBpfApplication && found.WritesRegisters {
		// No intent of a namespace allows it, whichever facts its build sealed.
		return "writes registers of a task", ""
	}
	if p.Facts != nil {
		return found.Beyond(p.Facts.Calls, p.Facts.Reads)
	}
	// Sealed before intents had facts. A namespace was allowed nothing but registers, and to write into the trace.
	reads := slices.DeleteFunc(found.KernelReads(), func(r bytecode.KernelRead) bool { return r.By == "bpf_trace_printk" || r.By == "bpf_trace_vprintk" })
	if p.Application.Kind == v1alpha1.KindBpfApplication && len(found.ReadsRegistersBy) == 0 && len(reads) > 0 {
		return reads[0].Does(), reads[0].Where
	}
	return "", ""
}
