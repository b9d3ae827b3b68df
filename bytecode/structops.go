package bytecode

import (
	"bytes"
	"debug/elf"
	"strings"

	"github.com/skep-dev/skep/hook"
)

// structOpsError is that of an object that the parser does not take and that has tables of
// functions for the kernel; nil for other objects.
func structOpsError(object []byte) error {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil //nolint:nilerr // what is no ELF file is the parser's to name
	}
	h, _ := hook.Lookup("struct_ops")
	for _, s := range f.Sections {
		// libbpf has .struct_ops.link too, and a question mark before what is not loaded unless asked.
		if !strings.HasPrefix(strings.TrimPrefix(s.Name, "?"), ".struct_ops") {
			continue
		}
		why, instead := h.Obstacle()
		return &Rejection{
			Rule: "bytecode/struct-ops", Object: "section " + printable(s.Name),
			Reason: "hook struct_ops is known, but this version of Skep does not attach it: " + why,
			Fix:    "use " + instead,
		}
	}
	return nil
}
