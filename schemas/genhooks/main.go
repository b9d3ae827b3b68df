// Command genhooks writes what is made from the hook table to standard output:
// "cue" is its twin in the schema, "page" is docs/hooks.md, the table for people.
//
// It owns the form of both and decides nothing: every value is a column of a
// row, so a new hook needs no change here.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
)

// output is one of the files that are made from the table.
type output struct {
	// path is where go generate puts it, from this folder.
	path  string
	write func(io.Writer) error
}

// outputs are the files by what they are called on the command line.
func outputs() map[string]output {
	return map[string]output{
		"cue": {"../module/hooks_gen.cue", func(w io.Writer) error { return writeCUE(w, hook.All(), hook.XDPVerdicts(), hook.Events()) }},
		"page": {"../../docs/hooks.md", func(w io.Writer) error {
			kernels, err := conformance.Kernels()
			if err != nil {
				return err
			}
			return writePage(w, hook.All(), kernels)
		}},
	}
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "genhooks: %v\n", err)
		os.Exit(1)
	}
}

// run writes the one output that the arguments name.
func run(w io.Writer, args []string) error {
	if len(args) == 1 {
		if out, ok := outputs()[args[0]]; ok {
			return out.write(w)
		}
	}
	return fmt.Errorf("read arguments %q: name cue or page", args)
}
