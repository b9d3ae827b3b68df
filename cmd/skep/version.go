package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the commit the binary was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := version.This()
			if output == "json" {
				return display.JSON(cmd.OutOrStdout(), b)
			}
			return printBuild(cmd.OutOrStdout(), b)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json")
	return cmd
}

func printBuild(w io.Writer, b version.Build) error {
	if _, err := fmt.Fprintf(w, "skep %s\n", b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "commit of %s, built with %s for %s\n", cmp.Or(b.Time, "a time not known"), b.Go, b.Platform)
	return err
}
