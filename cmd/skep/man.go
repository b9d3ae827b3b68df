package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/skep-dev/skep/cmd/internal/version"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the man pages of all commands to a folder",
		Example: "  skep man /usr/local/share/man/man1 && man skep-status",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // Everyone reads man pages.
				return fmt.Errorf("write man pages: %w", err)
			}
			build := version.This()
			header := &doc.GenManHeader{Title: "SKEP", Section: "1", Source: "skep " + build.String(), Manual: "Skep"}
			if committed, err := time.Parse(time.RFC3339, build.Time); err == nil {
				header.Date = &committed
			}
			cmd.Root().DisableAutoGenTag = true
			if err := doc.GenManTree(cmd.Root(), header, args[0]); err != nil {
				return fmt.Errorf("write man pages: %w", err)
			}
			return nil
		},
	}
}
