package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/demo"
)

func newDemo() *cobra.Command {
	var (
		keep   bool
		inside string
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole pipeline in the real kernel, in namespaces of its own (root)",
		Long: "Start a registry and a git repository, run node mode on them, send real packets, update without\n" +
			"missing one, deny what must not run, and leave the kernel as it was. Takes less than a minute.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			o := demo.Options{Out: out, Keep: keep, Colour: terminal(out) && os.Getenv("NO_COLOR") == ""}
			if inside != "" {
				return demo.Inside(cmd.Context(), o, inside)
			}
			args := []string{"demo"}
			if keep {
				args = append(args, "--keep")
			}
			return demo.Run(cmd.Context(), o, args...)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything running until Ctrl-C, to look around")
	cmd.Flags().StringVar(&inside, demo.InsideFlag, "", "")
	_ = cmd.Flags().MarkHidden(demo.InsideFlag)
	return cmd
}
