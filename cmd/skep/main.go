// Command skep admits, verifies and runs eBPF programs: it is the tool of
// those who write definitions (vet, render, image, sign), of those who write
// policies (policy), and of a host without Kubernetes (run, status, chain,
// explain, inventory).
//
// It holds flags and wiring only; the work is done in the rooms it calls.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
)

// The exit codes are part of the command line's contract.
const (
	exitOK      = 0
	exitRefused = 1
	exitUnknown = 2
)

// errRefused ends a command whose answer, already printed, is no.
var errRefused = errors.New("refused")

func main() {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	root.SetArgs(args)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return exitOK
	case errors.Is(err, errRefused):
		return exitRefused
	default:
		fmt.Fprintln(os.Stderr, "skep: "+plain(err.Error()))
		return exitUnknown
	}
}
