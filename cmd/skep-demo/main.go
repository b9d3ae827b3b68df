// Command skep-demo shows the whole pipeline in the real kernel; make demo runs it.
//
// It holds flags and wiring only; the story is in package demo. It is a binary of its own, so
// that skep links neither the story nor its registry.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/demo"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

func main() {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(run())
}

// run is main without the process around it. Its exit codes are those of skep.
func run() int {
	ctx, signalled := exit.OnSignal(context.Background())
	err := newRoot().ExecuteContext(ctx)
	code, line := exit.Of(err, signalled())
	if line != "" {
		fmt.Fprintln(os.Stderr, "skep-demo: "+text.Printable(line))
	}
	return code
}

func newRoot() *cobra.Command {
	var (
		o      demo.Options
		inside string
	)
	cmd := &cobra.Command{
		Use:   "skep-demo",
		Short: "Show the whole pipeline in the real kernel, in namespaces of its own (root)",
		Long: "Start a registry and a git repository, run node mode on them, send real packets, update without\n" +
			"missing one, deny what must not run, and leave the kernel as it was. Takes less than a minute.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := os.Stdout.Stat()
			o.Out = os.Stdout
			o.Colour = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
			if inside != "" {
				return demo.Inside(cmd.Context(), o, inside)
			}
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\n%s", err, "See '"+cmd.Name()+" --help' for usage.")
	})
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave everything running until Ctrl-C, to look around")
	cmd.Flags().StringVar(&inside, demo.InsideFlag, "", "")
	_ = cmd.Flags().MarkHidden(demo.InsideFlag)
	return cmd
}
