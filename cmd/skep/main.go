// Command skep admits, verifies and runs eBPF programs: it is the tool of
// those who write definitions (vet, render, image, sign), of those who write
// policies (policy), and of a host without Kubernetes (run, status, chain,
// explain, inventory).
//
// It holds flags and wiring only; packages below internal have the commands for images,
// for the skep run of this host and for rollouts, and other packages do the work.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

func main() {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it.
func run(args []string) int {
	ctx, signalled := exit.OnSignal(context.Background())
	root := newRoot(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code, line := exit.Of(err, signalled())
	if line != "" {
		fmt.Fprintln(os.Stderr, "skep: "+text.Printable(line))
	}
	return code
}
