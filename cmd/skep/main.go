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
	"syscall"

	"github.com/skep-dev/skep/cmd/internal/signals"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// The exit codes are part of the command line's contract. A command that a signal ended
// has 128 and the signal's number, as in a shell.
const (
	exitOK      = 0
	exitRefused = 1
	exitUnknown = 2
	exitSignal  = 128
)

// errRefused ends a command whose answer, already printed, is no.
var errRefused = errors.New("denied")

// errAbsent ends a command that was asked about something that does not exist.
type errAbsent struct{ error }

// Unwrap returns the cause.
func (e *errAbsent) Unwrap() error { return e.error }

// absent says of what a command was asked about that it does not exist.
func absent(format string, args ...any) error { return &errAbsent{fmt.Errorf(format, args...)} }

// errStopped ends a command that runs until it is told to stop, and says what it leaves.
type errStopped struct{ leaves string }

func (e *errStopped) Error() string { return e.leaves }

func main() {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it.
func run(args []string) int {
	ctx, signalled := signals.Until(context.Background())
	root := newRoot(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code, line := ending(err, signalled())
	if line != "" {
		fmt.Fprintln(os.Stderr, "skep: "+text.Printable(line))
	}
	return code
}

// ending is the exit code and the last line of a command that ended with err, after a
// signal where there was one. Whatever an interrupt broke off, the line is that.
func ending(err error, by syscall.Signal) (code int, line string) {
	var stopped *errStopped
	var missing *errAbsent
	switch isStopped := errors.As(err, &stopped); {
	case by == syscall.SIGINT && isStopped:
		return exitSignal + int(by), "interrupted; " + stopped.leaves
	case by == syscall.SIGINT:
		return exitSignal + int(by), "interrupted"
	case isStopped:
		return exitOK, "stopped; " + stopped.leaves
	case by != 0 && err != nil:
		return exitSignal + int(by), by.String()
	case err == nil:
		return exitOK, ""
	case errors.Is(err, errRefused):
		return exitRefused, ""
	case errors.As(err, &missing):
		return exitRefused, err.Error()
	}
	return exitUnknown, err.Error()
}
