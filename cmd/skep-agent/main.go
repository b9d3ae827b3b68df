// Command skep-agent holds one node of a cluster to the sealed intents of the
// API server, and reports how they are doing.
//
// It holds flags and wiring only; the work is done in package kube.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// gcPercent has the heap grow by half between two collections, unless GOGC says otherwise: the agent's is small, and is on every node.
const gcPercent = 50

// run is main without the process around it.
func run(args []string) int {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(os.Stdout, os.Stderr)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "skep-agent:", err)
		return 1
	}
	return 0
}
