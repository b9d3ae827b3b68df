// Command skep admits, verifies and runs eBPF programs: it is the tool of
// those who write definitions (vet, render, image, sign), of those who write
// policies (policy), and of a host without Kubernetes (run, status, chain,
// explain, inventory).
//
// It holds flags and wiring only; packages below internal have the commands for images,
// for the skep run of this host and for rollouts, and other packages do the work.
//
// Size: every command is a file of flags, whose help is wrapped, and they are one binary.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

func main() {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(run(calledAs(os.Args[0], os.Args[1:])))
}

// pluginName is how a user of kubectl calls the binary.
const pluginName = "kubectl skep"

// calledAs is what a user writes to have the binary run, and its arguments: kubectl runs it as its plug-in if it is called kubectl-skep, and as
// what completes the plug-in's command line if it is called kubectl_complete-skep.
func calledAs(program string, args []string) (string, []string) {
	switch base := filepath.Base(program); {
	case strings.HasPrefix(base, "kubectl_complete-skep"):
		return pluginName, append([]string{cobra.ShellCompRequestCmd}, args...)
	case strings.HasPrefix(base, "kubectl-skep"):
		return pluginName, args
	}
	return "skep", args
}

// run is main without the process around it. The name is what help and errors call the
// command.
func run(name string, args []string) int {
	ctx, signalled := exit.OnSignal(context.Background())
	root := newRoot(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code, line := exit.Of(err, signalled())
	if line != "" {
		fmt.Fprintln(os.Stderr, name+": "+text.Printable(line))
	}
	return code
}
