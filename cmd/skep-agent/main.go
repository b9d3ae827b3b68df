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
	"syscall"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it.
func run(args []string) int {
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
